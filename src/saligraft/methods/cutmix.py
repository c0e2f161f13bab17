"""CutMix: paste a random box of the source onto the destination; weigh the label by the box's area.

Yun et al., ICCV 2019; §3 of the Saliency Grafting paper: the box's area is proportional to λ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.grafting import graft, pixel_area
from saligraft.masks.rectangle import rectangle_mask
from saligraft.methods.base import BatchMixer, check_batch


def cutmix(images: Tensor, labels: Tensor, *, partner: Tensor, box: Tensor) -> MixedBatch:
    """Paste the boxes (B, 4), as top, left, bottom, right, onto the partners. Pure.

    The weight is the pixel area that shows, which clipping at the border made smaller than the drawn λ.
    """
    check_batch(images, labels, partner)
    checks.per_sample("box", box, len(images), "(B, 4)")
    height, width = images.shape[2:]
    mask = rectangle_mask(box, height, width)
    weight = pixel_area(mask, height, width)
    mixed = graft(images, images[partner], mask)
    return MixedBatch(mixed, labels, labels[partner], weight, mask, partner)


class CutMixDraws(NamedTuple):
    partner: Tensor
    box: Tensor


@dataclass(frozen=True, kw_only=True)
class CutMix(BatchMixer[CutMixDraws]):
    """Draw partners, λ ~ Beta(alpha, alpha) and a box of area λ with a uniform centre, then paste."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("alpha", self.alpha)

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> CutMixDraws:
        partner = self.draw_partners(images, generator)
        height, width = images.shape[2:]
        ratio = self.draw_ratio(images, self.alpha, generator)[: self._count(images)]
        box = draws.boxes(ratio, height, width, generator=generator).expand(len(images), 4)
        return CutMixDraws(partner, draws.to_device(box, images.device))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: CutMixDraws) -> MixedBatch:
        del saliency  # CutMix looks at no content
        return cutmix(images, labels, partner=drawn.partner, box=drawn.box)
