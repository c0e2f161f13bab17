"""SaliencyMix: paste a box around the source's most salient pixel; weigh the label by the box's area.

Uddin et al., ICLR 2021. The peak of the source's own map is the box's centre, at the same place in both images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.masks.peak_box import peak_box
from saligraft.methods.base import BatchMixer, check_batch
from saligraft.methods.cutmix import cutmix
from saligraft.saliency.bottom_up import fine_grained_saliency


def saliencymix(
    images: Tensor, labels: Tensor, saliency: Tensor, *, partner: Tensor, ratio: Tensor, one_box: bool = False
) -> MixedBatch:
    """Paste boxes of area `ratio` (B,) centred at each map's peak; saliency (B, h, w) at any resolution. Pure.

    `one_box` gives every sample the box of the first one, as the authors' code does. A map that is not finite pastes
    nothing.
    """
    check_batch(images, labels, partner)
    checks.saliency(saliency, batch=len(images))
    checks.same_device("saliency", saliency, images)
    box = peak_box(saliency, ratio, *images.shape[2:])
    if one_box:
        box = box[:1].expand(len(images), 4)
    return cutmix(images, labels, partner=partner, box=box)


class SaliencyMixDraws(NamedTuple):
    partner: Tensor
    ratio: Tensor


@dataclass(frozen=True, kw_only=True)
class SaliencyMix(BatchMixer[SaliencyMixDraws]):
    """Draw partners and λ ~ Beta(alpha, alpha), then paste a box of area λ around each source's peak.

    Without a map the bottom-up fine-grained saliency (Montabone & Soto 2010) of the images is taken, as by the
    authors: no network is asked. With ``per="batch"`` ratio and box are the first sample's, as in their code.
    """

    saliency_source: ClassVar[str] = "fine-grained"

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("alpha", self.alpha)

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> SaliencyMixDraws:
        partner = self.draw_partners(images, generator)
        ratio = self.draw_ratio(images, self.alpha, generator)
        return SaliencyMixDraws(partner, draws.to_device(ratio, images.device))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: SaliencyMixDraws) -> MixedBatch:
        maps = fine_grained_saliency(images) if saliency is None else saliency
        return saliencymix(images, labels, maps, partner=drawn.partner, ratio=drawn.ratio, one_box=self.per == "batch")
