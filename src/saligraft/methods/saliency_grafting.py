"""Saliency Grafting: graft randomly chosen salient regions; weight the label by the saliency still visible.

Park et al., AAAI 2022, Section 4. Source i gives, destination j = partner[i] receives.
Shapes: B batch, C channels, H W pixels, h w saliency grid.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.grafting import graft_onto_partners, pixel_area, spread
from saligraft.labels import label_weight
from saligraft.maps import scale_maps
from saligraft.masks.salient import Normalize, check_selection, select_salient
from saligraft.masks.top_k import top_k_regions
from saligraft.methods.base import BatchMixer, check_pairs
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
    select: Callable[[Tensor], Tensor] | None = None,
) -> MixedBatch:
    """Mix one batch for given draws (Section 4). Pure: nothing random, no input changed; the grid is saliency's.

    A sample whose own or whose partner's map is not finite, or negative, is left ungrafted: M = 0, weight 0.

    Args:
        images: (B, C, H, W), (B, C, T, H, W) or (B, C, L).
        labels: (B,) or (B, K).
        saliency: S, (B, h, w), no finer than the images; (B, 1, l) for signals.
        partner: (B,), the destination of each source.
        chosen: P, bool (B, h, w), the randomly chosen regions.
        temperature: T of Eq. 3; smaller selects fewer regions.
        threshold: σ as a multiple of σ_mean; 0 makes every cell salient.
        normalize: Scale of S before the softmax.
        label_mixing: Whether labels are weighted by "saliency" (Eq. 5) or by the pixels' "area".
        norm: Order of the norm in the importance I.
        select: Custom selection S'' of cells, (B, h, w) -> bool (B, h, w); replaces Eq. 3-4.

    Returns:
        The mixed images, both labels, the weight of the source's, mask and partners.

    Example:
        >>> import torch, saligraft as sg
        >>> images, labels, saliency = torch.rand(2, 3, 8, 8), torch.tensor([0, 1]), torch.rand(2, 4, 4)
        >>> chosen, partner = torch.rand(2, 4, 4) < 0.5, torch.tensor([1, 0])
        >>> mixed = sg.graft_salient_regions(images, labels, saliency, partner=partner, chosen=chosen)
        >>> bool((mixed.mask & ~chosen).any())
        False
    """
    check_pairs(images, labels, partner, checks.ANY_SHAPE)
    checks.saliency(saliency, batch=len(images), like=images)
    checks.not_finer("saliency", saliency, images)
    checks.cells("chosen", chosen, saliency)
    checks.one_of("label_mixing", label_mixing, LABEL_MIXINGS)
    checks.norm(norm)
    maps = scale_maps(saliency)  # once, for mask and label
    if select is None:
        check_selection(temperature, threshold, normalize)
        salient = select_salient(maps, temperature, threshold, normalize)  # S''
    else:
        salient = select(saliency)
        checks.cells("result of select", salient, saliency)
    mask = chosen & salient & (maps.usable & maps.usable[partner])  # M = P ⊙ S''  (Eq. 3-4)
    height, width = checks.frame_size(images)
    shown = spread(mask, height, width)
    weight = pixel_area(mask, height, width, shown)
    if label_mixing == "saliency":
        unit = maps.unit(norm)
        weight = label_weight(unit, unit[partner], mask, norm, area=weight)  # λ(S_i, S_j, M)  (Eq. 5)
    mixed = graft_onto_partners(images, partner, shown)  # φ = M ⊙ x_i + (1 − M) ⊙ x_j  (Table 1); last, to save memory
    return MixedBatch(mixed, labels, labels[partner], weight.float(), mask, partner)


class GraftDraws(NamedTuple):
    """The draws of one batch.

    Args:
        partner: (B,).
        grid: Cells a side that the map is resized to.
        chosen: P, bool (B, grid, grid), or (B, 1, grid) for signals; all True for top-k, which samples nothing.
    """

    partner: Tensor
    grid: int
    chosen: Tensor


@dataclass(frozen=True, kw_only=True)
class SaliencyGrafting(BatchMixer[GraftDraws]):
    """Draw partners, a grid and regions, then graft: the paper's method (Section 4).

    Of videos (B, C, T, H, W), with maps (B, h, w), a region is grafted in every frame; signals (B, C, L), with maps
    (B, 1, l), are cut into `grids` segments.

    Args:
        temperature: T of Eq. 3; smaller selects fewer regions.
        alpha: p_B ~ Beta(alpha, alpha).
        grids: Saliency resolutions, of which one is drawn per mini-batch; the map is resized to it.
        threshold: σ as a multiple of σ_mean: 1 is the paper, 0 makes every cell salient.
        normalize: Scale of S before the softmax: "l2", "max", "sum", "minmax" or "none".
        selection: "stochastic", or "top-k": the k most salient cells, without sampling (§5.4).
        k: Cells that "top-k" selects.
        label_mixing: Whether labels are weighted by "saliency" (Eq. 5) or by the pixels' "area", as in the baselines.
        norm: Order of the norm in the importance I.
        probability: Probability that a sample is mixed; the others are left unchanged.
        per: One p_B per "batch" as in the paper, or one per "sample".

    Example:
        >>> import torch, saligraft as sg
        >>> images, labels, saliency = torch.rand(4, 3, 32, 32), torch.arange(4), torch.rand(4, 8, 8)
        >>> mixed = sg.SaliencyGrafting(temperature=0.1)(images, labels, saliency)
        >>> mixed.images.shape, mixed.source_weight.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4]))
    """

    needs_saliency: ClassVar[bool] = True
    saliency_source: ClassVar[str | None] = "feature-map"
    with_originals: ClassVar[bool] = True
    dims: ClassVar[tuple[int, ...]] = checks.ANY_SHAPE

    temperature: float = 0.2
    alpha: float = 2.0
    grids: Sequence[int] = (4, 8)
    threshold: float = 1.0
    normalize: Normalize = "l2"
    selection: Selection = "stochastic"
    k: int = 6
    label_mixing: LabelMixing = "saliency"
    norm: float = 2.0
    per: draws.Per = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grids", checks.grids(self.grids))
        check_selection(self.temperature, self.threshold, self.normalize)
        checks.positive("alpha", self.alpha)
        checks.one_of("selection", self.selection, SELECTIONS)
        checks.one_of("label_mixing", self.label_mixing, LABEL_MIXINGS)
        checks.norm(self.norm)
        checks.whole_number("k", self.k, least=1)
        if self.selection == "top-k" and self.k > min(self.grids) ** 2:
            raise ValueError(f"k must be at most {min(self.grids) ** 2}, the cells of the smallest grid, got {self.k}")

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> GraftDraws:
        partner = self.draw_partners(images, generator)  # j
        checks.grids_fit(self.grids, images)
        grid = draws.grid(self.grids, generator=generator)
        sampling = self.draw_ratio(images, self.alpha, generator)  # p_B ~ Beta(alpha, alpha)
        rows = 1 if images.ndim == 3 else None
        chosen = draws.cells(len(images), grid, sampling, rows=rows, generator=generator)  # P ~ Bern(p_B)
        if self.selection == "top-k":
            chosen = torch.ones_like(chosen)
        return GraftDraws(partner, grid, draws.to_device(chosen, images.device))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: GraftDraws) -> MixedBatch:
        saliency = self._check_saliency(saliency)
        if images.ndim == 3 and saliency.shape[1] != 1:
            raise ValueError(f"saliency of signals must have shape (B, 1, l), got {checks.shape_of(saliency)}")
        return graft_salient_regions(
            images,
            labels,
            resize_saliency(saliency, (1, drawn.grid) if images.ndim == 3 else drawn.grid),
            partner=drawn.partner,
            chosen=drawn.chosen,
            temperature=self.temperature,
            threshold=self.threshold,
            normalize=self.normalize,
            label_mixing=self.label_mixing,
            norm=self.norm,
            select=functools.partial(top_k_regions, k=self.k) if self.selection == "top-k" else None,
        )
