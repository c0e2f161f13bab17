"""Cutout: blank a random square of each image; the label does not change.

DeVries & Taylor, 2017. Shapes: B batch, C channels, H W pixels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.masks.rectangle import rectangle_mask
from saligraft.methods.kinds import ImageTransform


def cutout(images: Tensor, *, box: Tensor, fill: float = 0.0) -> Tensor:
    """Set the boxes to `fill` in all channels. Pure.

    Args:
        images: (B, C, H, W).
        box: (B, 4) as top, left, bottom, right (end exclusive).
        fill: The value inside.

    Returns:
        The images (B, C, H, W), copied.

    Example:
        >>> import torch, saligraft as sg
        >>> sg.cutout(torch.ones(1, 1, 2, 3), box=torch.tensor([[0, 0, 2, 2]]))
        tensor([[[[0., 0., 1.],
                  [0., 0., 1.]]]])
    """
    checks.images(images)
    checks.per_sample("box", box, images, "(B, 4)")
    hole = rectangle_mask(box, images.shape[2], images.shape[3])
    return images.masked_fill(hole[:, None], fill)


@dataclass(frozen=True, kw_only=True)
class Cutout(ImageTransform[Tensor]):
    """Draw a square with a uniform centre, clipped at the border, then blank it.

    Cutout follows normalisation, as in the authors' code, so zero is the mean colour.

    Args:
        size: Side in pixels before clipping; the authors use 16 for CIFAR-10, 8 for CIFAR-100 and 20 for SVHN.
        fill: The value inside; a whole number in [0, 255] for uint8 images, which `as_transform` takes.
        probability: Probability that a sample is cut; the others are left unchanged.
        per: Whether square and coin are drawn for each "sample" or once per "batch".

    Example:
        >>> import torch, saligraft as sg
        >>> sg.Cutout(size=4)(torch.ones(2, 3, 8, 8)).shape
        torch.Size([2, 3, 8, 8])
    """

    size: int = 16
    fill: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole_number("size", self.size, least=1, most=10**6)
        checks.number("fill", self.fill)

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw boxes (B, 4); a sample that is left unchanged has an empty one.

        Args:
            images: (B, C, H, W).
            generator: CPU generator for all random draws; None uses torch's global generator.
        """
        self._check_draw(images, generator)
        limit = torch.tensor(images.shape[2:], device="cpu")
        centre = (torch.rand(self._count(images), 2, generator=generator, device="cpu") * limit).long()
        start = centre - self.size // 2
        end = torch.minimum(start + self.size, limit)
        box = torch.cat((start.clamp(min=0), end), dim=1).expand(len(images), 4)
        box = box * self._coins(images, generator)[:, None]
        return draws.to_device(box, images.device)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        return cutout(images, box=drawn, fill=self.fill)
