"""Attentive CutMix: paste the cells that a network attends to most; weigh the label by their area.

Walawalkar et al., ICASSP 2020; §2 of the Saliency Grafting paper. Shapes: B batch, h w cells of the attention grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from saligraft import checks
from saligraft.batch import MixedBatch
from saligraft.masks.top_k import top_k_regions
from saligraft.methods.base import BatchMixer
from saligraft.methods.saliency_grafting import graft_regions
from saligraft.saliency.rescale import resize_saliency


def attentive_cutmix(images: Tensor, labels: Tensor, saliency: Tensor, *, partner: Tensor, k: int = 6) -> MixedBatch:
    """Paste the k cells of the highest saliency (B, h, w) onto the partners (B,). Pure; the grid is saliency's."""
    mask = top_k_regions(saliency, k)
    return graft_regions(images, labels, saliency, partner=partner, mask=mask, label_mixing="area")


@dataclass(frozen=True, kw_only=True)
class AttentiveCutMix(BatchMixer[Tensor]):
    """Draw partners, then paste the most attended cells of each source.

    The map may come from any network, a frozen one as its authors have it or the one in training: it is the
    `saliency` argument. Partners and the coin of `probability` are all that is drawn.
    """

    needs_saliency: ClassVar[bool] = True

    k: int = 6  # N, the cells that are pasted
    grid: int | None = 7  # the map is resized to grid x grid, the authors' 7 x 7; None keeps its own resolution

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole_number("k", self.k, least=1)
        if self.grid is None:
            return
        checks.whole_number("grid", self.grid, least=1)
        if self.k > self.grid**2:
            raise ValueError(f"k must be at most {self.grid**2}, the cells of the grid, got {self.k}")

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The partners (B,)."""
        return self.draw_partners(images, generator)

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: Tensor) -> MixedBatch:
        if saliency is None:
            raise ValueError("saliency must be given to AttentiveCutMix, got None: see SaliencyCapture")
        saliency = saliency.detach()
        if self.grid is not None:
            if self.grid > min(images.shape[2:]):
                raise ValueError(f"grid must not exceed the image {tuple(images.shape[2:])}, got {self.grid}")
            saliency = resize_saliency(saliency, self.grid)
        return attentive_cutmix(images, labels, saliency, partner=drawn, k=self.k)
