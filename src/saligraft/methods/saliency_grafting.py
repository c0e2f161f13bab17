"""Saliency Grafting: graft randomly chosen salient regions; weigh the label by what stays visible.

Park et al., AAAI 2022, Section 4. Source i gives, destination j = partner[i] receives.
Shapes: B batch, C channels, H W pixels, h w saliency grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.grafting import graft, pixel_area
from saligraft.labels import calibrated_weight
from saligraft.masks.salient import NORMALIZATIONS, Normalize, salient_regions, usable_maps
from saligraft.masks.top_k import top_k_regions
from saligraft.methods.base import BatchMixer, check_batch
from saligraft.saliency.rescale import resize_saliency

LabelMixing = Literal["saliency", "area"]
Selection = Literal["stochastic", "top-k"]
LABEL_MIXINGS: tuple[str, ...] = get_args(LabelMixing)
SELECTIONS: tuple[str, ...] = get_args(Selection)


def graft_salient_regions(
    images: Tensor,
    labels: Tensor,
    saliency: Tensor,
    *,
    partner: Tensor,
    chosen: Tensor,
    temperature: float = 0.2,
    threshold: float = 1.0,
    normalize: Normalize = "l2",
    label_mixing: LabelMixing = "saliency",
    norm: float = 2.0,
) -> MixedBatch:
    """Mix one batch for given draws: partner (B,) and chosen (B, h, w), the matrix P. Pure; the grid is saliency's."""
    check_batch(images, labels, partner)
    _check_cells("chosen", chosen, saliency, images)
    mask = chosen & salient_regions(saliency, temperature, threshold, normalize)  # M = P ⊙ S''  (Eq. 3-4)
    return graft_regions(images, labels, saliency, partner=partner, mask=mask, label_mixing=label_mixing, norm=norm)


def graft_regions(
    images: Tensor,
    labels: Tensor,
    saliency: Tensor,
    *,
    partner: Tensor,
    mask: Tensor,
    label_mixing: LabelMixing = "saliency",
    norm: float = 2.0,
) -> MixedBatch:
    """Graft the cells of a given mask M (B, h, w), however they were selected, and mix the labels. Pure.

    A sample whose own or whose partner's map is not finite, or negative, is left ungrafted: M = 0, weight 0.
    """
    check_batch(images, labels, partner)
    _check_cells("mask", mask, saliency, images)
    checks.one_of("label_mixing", label_mixing, LABEL_MIXINGS)
    usable = usable_maps(saliency)
    mask = mask & (usable & usable[partner])[:, None, None]
    mixed = graft(images, images[partner], mask)  # φ = M ⊙ x_i + (1 − M) ⊙ x_j
    height, width = images.shape[2:]
    if label_mixing == "area":
        weight = pixel_area(mask, height, width)
    else:  # λ(S_i, S_j, M_i)  (Eq. 5)
        weight = calibrated_weight(saliency, saliency[partner], mask, norm=norm, image_size=(height, width))
    return MixedBatch(mixed, labels, labels[partner], weight.float(), mask, partner)


def _check_cells(name: str, cells: Tensor, saliency: Tensor, images: Tensor) -> None:
    checks.saliency(saliency, batch=len(images))
    checks.same_device("saliency", saliency, images)
    checks.tensor(name, cells)
    if cells.dtype != torch.bool or cells.shape != saliency.shape:
        expected = checks.shape_of(saliency)
        raise ValueError(f"{name} must be bool of shape {expected}, got {cells.dtype} {checks.shape_of(cells)}")
    checks.same_device(name, cells, images)


class GraftDraws(NamedTuple):
    partner: Tensor
    grid: int
    chosen: Tensor


@dataclass(frozen=True, kw_only=True)
class SaliencyGrafting(BatchMixer[GraftDraws]):
    """Draw partners, a grid and regions, then graft."""

    needs_saliency: ClassVar[bool] = True
    with_originals: ClassVar[bool] = True

    temperature: float = 0.2  # T of Eq. 3: smaller selects fewer regions
    alpha: float = 2.0  # p_B ~ Beta(alpha, alpha)
    grids: Sequence[int] = (4, 8)  # one is drawn per mini-batch; the map is resized to it
    threshold: float = 1.0  # σ as a multiple of σ_mean: 1 is the paper, 0 makes every cell salient
    normalize: Normalize = "l2"  # scale of S before the softmax
    selection: Selection = "stochastic"  # or the k most salient cells, without any draw
    k: int = 6  # cells taken by selection="top-k"
    label_mixing: LabelMixing = "saliency"  # or by pixel area, as the baselines do
    norm: float = 2.0  # order of the norm in the importance I
    per: draws.Per = "batch"  # one p_B per batch as in the paper, or one per sample

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grids", checks.grids(self.grids))
        checks.positive("temperature", self.temperature)
        checks.positive("alpha", self.alpha)
        checks.not_negative("threshold", self.threshold)
        checks.one_of("normalize", self.normalize, NORMALIZATIONS)
        checks.one_of("selection", self.selection, SELECTIONS)
        checks.one_of("label_mixing", self.label_mixing, LABEL_MIXINGS)
        checks.norm(self.norm)
        checks.whole_number("k", self.k, least=1)
        if self.selection == "top-k" and self.k > min(self.grids) ** 2:
            raise ValueError(f"k must be at most {min(self.grids) ** 2}, the cells of the smallest grid, got {self.k}")

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> GraftDraws:
        partner = self.draw_partners(images, generator)
        checks.grids_fit(self.grids, images)
        grid = draws.grid(self.grids, generator=generator)
        sampling = self.draw_ratio(images, self.alpha, generator)  # p_B
        chosen = draws.cells(len(images), grid, sampling, generator=generator)  # P ~ Bern(p_B)
        return GraftDraws(partner, grid, draws.to_device(chosen, images.device))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: GraftDraws) -> MixedBatch:
        if saliency is None:
            raise ValueError("saliency must be given to SaliencyGrafting, got None: see SaliencyCapture")
        saliency = resize_saliency(saliency.detach(), drawn.grid)
        if self.selection == "top-k":
            mask = top_k_regions(saliency, self.k)
        else:  # M = P ⊙ S''  (Eq. 3-4)
            mask = drawn.chosen & salient_regions(saliency, self.temperature, self.threshold, self.normalize)
        return graft_regions(
            images,
            labels,
            saliency,
            partner=drawn.partner,
            mask=mask,
            label_mixing=self.label_mixing,
            norm=self.norm,
        )
