"""CutMix: paste a random box of the source onto the destination; weight the label by the box's area.

Yun et al., ICCV 2019; §3 of the Saliency Grafting paper: the box's area is proportional to λ.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.grafting import graft_onto_partners, pixel_area
from saligraft.masks.rectangle import rectangle_mask
from saligraft.methods.base import BatchMixer, check_pairs


def cutmix(images: Tensor, labels: Tensor, *, partner: Tensor, box: Tensor) -> MixedBatch:
    """Paste boxes onto the partners. Pure.

    The weight is the pixel area that shows, which clipping at the border made smaller than the drawn λ.

    Args:
        images: (B, C, H, W), (B, C, T, H, W) or (B, C, L).
        labels: (B,) or (B, K).
        partner: (B,), the destination of each source.
        box: (B, 4) as top, left, bottom, right (end exclusive); top 0 and bottom 1 for signals.

    Returns:
        The mixed images, both labels, the weight of the source's, mask and partners.

    Example:
        >>> import torch, saligraft as sg
        >>> images, labels = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
        >>> box = torch.tensor([[0, 0, 4, 4], [0, 0, 8, 4]])
        >>> sg.cutmix(images, labels, partner=labels.flip(0), box=box).source_weight
        tensor([0.2500, 0.5000])
    """
    check_pairs(images, labels, partner, checks.ANY_SHAPE)
    checks.per_sample("box", box, images, "(B, 4)")
    height, width = checks.frame_size(images)
    mask = rectangle_mask(box, height, width)
    mixed = graft_onto_partners(images, partner, mask)
    return MixedBatch(mixed, labels, labels[partner], pixel_area(mask, height, width), mask, partner)


class CutMixDraws(NamedTuple):
    """The draws of one batch.

    Args:
        partner: (B,).
        box: (B, 4).
    """

    partner: Tensor
    box: Tensor


@dataclass(frozen=True, kw_only=True)
class CutMix(BatchMixer[CutMixDraws]):
    """Draw partners, λ ~ Beta(alpha, alpha) and a box of area λ with a uniform centre, then paste.

    Of videos (B, C, T, H, W) the same box is pasted in every frame; of signals (B, C, L) a segment.

    Args:
        alpha: Parameter of the Beta distribution.
        probability: Probability that a sample is mixed; the others are left unchanged.
        per: Whether λ, box and that coin are drawn for each "sample" or once per "batch".

    Example:
        >>> import torch, saligraft as sg
        >>> sg.CutMix(probability=0.5)(torch.rand(4, 3, 8, 8), torch.arange(4)).mask.shape
        torch.Size([4, 8, 8])
    """

    dims: ClassVar[tuple[int, ...]] = checks.ANY_SHAPE

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("alpha", self.alpha)

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> CutMixDraws:
        partner = self.draw_partners(images, generator)
        height, width = checks.frame_size(images)
        ratio = self.draw_ratio(images, self.alpha, generator)[: self._count(images)]
        box = draws.boxes(ratio, height, width, generator=generator).expand(len(images), 4)
        return CutMixDraws(partner, draws.to_device(box, images.device))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: CutMixDraws) -> MixedBatch:
        del saliency
        return cutmix(images, labels, partner=drawn.partner, box=drawn.box)
