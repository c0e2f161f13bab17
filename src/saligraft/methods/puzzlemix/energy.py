"""The energy of a block mask in PuzzleMix: lost saliency, seams, and distance from the mixing ratio.

Kim, Choo & Song, ICML 2020, Section 4.1; scales as in the authors' code. Shapes: B batch, C channels, H W pixels,
g blocks per side, L levels of the mask. Source i shows where the mask is 1, destination j = partner[i] where it is 0.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from saligraft import checks
from saligraft.maps import scale_maps
from saligraft.saliency.rescale import resize_saliency

# The authors divide beta by the blocks per side and by this, so that one beta suits every block count.
_BETA_SCALE = 16
# λ stays this far from 0 and 1: the rarest level then has the authors' least probability, 1e-8, and costs stay convex.
_LEAST_RATIO = 1e-4


class EnergyTerms(NamedTuple):
    """Weights of the energy and scale of its pixels; the defaults are the authors' values.

    Args:
        beta: Weight of label smoothness: neighbouring blocks should have the same level.
        gamma: Weight of data smoothness: a seam costs more where the two images differ across it.
        eta: Weight of the prior: the mask's mean should be near the mixing ratio.
        levels: Number of values of the mask: 3 means {0, 1/2, 1}.
        pixel_std: Standard deviation by which images were normalised (one number, or one per channel); pixels are
            compared in [0, 1].
        neighbourhood: Side in pixels of the cells along a seam whose means are compared; at most a block.
    """

    beta: float = 1.2
    gamma: float = 0.5
    eta: float = 0.2
    levels: int = 3
    pixel_std: float | Sequence[float] = 0.25
    neighbourhood: int = 4

    def check(self) -> None:
        """Check that every value is in its range."""
        for name in ("beta", "gamma", "eta"):
            checks.not_negative(name, getattr(self, name))
        checks.whole_number("levels", self.levels, least=2, most=1000)
        checks.whole_number("neighbourhood", self.neighbourhood, least=1)
        for std in self.pixel_std if isinstance(self.pixel_std, Sequence) else (self.pixel_std,):
            checks.positive("pixel_std", std)


class MaskEnergy(NamedTuple):
    """E(k) = Σ unary[k_s] + Σ weight_st (z_s − z_t)² over neighbours, with z = k / (L − 1).

    Args:
        unary: (B, L, g, g), the cost of each level in each block, convex in the level.
        down: (B, g − 1, g), >= 0: weight between a block and the one below.
        across: (B, g, g − 1), >= 0: weight between a block and the one to its right.
    """

    unary: Tensor
    down: Tensor
    across: Tensor


def block_shares(saliency: Tensor, grid: int) -> Tensor:
    """Compute each block's share of the map's total; shares of a map that is not finite are zero.

    Args:
        saliency: (B, h, w).
        grid: g, blocks per side.

    Returns:
        (B, g, g).
    """
    blocks = resize_saliency(saliency.detach(), grid)
    maps = scale_maps(blocks)
    shares = maps.values / maps.values.sum(dim=(1, 2), keepdim=True)
    return torch.where(maps.usable & (maps.peak > 0), shares, 0.0)


def mask_energy(images: Tensor, shares: Tensor, partner: Tensor, ratio: Tensor, terms: EnergyTerms) -> MaskEnergy:
    """Compute the energy terms of a batch. Pure.

    Unlike the authors' code it clamps weights that strong edges would make negative to 0 (a swap cannot find the
    minimum of theirs), and images need not divide evenly into blocks.

    Args:
        images: (B, C, H, W).
        shares: (B, g, g), from `block_shares`.
        partner: (B,).
        ratio: λ, (B,).
        terms: Weights, already validated.
    """
    grid = shares.shape[1]
    smoothness = terms.beta / grid / _BETA_SCALE
    show_source, show_destination = shares[partner], shares  # a block that shows one image loses the other's saliency
    vertical, horizontal = _seams(images, partner, grid, terms)
    data = smoothness * terms.gamma
    show_source = show_source + data * (_both_sides(vertical.source) + _both_sides_across(horizontal.source))
    show_destination = show_destination + data * (
        _both_sides(vertical.destination) + _both_sides_across(horizontal.destination)
    )
    level = torch.linspace(0, 1, terms.levels, device=shares.device, dtype=shares.dtype)[:, None, None]
    unary = torch.lerp(show_destination[:, None], show_source[:, None], level)
    prior = _prior(ratio.to(shares), terms.levels) * (terms.eta / grid**2)
    down = smoothness + data * vertical.seam
    across = smoothness + data * horizontal.seam.mT
    return MaskEnergy(unary + prior[:, :, None, None], down.clamp(min=0), across.clamp(min=0))


def _prior(ratio: Tensor, levels: int) -> Tensor:
    """−log of the binomial probability of each level, (B, L): convex in the level, least near λ (L − 1)."""
    ratio = ratio.clamp(_LEAST_RATIO, 1 - _LEAST_RATIO)[:, None]
    top = levels - 1
    level = torch.arange(levels, device=ratio.device)
    ways = torch.tensor([math.log(math.comb(top, k)) for k in range(levels)], device=ratio.device, dtype=ratio.dtype)
    return -(ways + level * ratio.log() + (top - level) * (1 - ratio).log())


class _Seams(NamedTuple):
    """The bilinear cost of a seam, z z' d11 + (1−z)(1−z') d00 + z(1−z') d10 + (1−z) z' d01, as unary and pairwise."""

    source: tuple[Tensor, Tensor]
    """Cost of the source in the block before and after each seam, (B, g − 1, g)."""
    destination: tuple[Tensor, Tensor]
    seam: Tensor
    """Weight of (z − z')²."""


def _seams(images: Tensor, partner: Tensor, grid: int, terms: EnergyTerms) -> tuple[_Seams, _Seams]:
    """Vertical neighbours as (B, g − 1, g), and horizontal ones transposed to the same form."""
    sides = [max(1, size // grid // terms.neighbourhood) for size in images.shape[2:]]
    cells = adaptive_avg_pool2d(images.detach().float(), (grid * sides[0], grid * sides[1]))
    std = torch.as_tensor(terms.pixel_std, device=cells.device, dtype=cells.dtype)
    if std.ndim and len(std) != images.shape[1]:
        raise ValueError(f"pixel_std must be one number or one per channel: expected {images.shape[1]}, got {len(std)}")
    cells = cells * std.view(-1, 1, 1)
    return _seams_down(cells, partner, *sides), _seams_down(cells.mT, partner, *sides[::-1])


def _seams_down(cells: Tensor, partner: Tensor, rows: int, columns: int) -> _Seams:
    """Compare the last cells of each block with the first of the one below; a block has rows × columns cells."""
    before, after = cells[:, :, rows - 1 : -1 : rows], cells[:, :, rows::rows]

    def difference(above: Tensor, below: Tensor) -> Tensor:
        along = (above - below).abs().mean(dim=1)
        return along.view(*along.shape[:2], -1, columns).mean(dim=-1)

    d11 = difference(before, after)
    d00 = d11[partner]
    d10, d01 = difference(before, after[partner]), difference(before[partner], after)
    source = ((d10 + d11) / 2, (d01 + d11) / 2)
    destination = ((d01 + d00) / 2, (d10 + d00) / 2)
    return _Seams(source, destination, (d10 + d01 - d11 - d00) / 2)


def _both_sides(costs: tuple[Tensor, Tensor]) -> Tensor:
    """Add each seam's two costs to the blocks before and after it: (B, g − 1, g) twice -> (B, g, g)."""
    before, after = costs
    none = before.new_zeros(before.shape[0], 1, before.shape[2])
    return torch.cat((before, none), dim=1) + torch.cat((none, after), dim=1)


def _both_sides_across(costs: tuple[Tensor, Tensor]) -> Tensor:
    return _both_sides(costs).mT
