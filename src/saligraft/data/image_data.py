"""One split of an image data set, held in memory.

Shapes: N images, C channels, H W pixels.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from saligraft.checks import numbers


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageData:
    """Images with labels, class names, and where known the object's mask and box."""

    name: str
    images: Tensor  # (N,C,H,W) uint8
    labels: Tensor  # (N,) int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of values in [0,1]; a constant of the data set, not of the split
    std: tuple[float, ...]
    masks: Tensor | None = None  # (N,H,W) bool, True on the object
    boxes: Tensor | None = None  # (N,4) int64: x0 y0 x1 y1, ends exclusive, as torchvision's XYXY

    def __post_init__(self) -> None:
        if self.images.ndim != 4:
            raise ValueError(f"images must have shape (N,C,H,W), got {tuple(self.images.shape)}")
        count, channels, height, width = self.images.shape
        check_tensor("images", self.images, torch.uint8, (count, channels, height, width))
        check_tensor("labels", self.labels, torch.int64, (count,))
        if self.masks is not None:
            check_tensor("masks", self.masks, torch.bool, (count, height, width))
        if self.boxes is not None:
            check_tensor("boxes", self.boxes, torch.int64, (count, 4))
        check_statistics(self.mean, self.std, channels)
        check_labels(self.labels, len(self.classes))

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def subset(self, indices: Tensor) -> Self:
        """These samples alone, in this order; all classes stay."""
        masks, boxes = (None if part is None else part[indices] for part in (self.masks, self.boxes))
        return replace(self, images=self.images[indices], labels=self.labels[indices], masks=masks, boxes=boxes)

    def digest(self) -> str:
        """Equal for equal samples in equal order."""
        total = hashlib.sha256(self.labels.numpy().tobytes())
        for block in torch.split(self.images, 1024):
            total.update(block.contiguous().numpy().data)
        return total.hexdigest()

    def take(self, indices: Tensor) -> "ImageData":
        """These samples in memory, as a test shows them."""
        return self.subset(indices)


def check_statistics(mean: tuple[float, ...], std: tuple[float, ...], channels: int) -> None:
    """One mean and one positive standard deviation per channel."""
    for name, values in (("mean", mean), ("std", std)):
        if len(numbers(name, values)) != channels:
            raise ValueError(f"{name} must hold one value per channel ({channels}), got {len(values)}")
    if not all(0 < value < float("inf") for value in std):
        raise ValueError(f"std must be > 0, got {std}")


def check_labels(labels: Tensor, classes: int) -> None:
    """Every label names a class."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels must lie in [0, {classes}), got {int(labels.min())} to {int(labels.max())}")


def check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """A field of one type and shape."""
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
