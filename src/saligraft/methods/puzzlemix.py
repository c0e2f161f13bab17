"""Puzzle Mix: the mask that keeps most saliency of both images at few seams; salient blocks move to where they show.

Kim, Choo & Song, ICML 2020; Table 1 of the Saliency Grafting paper: Z ⊙ Πᵢᵀ x_i + (1 − Z) ⊙ Πⱼᵀ x_j.
Source i and destination j = partner[i] both keep what the mask shows of them. Solved on the CPU, on blocks.
Shapes: B batch, C channels, H W pixels, g blocks a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.grafting import graft, pixel_area, spread
from saligraft.masks.puzzle import (
    SOLVERS,
    EnergyTerms,
    Solver,
    block_shares,
    mask_energy,
    move_blocks,
    optimal_levels,
    transport_plan,
)
from saligraft.masks.salient import usable_maps
from saligraft.methods.base import BatchMixer, check_batch


def puzzlemix(
    images: Tensor,
    labels: Tensor,
    saliency: Tensor,
    *,
    partner: Tensor,
    ratio: Tensor,
    grid: int,
    terms: EnergyTerms = EnergyTerms(),  # noqa: B008  (an immutable tuple)
    transport_cost: float | None = 0.8,
    transport_grid: int | None = None,
    solver: Solver = "scipy",
    shown: tuple[Tensor, Tensor] | None = None,
) -> MixedBatch:
    """Mix one batch for given draws: partner (B,), λ as ratio (B,) and the block count; saliency (B, h, w) of any size.

    `transport_cost` is ξ, None leaves blocks in place; `transport_grid` moves smaller blocks than the mask has.
    `shown` gives other pixels to show, as source and as destination (already in the partners' order): the authors'
    adversarial noise. Energy and transport see the originals. A sample that meets itself, or one of whose maps is not
    finite, is left as it is or shows its destination alone.
    """
    check_batch(images, labels, partner)
    checks.saliency(saliency, batch=len(images))
    checks.same_device("saliency", saliency, images)
    _check_solvable(images, ratio)
    finite = usable_maps(saliency)
    usable = (finite & finite[partner])[:, None, None]
    energy = mask_energy(images, block_shares(saliency, grid), partner, ratio, terms)
    mask = optimal_levels(energy, solver) / (terms.levels - 1) * usable

    source, destination = (images, images[partner]) if shown is None else shown
    if transport_cost is not None:
        mask = spread(mask, *2 * (max(grid, transport_grid or grid),))
        moved = usable & (partner != torch.arange(len(partner), device=partner.device))[:, None, None]
        shares = block_shares(saliency, mask.shape[1])
        visible = torch.cat((mask > 0, mask < 1)) & moved.repeat(2, 1, 1)
        plan = transport_plan(torch.cat((shares, shares[partner])), visible, transport_cost)
        source, destination = move_blocks(torch.cat((source, destination)), plan).chunk(2)
    mixed = graft(source, destination, mask)
    weight = pixel_area(mask, *images.shape[2:])
    return MixedBatch(mixed, labels, labels[partner], weight, mask, partner)


def _check_solvable(images: Tensor, ratio: Tensor) -> None:
    """Values too, on any device: the mask is solved on the CPU, so that nothing waits longer for it."""
    checks.per_sample("ratio", ratio, len(images))
    checks.same_device("ratio", ratio, images)
    checks.mask_values(ratio, "ratio")
    finite = images.isfinite().flatten(1).all(dim=1)
    if not bool(finite.all()):
        raise ValueError(
            f"images must be finite for PuzzleMix, got NaN or infinity in sample {int((~finite).nonzero()[0])}"
        )


class PuzzleMixDraws(NamedTuple):
    partner: Tensor
    ratio: Tensor
    grid: int


@dataclass(frozen=True, kw_only=True)
class PuzzleMix(BatchMixer[PuzzleMixDraws]):
    """Draw partners, λ ~ Beta(alpha, alpha) and a block count, then solve for mask and transport.

    With an `adversarial_probability` it trains by ``training_step(model, PuzzleMix(...))`` alone: the noise needs the
    gradient, and a method is handed only saliency.
    """

    needs_saliency: ClassVar[bool] = True
    saliency_source: ClassVar[str] = "input-gradient"

    alpha: float = 1.0  # λ is the prior of the mask's mean, not the mean itself
    grids: Sequence[int] = (2, 4, 8, 16)  # block counts a side; one is drawn per mini-batch
    beta: float = 1.2  # label smoothness
    gamma: float = 0.5  # data smoothness
    eta: float = 0.2  # weight of the prior
    levels: int = 3  # values of the mask: {0, 1/2, 1}
    pixel_std: float | Sequence[float] = 0.25  # what images were divided by; about 0.25 on CIFAR and ImageNet
    neighbourhood: int = 4  # side in pixels of the cells compared along a seam
    transport_cost: float | None = 0.8  # ξ; None leaves blocks in place
    transport_grid: int | None = None  # least blocks a side for the transport; the authors' CIFAR commands amount to 8
    solver: Solver = "scipy"  # "pymaxflow" is faster, and under the GPL
    adversarial_probability: float = 0.0  # of noise on the source, and on the destination; the authors' commands: 0.1
    adversarial_radius: float = 10 / 255  # largest change of a pixel in [0, 1]
    pixel_mean: float | Sequence[float] | None = None  # what was subtracted; noisy pixels stay in [0, 1] if it is known
    per: draws.Per = "batch"  # one λ per batch as by the authors, or one per sample

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grids", checks.grids(self.grids))
        checks.positive("alpha", self.alpha)
        checks.one_of("solver", self.solver, tuple(SOLVERS))
        if self.transport_cost is not None:
            checks.positive("transport_cost", self.transport_cost)
        if self.transport_grid is not None:
            checks.whole_number("transport_grid", self.transport_grid, least=1)
        checks.probability("adversarial_probability", self.adversarial_probability)
        checks.positive("adversarial_radius", self.adversarial_radius)
        if self.pixel_mean is not None:
            for mean in self.pixel_mean if isinstance(self.pixel_mean, Sequence) else (self.pixel_mean,):
                checks.probability("pixel_mean", mean)
        self.terms.check()

    @property
    def terms(self) -> EnergyTerms:
        return EnergyTerms(self.beta, self.gamma, self.eta, self.levels, self.pixel_std, self.neighbourhood)

    def without_noise(self) -> Self:
        """The same but for the adversarial noise: what mixes for given saliency."""
        return replace(self, adversarial_probability=0.0)

    @property
    def moves_pixels(self) -> bool:
        return self.transport_cost is not None

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> PuzzleMixDraws:
        if self.adversarial_probability:
            # Said here, which every step passes, rather than trained silently without the noise.
            raise ValueError(
                "adversarial_probability must be 0 where PuzzleMix is handed saliency and no gradient, got "
                f"{self.adversarial_probability!r}: training_step(model, method) gives the step that makes the noise"
            )
        partner = self.draw_partners(images, generator)
        checks.grids_fit((*self.grids, self.transport_grid or 1), images)
        grid = draws.grid(self.grids, generator=generator)
        ratio = self.draw_ratio(images, self.alpha, generator)
        return PuzzleMixDraws(partner, draws.to_device(ratio, images.device), grid)

    def apply(
        self,
        images: Tensor,
        labels: Tensor,
        saliency: Tensor | None,
        drawn: PuzzleMixDraws,
        shown: tuple[Tensor, Tensor] | None = None,
    ) -> MixedBatch:
        """Mix for given draws; `shown` as in `puzzlemix`."""
        if saliency is None:
            raise ValueError("saliency must be given to PuzzleMix, got None: see SaliencyCapture")
        return puzzlemix(
            images,
            labels,
            saliency,
            partner=drawn.partner,
            ratio=drawn.ratio,
            grid=drawn.grid,
            terms=self.terms,
            transport_cost=self.transport_cost,
            transport_grid=self.transport_grid,
            solver=self.solver,
            shown=shown,
        )
