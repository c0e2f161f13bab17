"""SaliencyMix: paste a box around the source's most salient pixel; weight the label by the box's area.

Uddin et al., ICLR 2021. The box is centred at the peak of the source's map, at the same position in both images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.maps import usable_maps
from saligraft.methods.base import BatchMixer, check_batch
from saligraft.methods.cutmix import cutmix
from saligraft.saliency.bottom_up import FineGrained


def saliencymix(
    images: Tensor, labels: Tensor, saliency: Tensor, *, partner: Tensor, ratio: Tensor, one_box: bool = False
) -> MixedBatch:
    """Paste boxes centred at each map's peak. Pure; a map that is not finite pastes nothing.

    Args:
        images: (B, C, H, W).
        labels: (B,) or (B, K).
        saliency: (B, h, w), at any resolution.
        partner: (B,), the destination of each source.
        ratio: (B,) in [0, 1], the box's share of the image before clipping.
        one_box: Whether every sample has the box of the first one, as in the authors' code.

    Returns:
        The mixed images, both labels, the weight of the source's, mask and partners.

    Example:
        >>> import torch, saligraft as sg
        >>> images, labels, saliency = torch.rand(2, 3, 8, 8), torch.tensor([0, 1]), torch.zeros(2, 8, 8)
        >>> saliency[:, 4, 4] = 1
        >>> sg.saliencymix(
        ...     images, labels, saliency, partner=labels.flip(0), ratio=torch.tensor([0.25, 1.0])
        ... ).source_weight
        tensor([0.2500, 1.0000])
    """
    check_batch(images, labels)
    checks.saliency(saliency, batch=len(images), like=images)
    checks.proportions("ratio", ratio, images)
    box = peak_box(saliency, ratio, *images.shape[2:])
    if one_box:
        box = box[:1].expand(len(images), 4)
    return cutmix(images, labels, partner=partner, box=box)


def peak_box(saliency: Tensor, ratio: Tensor, height: int, width: int) -> Tensor:
    """Boxes centred at each map's peak, clipped at the border.

    Sized as `draws.boxes` sizes CutMix's: both authors round half a side down, so an odd side loses one pixel. Ties
    go to the first peak, as in the authors' code; a cell that covers several pixels is represented by its centre pixel.
    A map that is not finite has no peak: its box is empty.

    Args:
        saliency: (B, h, w).
        ratio: (B,) in [0, 1], the box's share of the image before clipping.
        height: H of the image.
        width: W of the image.

    Returns:
        (B, 4) as top, left, bottom, right (end exclusive).
    """
    rows, columns = saliency.shape[1:]
    peak = saliency.flatten(1).argmax(dim=1)
    side = checks.at_least_float32(ratio).sqrt()
    starts, ends = [], []
    for cell, cells, limit in ((peak // columns, rows, height), (peak % columns, columns, width)):
        half = (side * limit).long() // 2
        centre = (2 * cell + 1) * limit // (2 * cells)
        starts.append((centre - half).clamp(min=0))
        ends.append((centre + half).clamp(max=limit))
    box = torch.stack(starts + ends, dim=1)
    return torch.where(usable_maps(saliency)[:, None], box, 0)


class SaliencyMixDraws(NamedTuple):
    """The draws of one batch.

    Args:
        partner: (B,).
        ratio: λ, (B,).
    """

    partner: Tensor
    ratio: Tensor


@dataclass(frozen=True, kw_only=True)
class SaliencyMix(BatchMixer[SaliencyMixDraws]):
    """Draw partners and λ ~ Beta(alpha, alpha), then paste a box of area λ around each source's peak.

    Without a map it uses the bottom-up fine-grained saliency (Montabone & Soto 2010) of the pixels, as the authors do,
    and no network.

    Args:
        alpha: Parameter of the Beta distribution.
        pixel_mean: Mean by which pixels were normalised, one per channel or one for all; undone for the default map.
        pixel_std: Standard deviation likewise; given together with `pixel_mean` or not at all.
        probability: Probability that a sample is mixed; the others are left unchanged.
        per: Whether λ, box and coin are drawn for each "sample", or are the first sample's for all, as in the
            authors' code ("batch").

    Example:
        >>> import torch, saligraft as sg
        >>> sg.SaliencyMix()(torch.rand(4, 3, 16, 16), torch.arange(4)).mask.shape
        torch.Size([4, 16, 16])
    """

    saliency_source: ClassVar[str | None] = "fine-grained"

    alpha: float = 1.0
    pixel_mean: Sequence[float] | None = None
    pixel_std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("alpha", self.alpha)
        mean, std = checks.statistics(self.pixel_mean, self.pixel_std, "pixel_")
        object.__setattr__(self, "pixel_mean", mean)
        object.__setattr__(self, "pixel_std", std)

    @classmethod
    def data_options(cls, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
        return {"pixel_mean": mean, "pixel_std": std}

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> SaliencyMixDraws:
        partner = self.draw_partners(images, generator)
        ratio = self.draw_ratio(images, self.alpha, generator)
        return SaliencyMixDraws(partner, draws.to_device(ratio, images.device))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: SaliencyMixDraws) -> MixedBatch:
        if saliency is None:
            saliency = FineGrained(mean=self.pixel_mean, std=self.pixel_std)(images)
        one_box = self.per == "batch"
        return saliencymix(images, labels, saliency, partner=drawn.partner, ratio=drawn.ratio, one_box=one_box)
