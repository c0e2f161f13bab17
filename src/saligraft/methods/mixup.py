"""Mixup: blend two whole images, and their labels, in one proportion.

Zhang et al., ICLR 2018; Table 1 of the Saliency Grafting paper: λ x_i + (1−λ) x_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.grafting import graft
from saligraft.methods.base import BatchMixer, check_batch


def mixup(images: Tensor, labels: Tensor, *, partner: Tensor, source_weight: Tensor) -> MixedBatch:
    """Blend each image (B, C, H, W) with its partner; source_weight (B,) is λ. Pure."""
    check_batch(images, labels, partner)
    checks.per_sample("source_weight", source_weight, len(images))
    checks.mask_values(source_weight, "source_weight")
    mask = source_weight[:, None, None]
    mixed = graft(images, images[partner], mask)
    return MixedBatch(mixed, labels, labels[partner], source_weight, mask, partner)


class MixupDraws(NamedTuple):
    partner: Tensor
    source_weight: Tensor


@dataclass(frozen=True, kw_only=True)
class Mixup(BatchMixer[MixupDraws]):
    """Draw partners and λ ~ Beta(alpha, alpha), then blend. The mask has shape (B, 1, 1)."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("alpha", self.alpha)

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> MixupDraws:
        partner = self.draw_partners(images, generator)
        ratio = self.draw_ratio(images, self.alpha, generator)
        return MixupDraws(partner, draws.to_device(ratio, images.device))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: MixupDraws) -> MixedBatch:
        del saliency  # Mixup looks at no content
        return mixup(images, labels, partner=drawn.partner, source_weight=drawn.source_weight)
