"""One split of a data set whose samples are read and augmented one at a time, by workers, while others train."""

import hashlib
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from saligraft.data.image_data import ImageData, check_labels, check_statistics, check_tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamedData(ABC):
    """Labels in memory, samples on disk; crosses to worker processes whole, so it must stay small.

    A subclass that adds one entry per sample, such as file names, adds it to `_rows` too.
    """

    name: str
    labels: Tensor  # (N,) int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of values in [0,1]; a constant of the data set, not of the split
    std: tuple[float, ...]
    boxes: Tensor | None = None  # (N,4) int64: x0 y0 x1 y1 in the stored image, ends exclusive

    def __post_init__(self) -> None:
        check_tensor("labels", self.labels, torch.int64, (len(self.labels),))
        if self.boxes is not None:
            check_tensor("boxes", self.boxes, torch.int64, (len(self.labels), 4))
        check_statistics(self.mean, self.std, self.image_shape[0])
        check_labels(self.labels, len(self.classes))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of what `sample` gives."""

    @abstractmethod
    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        """Image (C,H,W) uint8 and how it was cut out (see `Batch`, without flipped).

        `draws` decides a training view and depends on (seed, epoch, index) alone; None asks for the test view.
        A file that is missing, truncated or no image is a ValueError that names it.
        """

    def digest(self) -> str:
        """Equal for equal labels, file names and file sizes: of every file one stat, so that a million stay cheap."""
        total = hashlib.sha256(self.labels.numpy().tobytes())
        for name, path in self.source_files():
            total.update(b"%s\0%d\0" % (os.fsencode(name), os.stat(path).st_size))  # noqa: PTH116  (a million of them)
        return total.hexdigest()

    def source_files(self) -> Iterable[tuple[str, str]]:
        """Name and path of every file that samples are made of; none where they are computed."""
        return ()

    def subset(self, indices: Tensor) -> Self:
        """These samples alone, in this order; all classes stay."""
        return replace(self, **self._rows(indices))

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        """These samples' part of every field that has one entry per sample."""
        return {"labels": self.labels[indices], "boxes": None if self.boxes is None else self.boxes[indices]}

    def take(self, indices: Tensor) -> ImageData:
        """These samples in memory, as a test shows them; boxes, which belong to the stored images, stay behind."""
        views = [self.sample(int(index), None)[0] for index in indices]
        images = torch.stack(views) if views else torch.empty(0, *self.image_shape, dtype=torch.uint8)
        return ImageData(
            name=self.name,
            images=images,
            labels=self.labels[indices],
            classes=self.classes,
            mean=self.mean,
            std=self.std,
        )
