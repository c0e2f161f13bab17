"""One split of an image data set, held in memory.

Shapes: N images, C channels, H W pixels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


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
        _check_tensor("images", self.images, torch.uint8, (count, channels, height, width))
        _check_tensor("labels", self.labels, torch.int64, (count,))
        if self.masks is not None:
            _check_tensor("masks", self.masks, torch.bool, (count, height, width))
        if self.boxes is not None:
            _check_tensor("boxes", self.boxes, torch.int64, (count, 4))
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                raise ValueError(f"{name} must hold one value per channel ({channels}), got {len(values)}")
        if min(self.std, default=1.0) <= 0:
            raise ValueError(f"std must be > 0, got {self.std}")
        if count and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(
                f"labels must lie in [0, {len(self.classes)}), got {int(self.labels.min())} to {int(self.labels.max())}"
            )

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def num_classes(self) -> int:
        return len(self.classes)


def _check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
