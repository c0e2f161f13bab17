"""SaliencyMix: paste a box around the source's most salient pixel; weigh the label by the box's area.

Uddin et al., ICLR 2021. The peak of the source's own map is the box's centre, at the same place in both images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.masks.peak_box import peak_box
from saligraft.methods.base import BatchMixer, check_batch
from saligraft.methods.cutmix import cutmix
from saligraft.saliency.bottom_up import FineGrained


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

    Without a map the bottom-up fine-grained saliency (Montabone & Soto 2010) of the pixels is taken, as by the
    authors: no network is asked, and `pixel_mean` and `pixel_std` undo the images' normalisation first. With
    ``per="batch"`` ratio and box are the first sample's, as in their code.
    """

    uses_saliency: ClassVar[bool] = True
    saliency_source: ClassVar[str] = "fine-grained"

    alpha: float = 1.0
    pixel_mean: Sequence[float] | None = None  # what was subtracted from the pixels, one per channel or one for all
    pixel_std: Sequence[float] | None = None  # what they were divided by; without the two, channels weigh as they come

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("alpha", self.alpha)
        for name in ("pixel_mean", "pixel_std"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, checks.numbers(name, values))
        if (self.pixel_mean is None) != (self.pixel_std is None):
            raise ValueError(
                f"pixel_mean and pixel_std must be given together, got {self.pixel_mean} and {self.pixel_std}"
            )
        for std in self.pixel_std or ():
            checks.positive("each of pixel_std", std)

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> SaliencyMixDraws:
        partner = self.draw_partners(images, generator)
        ratio = self.draw_ratio(images, self.alpha, generator)
        return SaliencyMixDraws(partner, draws.to_device(ratio, images.device))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: SaliencyMixDraws) -> MixedBatch:
        maps = self._own_maps(images) if saliency is None else saliency
        return saliencymix(images, labels, maps, partner=drawn.partner, ratio=drawn.ratio, one_box=self.per == "batch")

    def _own_maps(self, images: Tensor) -> Tensor:
        mean, std = (None if values is None else tuple(values) for values in (self.pixel_mean, self.pixel_std))
        return FineGrained(mean=mean, std=std)(images)
