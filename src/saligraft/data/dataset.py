"""One split of a data set, as a torch `Dataset`: held in memory, or read one sample at a time.

Shapes: N samples, C channels, H W pixels.
"""

import hashlib
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset

from saligraft.checks import numbers, whole_number
from saligraft.data.files import FileNames


class Inputs(NamedTuple):
    """What a network takes and what its logits mean: stored with the weights, so that they can be used without data.

    Args:
        classes: Names of the classes, in the order of the logits.
        mean: Per channel, of values in [0,1].
        std: Standard deviation per channel, likewise.
        image_shape: Channels, height, width.
        test_crop: Share of the side of a resized image that a test view shows.
        keep_ratio: Whether images keep their aspect ratio; otherwise a view shows the entire image.
        normalisation_known: Whether `mean` and `std` are those of the images; False if a data set of your own returned
            normalised images and does not name them.
    """

    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_shape: tuple[int, int, int]
    test_crop: float = 1.0
    keep_ratio: bool = True
    normalisation_known: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Split(Dataset[tuple[Tensor, int]], ABC):
    """Labelled images: `data[i]` is the test view of sample i, float32 (C,H,W) and normalised, and its class.

    A subclass that adds a field with one entry per sample, such as file names, must also add it to `_rows`.

    Args:
        name: The data set.
        labels: Class of each sample, (N,) int64.
        classes: Names of the classes.
        mean: Per channel, of values in [0,1]; a constant of the data set, not of the split.
        std: Standard deviation per channel, likewise.
        boxes: The object in each stored image, (N,4) int64: x0 y0 x1 y1, ends exclusive, as torchvision's XYXY.
    """

    geometry_known: ClassVar[bool] = True
    """Whether a training view differs in place from the stored sample only as its geometry says, see `Batch`."""

    name: str
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    boxes: Tensor | None = None

    def __post_init__(self) -> None:
        _check_tensor("labels", self.labels, torch.int64, (len(self),))
        if self.boxes is not None:
            _check_tensor("boxes", self.boxes, torch.int64, (len(self), 4))
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(numbers(name, values)) != self.image_shape[0]:
                raise ValueError(f"{name} must hold one value per channel ({self.image_shape[0]}), got {len(values)}")
        if not all(0 < value < float("inf") for value in self.std):
            raise ValueError(f"std must be > 0, got {self.std}")
        if len(self) and not self.num_classes:
            raise ValueError("classes must hold the name of each class, got none")
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.num_classes:
            low, high = int(self.labels.min()), int(self.labels.max())
            raise ValueError(f"labels must lie in [0, {self.num_classes}), got {low} to {high}")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return the test view of one sample.

        Args:
            index: Index of the sample; negative values count from the end.

        Returns:
            Image (C,H,W) float32, normalised, and class.
        """
        index = range(len(self))[index]
        scale, shift = normalisation(self.mean, self.std)
        return self.view(index).float() * scale + shift, int(self.labels[index])

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""

    @property
    def inputs(self) -> Inputs:
        """What a network trained on this data takes."""
        return Inputs(self.classes, self.mean, self.std, self.image_shape)

    @abstractmethod
    def view(self, index: int) -> Tensor:
        """Return the test view (C,H,W) uint8 of a sample.

        Args:
            index: Index of the sample, from 0.
        """

    @abstractmethod
    def digest(self) -> str:
        """Return a hash that is equal for the same samples in the same order; a resumed run compares it."""

    def subset(self, indices: Tensor) -> Self:
        """Return a split of these samples, in this order, with all classes.

        Args:
            indices: Indices of the samples, (n,).
        """
        return replace(self, **self._rows(indices))

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        """Select these samples in every field that has one entry per sample."""
        return {"labels": self.labels[indices], "boxes": None if self.boxes is None else self.boxes[indices]}

    @abstractmethod
    def take(self, indices: Tensor) -> "ImageData":
        """Load the test views of these samples.

        Args:
            indices: Indices of the samples, (n,).
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageData(Split):
    """A split held in memory.

    Args:
        images: (N,C,H,W) uint8.
        masks: True on the object, (N,H,W) bool; None if unknown.
        name, labels, classes, mean, std, boxes: See `Split`.

    Example:
        >>> import torch
        >>> from saligraft.data import ImageData
        >>> images, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
        >>> data = ImageData(name="mine", images=images, labels=labels, classes=("a", "b"), mean=(0.5,), std=(0.5,))
        >>> len(data), data[1][0].shape, data[1][1]
        (4, torch.Size([1, 8, 8]), 1)
    """

    images: Tensor
    masks: Tensor | None = None

    def __post_init__(self) -> None:
        if self.images.ndim != 4:
            raise ValueError(f"images must have shape (N,C,H,W), got {tuple(self.images.shape)}")
        _check_tensor("images", self.images, torch.uint8, tuple(self.images.shape))
        if self.masks is not None:
            _check_tensor("masks", self.masks, torch.bool, (len(self), *self.image_shape[1:]))
        super().__post_init__()

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def view(self, index: int) -> Tensor:
        return self.images[index]

    def digest(self) -> str:
        total = hashlib.sha256(self.labels.numpy().tobytes())
        for block in torch.split(self.images, 1024):
            total.update(block.contiguous().numpy().data)
        return total.hexdigest()

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        masks = None if self.masks is None else self.masks[indices]
        return super()._rows(indices) | {"images": self.images[indices], "masks": masks}

    def take(self, indices: Tensor) -> "ImageData":
        return self.subset(indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamedData(Split):
    """A split whose samples are read and augmented one at a time, by workers, while the network trains.

    It is sent to worker processes, so it must stay small.

    Args:
        folder: Folder of the files.
        files: One path in `folder` per sample; empty if all samples are computed, "" for a single computed one.
        name, labels, classes, mean, std, boxes: See `Split`.
    """

    folder: Path = Path()
    files: FileNames = FileNames()  # noqa: RUF009  (immutable)

    @abstractmethod
    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        """Read one sample.

        Args:
            index: Index of the sample.
            draws: Random numbers of a training view, which depend only on (seed, epoch, index); None for the test view.

        Returns:
            Image (C,H,W) uint8, and how it was cropped from the stored one (see `Batch`, without flipped).

        Raises:
            ValueError: A file, which the message names, is missing, truncated or not an image.
        """

    def view(self, index: int) -> Tensor:
        return self.sample(index, None)[0]

    def digest(self) -> str:
        """Return a hash of labels, file names and file sizes: one stat per file, which is fast even for a million."""
        total = hashlib.sha256(self.labels.numpy().tobytes())
        for name in filter(None, self.source_files()):
            size = os.stat(f"{self.folder}/{name}").st_size  # noqa: PTH116  (a million of them)
            total.update(b"%s\0%d\0" % (os.fsencode(name), size))
        return total.hexdigest()

    def source_files(self) -> Iterable[str]:
        """Return the paths in `folder` of all files that samples are read from."""
        return self.files

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        return super()._rows(indices) | ({"files": self.files.subset(indices)} if len(self.files) else {})

    def take(self, indices: Tensor) -> ImageData:
        """Load the test views of these samples, without boxes, which refer to the stored images.

        Args:
            indices: Indices of the samples, (n,).
        """
        views = [self.view(int(index)) for index in indices]
        views = [view.round().clamp(0, 255).to(torch.uint8) for view in views]
        return ImageData(
            name=self.name,
            images=torch.stack(views) if views else torch.empty(0, *self.image_shape, dtype=torch.uint8),
            labels=self.labels[indices],
            classes=self.classes,
            mean=self.mean,
            std=self.std,
        )


def normalisation(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Compute scale and shift that normalise values in [0, 255] to mean 0 and standard deviation 1.

    Args:
        mean: Per channel, of values in [0,1].
        std: Per channel, likewise.
        device: Device of the results.

    Returns:
        Scale and shift, (C,1,1) each.
    """
    centre, width = (torch.tensor(values, device=device)[:, None, None] for values in (mean, std))
    return 1 / (255 * width), -centre / width


def view_size(size: int | Sequence[int], *, least: int = 1, most: int) -> tuple[int, int]:
    """Check an image size.

    Args:
        size: One side, or (height, width), in pixels.
        least: Smallest valid side.
        most: Largest valid side.

    Returns:
        Height and width.
    """
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise TypeError(f"size must be an integer or (height, width), got {size!r}")
    for side in sides:
        whole_number("size", side, least=least, most=most)
    return sides


def _check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
