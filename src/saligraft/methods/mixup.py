"""Mixup: blend two images, and their labels, in one proportion.

Zhang et al., ICLR 2018; Table 1 of the Saliency Grafting paper: λ x_i + (1−λ) x_j.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.grafting import graft_onto_partners
from saligraft.methods.base import BatchMixer, check_pairs


def mixup(images: Tensor, labels: Tensor, *, partner: Tensor, source_weight: Tensor) -> MixedBatch:
    """Blend each image with its partner. Pure.

    Args:
        images: (B, C, H, W), (B, C, T, H, W) or (B, C, L).
        labels: (B,) or (B, K).
        partner: (B,), the destination of each source.
        source_weight: λ, (B,) in [0, 1].

    Returns:
        The mixed images, both labels, the weight of the source's, mask and partners.

    Example:
        >>> import torch, saligraft as sg
        >>> images, labels = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1), torch.tensor([0, 1])
        >>> mixed = sg.mixup(images, labels, partner=labels.flip(0), source_weight=torch.tensor([0.25, 0.25]))
        >>> mixed.images.flatten()
        tensor([0.7500, 0.2500])
    """
    check_pairs(images, labels, partner, checks.ANY_SHAPE)
    checks.proportions("source_weight", source_weight, images)
    mask = source_weight[:, None, None]
    mixed = graft_onto_partners(images, partner, mask)
    return MixedBatch(mixed, labels, labels[partner], source_weight, mask, partner)


class MixupDraws(NamedTuple):
    """The draws of one batch.

    Args:
        partner: (B,).
        source_weight: λ, (B,).
    """

    partner: Tensor
    source_weight: Tensor


@dataclass(frozen=True, kw_only=True)
class Mixup(BatchMixer[MixupDraws]):
    """Draw partners and λ ~ Beta(alpha, alpha), then blend. The mask has shape (B, 1, 1).

    Videos (B, C, T, H, W) and signals (B, C, L) are blended likewise.

    Args:
        alpha: Parameter of the Beta distribution.
        probability: Probability that a sample is mixed; the others are left unchanged.
        per: Whether λ and that coin are drawn for each "sample" or once per "batch".

    Example:
        >>> import torch, saligraft as sg
        >>> sg.Mixup(alpha=0.2)(torch.rand(4, 3, 8, 8), torch.arange(4)).mask.shape
        torch.Size([4, 1, 1])
    """

    blends: ClassVar[bool] = True
    dims: ClassVar[tuple[int, ...]] = checks.ANY_SHAPE

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("alpha", self.alpha)

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> MixupDraws:
        partner = self.draw_partners(images, generator)
        ratio = self.draw_ratio(images, self.alpha, generator)
        return MixupDraws(partner, draws.to_device(ratio, images.device))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: MixupDraws) -> MixedBatch:
        del saliency
        return mixup(images, labels, partner=drawn.partner, source_weight=drawn.source_weight)
