"""Attentive CutMix: paste the cells that a network attends to most; weight the label by their area.

Walawalkar et al., ICASSP 2020; §2 of the Saliency Grafting paper. Shapes: B batch, h w cells of the attention grid.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from saligraft import checks
from saligraft.batch import MixedBatch
from saligraft.grafting import graft_onto_partners, pixel_area, spread
from saligraft.maps import usable_maps
from saligraft.masks.top_k import top_k_regions
from saligraft.methods.base import BatchMixer, check_pairs
from saligraft.saliency.rescale import resize_saliency


def attentive_cutmix(images: Tensor, labels: Tensor, saliency: Tensor, *, partner: Tensor, k: int = 6) -> MixedBatch:
    """Paste the k cells of the highest saliency onto the partners. Pure; the grid is saliency's.

    If a sample's map or its partner's is negative or not finite, nothing is pasted: the destination stays.

    Args:
        images: (B, C, H, W).
        labels: (B,) or (B, K).
        saliency: (B, h, w), no finer than the images.
        partner: (B,), the destination of each source.
        k: Cells to paste.

    Returns:
        The mixed images, both labels, the weight of the source's, mask and partners.

    Example:
        >>> import torch, saligraft as sg
        >>> images, labels = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
        >>> sg.attentive_cutmix(images, labels, torch.rand(2, 4, 4), partner=labels.flip(0), k=4).source_weight
        tensor([0.2500, 0.2500])
    """
    check_pairs(images, labels, partner)
    checks.saliency(saliency, batch=len(images), like=images)
    checks.not_finer("saliency", saliency, images)
    usable = usable_maps(saliency)
    mask = top_k_regions(saliency, k) & usable[partner][:, None, None]
    height, width = images.shape[2:]
    shown = spread(mask, height, width)
    mixed = graft_onto_partners(images, partner, shown)
    return MixedBatch(mixed, labels, labels[partner], pixel_area(mask, height, width, shown), mask, partner)


class AttentiveCutMixDraws(NamedTuple):
    """The draws of one batch.

    Args:
        partner: (B,).
    """

    partner: Tensor


@dataclass(frozen=True, kw_only=True)
class AttentiveCutMix(BatchMixer[AttentiveCutMixDraws]):
    """Draw partners, then paste the most attended cells of each source.

    The map may come from any network: a frozen one, as the authors use, or the one in training.

    Args:
        k: N, the number of cells to paste.
        grid: The map is resized to grid x grid; 7 is the authors'. None keeps its resolution.
        probability: Probability that a sample is mixed; the others are left unchanged.
        per: Whether that coin is drawn for each "sample" or once per "batch".

    Example:
        >>> import torch, saligraft as sg
        >>> method = sg.AttentiveCutMix(k=9, grid=6)
        >>> method(torch.rand(4, 3, 24, 24), torch.arange(4), torch.rand(4, 8, 8)).source_weight
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    needs_saliency: ClassVar[bool] = True
    saliency_source: ClassVar[str | None] = "feature-map"

    k: int = 6
    grid: int | None = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole_number("k", self.k, least=1)
        if self.grid is None:
            return
        checks.whole_number("grid", self.grid, least=1)
        if self.k > self.grid**2:
            raise ValueError(f"k must be at most {self.grid**2}, the cells of the grid, got {self.k}")

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> AttentiveCutMixDraws:
        partner = self.draw_partners(images, generator)
        if self.grid is not None:
            checks.grids_fit((self.grid,), images, "grid")
        return AttentiveCutMixDraws(partner)

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: AttentiveCutMixDraws) -> MixedBatch:
        saliency = self._check_saliency(saliency)
        if self.grid is not None:
            saliency = resize_saliency(saliency, self.grid)
        return attentive_cutmix(images, labels, saliency, partner=drawn.partner, k=self.k)
