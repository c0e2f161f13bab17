"""Cutout: blank a random square of each image; the label stays.

DeVries & Taylor, 2017. Shapes: B batch, C channels, H W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.masks.rectangle import rectangle_mask
from saligraft.methods.kinds import ImageTransform


def cutout(images: Tensor, *, box: Tensor, fill: float = 0.0) -> Tensor:
    """Set the boxes (B, 4), as top, left, bottom, right (end exclusive), to `fill` in all channels. Pure."""
    checks.images(images)
    checks.same_device("box", box, images)
    hole = rectangle_mask(box, images.shape[2], images.shape[3])
    if len(box) != len(images):
        raise ValueError(f"box must have one entry per image: expected {len(images)}, got {len(box)}")
    return images.masked_fill(hole[:, None], fill)


@dataclass(frozen=True, kw_only=True)
class Cutout(ImageTransform[Tensor]):
    """Draw a square with a uniform centre, clipped at the border, then blank it.

    Zero is the mean colour, since images come normalised: Cutout stands after normalisation, as its authors have it.
    """

    size: int = 16  # side in pixels before clipping: the authors' for CIFAR-10 (8 for CIFAR-100, 20 for SVHN)
    fill: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole_number("size", self.size, least=1, most=10**6)
        if isinstance(self.fill, bool) or not isinstance(self.fill, int | float):
            raise TypeError(f"fill must be a number, got {type(self.fill).__name__}")
        checks.not_absurd("fill", self.fill)

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Boxes (B, 4); a sample that is passed over has an empty one."""
        self._check_draw(images, generator)
        limit = torch.tensor(images.shape[2:])
        centre = (torch.rand(self._count(images), 2, generator=generator) * limit).long()
        start = centre - self.size // 2
        end = torch.minimum(start + self.size, limit)
        box = torch.cat((start.clamp(min=0), end), dim=1).expand(len(images), 4)
        box = box * self._coins(images, generator)[:, None]
        return draws.to_device(box, images.device)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        return cutout(images, box=drawn, fill=self.fill)
