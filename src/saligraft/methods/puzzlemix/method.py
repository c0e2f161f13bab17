"""PuzzleMix: the mask that keeps most saliency of both images with few seams; salient blocks move to visible places.

Kim, Choo & Song, ICML 2020; Table 1 of the Saliency Grafting paper: Z ⊙ Πᵢᵀ x_i + (1 − Z) ⊙ Πⱼᵀ x_j.
Source i and destination j = partner[i] both keep what the mask shows of them. Solved for blocks, on the CPU.
Shapes: B batch, C channels, H W pixels, g blocks per side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, get_args

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import AlteredBatch, MixedBatch
from saligraft.grafting import graft, pixel_area, spread
from saligraft.maps import usable_maps
from saligraft.methods.base import BatchMixer, check_pairs
from saligraft.methods.puzzlemix.energy import EnergyTerms, block_shares, mask_energy
from saligraft.methods.puzzlemix.graph_cut import Solver, optimal_levels
from saligraft.methods.puzzlemix.transport import move_blocks, transport_plan


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
    solver: Solver = "auto",
    shown: tuple[Tensor, Tensor] | None = None,
) -> MixedBatch:
    """Mix one batch for given draws. Pure except for the solver; energy and transport use the originals.

    A sample paired with itself is left unchanged; if a map of a pair is not finite, only the destination shows.

    Args:
        images: (B, C, H, W), finite.
        labels: (B,) or (B, K).
        saliency: (B, h, w), of any size.
        partner: (B,), the destination of each source.
        ratio: λ, (B,) in [0, 1].
        grid: g, blocks per side.
        terms: Weights of the energy.
        transport_cost: ξ; None leaves blocks in place.
        transport_grid: Blocks per side of the transport, if more than the mask's.
        solver: "scipy", "pymaxflow", or "auto": PyMaxflow if it is installed.
        shown: Other pixels to show, source and destination (in the partners' order), for adversarial noise; None for
            the images.

    Returns:
        The mixed images, both labels, the weight of the source's, mask and partners.

    Example:
        >>> import torch, saligraft as sg
        >>> images, labels, saliency = torch.rand(2, 3, 16, 16), torch.tensor([0, 1]), torch.rand(2, 16, 16)
        >>> ratio = torch.tensor([0.5, 0.5])
        >>> sg.puzzlemix(images, labels, saliency, partner=labels.flip(0), ratio=ratio, grid=4).mask.shape
        torch.Size([2, 4, 4])
    """
    check_pairs(images, labels, partner)
    checks.saliency(saliency, batch=len(images), like=images)
    terms.check()
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
    kind = MixedBatch if transport_cost is None else AlteredBatch
    return kind(mixed, labels, labels[partner], weight, mask, partner)


def _check_solvable(images: Tensor, ratio: Tensor) -> None:
    """Check values on any device: the mask is solved on the CPU anyway."""
    checks.proportions("ratio", ratio, images)
    finite = images.isfinite().flatten(1).all(dim=1)
    if not bool(finite.all()):
        raise ValueError(
            f"images must be finite for PuzzleMix, got NaN or infinity in sample {int((~finite).nonzero()[0])}"
        )


class PuzzleMixDraws(NamedTuple):
    """The draws of one batch.

    Args:
        partner: (B,).
        ratio: λ, (B,).
        grid: Blocks per side.
    """

    partner: Tensor
    ratio: Tensor
    grid: int


@dataclass(frozen=True, kw_only=True)
class PuzzleMix(BatchMixer[PuzzleMixDraws]):
    """Draw partners, λ ~ Beta(alpha, alpha) and a block count, then solve for mask and transport.

    With an `adversarial_probability` only ``training_step(model, PuzzleMix(...))`` can train with it: the noise needs
    the gradient, and a method gets only saliency.

    Args:
        alpha: Parameter of the Beta distribution; λ is the prior of the mask's mean, not the mean itself.
        grids: Blocks per side; one is drawn per mini-batch.
        beta: Weight of label smoothness.
        gamma: Weight of data smoothness.
        eta: Weight of the prior.
        levels: Number of values of the mask: 3 means {0, 1/2, 1}.
        pixel_std: Standard deviation by which images were normalised; about 0.25 on CIFAR and ImageNet.
        neighbourhood: Side in pixels of the cells compared along a seam.
        transport_cost: ξ; None leaves blocks in place.
        transport_grid: Minimum blocks per side of the transport; the authors' CIFAR commands amount to 8.
        solver: "scipy" (BSD), "pymaxflow" (GPL, faster), or "auto": PyMaxflow if installed; the masks are the same.
        adversarial_probability: Probability of noise on the source, and on the destination; the authors use 0.1.
        adversarial_radius: Largest change of a pixel in [0, 1].
        pixel_mean: Mean by which images were normalised; if set, noisy pixels are clamped to [0, 1].
        probability: Probability that a sample is mixed; the others are left unchanged.
        per: One λ per "batch", as in the authors' code, or one per "sample".

    Example:
        >>> import saligraft as sg
        >>> sg.PuzzleMix(transport_cost=None).moves_pixels
        False
    """

    needs_saliency: ClassVar[bool] = True
    saliency_source: ClassVar[str | None] = "input-gradient"
    blends: ClassVar[bool] = True

    alpha: float = 1.0
    grids: Sequence[int] = (2, 4, 8, 16)
    beta: float = 1.2
    gamma: float = 0.5
    eta: float = 0.2
    levels: int = 3
    pixel_std: float | Sequence[float] = 0.25
    neighbourhood: int = 4
    transport_cost: float | None = 0.8
    transport_grid: int | None = None
    solver: Solver = "auto"
    adversarial_probability: float = 0.0
    adversarial_radius: float = 10 / 255
    pixel_mean: float | Sequence[float] | None = None
    per: draws.Per = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grids", checks.grids(self.grids))
        object.__setattr__(self, "moves_pixels", self.transport_cost is not None)
        checks.positive("alpha", self.alpha)
        checks.one_of("solver", self.solver, get_args(Solver))
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
        """The weights of the energy."""
        return EnergyTerms(self.beta, self.gamma, self.eta, self.levels, self.pixel_std, self.neighbourhood)

    def without_noise(self) -> Self:
        return replace(self, adversarial_probability=0.0) if self.adversarial_probability else self

    @classmethod
    def data_options(cls, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
        return {"pixel_mean": mean, "pixel_std": std}

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> PuzzleMixDraws:
        if self.adversarial_probability:
            # Raised here, which every step calls, instead of silently training without the noise.
            raise ValueError(
                "adversarial_probability must be 0 where PuzzleMix is given saliency and no gradient, got "
                f"{self.adversarial_probability!r}: training_step(model, method) returns the step that makes the noise"
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
        """Mix for given draws.

        Args:
            images: (B, C, H, W).
            labels: (B,) or (B, K).
            saliency: (B, h, w).
            drawn: What `draw` returned.
            shown: Images to show, as in `puzzlemix`.
        """
        return puzzlemix(
            images,
            labels,
            self._check_saliency(saliency),
            partner=drawn.partner,
            ratio=drawn.ratio,
            grid=drawn.grid,
            terms=self.terms,
            transport_cost=self.transport_cost,
            transport_grid=self.transport_grid,
            solver=self.solver,
            shown=shown,
        )
