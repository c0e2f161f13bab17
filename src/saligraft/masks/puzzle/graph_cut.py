"""The mask of least energy, exactly: Ishikawa's construction turns a convex energy of levels into one minimum cut.

Ishikawa, PAMI 2003. A block at level k of K = L − 1 becomes K bits of which k are set. Summed over all pairs of bits,
|x_s − x_t| is (k_s − k_t)² + k_s (K − k_s) + k_t (K − k_t), so equal links between all bits of neighbouring blocks give
the squared difference once the rest is taken off the unary costs; convex unary costs keep the bits in order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saligraft import checks
from saligraft.masks.puzzle.energy import MaskEnergy
from saligraft.masks.puzzle.max_flow import SOLVERS, Links, Solver

# Capacities are whole numbers below 2^29: twice that, the most a residual link can hold, still fits 32 bits.
_LARGEST = 1 << 29
# Bits per graph: samples are independent, and a graph that fits the cache is cut faster than one of a whole batch.
_BITS_PER_GRAPH = 8192


def optimal_levels(energy: MaskEnergy, solver: Solver = "scipy") -> Tensor:
    """The levels (B, g, g), int64 in [0, L), of least energy; solved on the CPU, returned to the energy's device.

    Costs are rounded to 29 bits per sample, so a result depends on its own sample alone. Among masks of the same energy
    the one with most of the source is taken with solver "scipy"; "pymaxflow" may take another.
    """
    checks.one_of("solver", solver, tuple(SOLVERS))
    problem = _whole_numbers(energy)
    batch, samples = len(problem[0]), max(1, _BITS_PER_GRAPH // problem[0][0].numel())
    parts = []
    for start in range(0, batch, samples):
        costs, down, across = (part[start : start + samples] for part in problem)
        parts.append(SOLVERS[solver](costs, _links(costs, down, across)).sum(dim=1))
    levels = torch.cat(parts)
    return levels.to(energy.unary.device)


def _whole_numbers(energy: MaskEnergy) -> tuple[Tensor, Tensor, Tensor]:
    """Costs (B, K, g, g) of setting each bit, which is of going one level up, and the weights, in whole numbers."""
    unary, down, across = (part.detach().cpu().double() for part in energy)
    top = unary.shape[1] - 1
    rises = unary.diff(dim=1)
    slack = 1e-5 * unary.abs().max()  # of float32 sums
    if not bool(unary.isfinite().all() & (rises.diff(dim=1) >= -slack).all()):
        raise ValueError("unary costs must be finite and convex in the level, got others")
    rises = rises.cummax(dim=1).values
    down, across = down / top**2, across / top**2

    heaviest = torch.cat((down.flatten(1), across.flatten(1), down.new_zeros(len(down), 1)), dim=1).amax(dim=1)
    bound = rises.abs().amax(dim=(1, 2, 3)) + 4 * top * heaviest  # a block has four neighbours
    scale = (_LARGEST / bound.clamp(min=1e-30))[:, None, None]
    rises, down, across = ((part * scale).round().long() for part in (rises.transpose(0, 1), down, across))

    degree = torch.zeros_like(rises[0])
    degree[:, 1:] += down
    degree[:, :-1] += down
    degree[:, :, 1:] += across
    degree[:, :, :-1] += across
    level = torch.arange(top + 1)
    taken_off = (level * (top - level)).diff()[:, None, None]
    return rises.transpose(0, 1) - degree[:, None] * taken_off, down, across


def _links(costs: Tensor, down: Tensor, across: Tensor) -> Links:
    """Every bit of a block with every bit of the block below and of the one to its right."""
    batch, bits, rows, columns = costs.shape
    node = torch.arange(costs.numel(), dtype=torch.int32).view(costs.shape)
    below, beside = (batch, bits, bits, rows - 1, columns), (batch, bits, bits, rows, columns - 1)

    def joined(vertical: Tensor, horizontal: Tensor) -> Tensor:
        return torch.cat((vertical.expand(below).flatten(), horizontal.expand(beside).flatten())).int()

    return Links(
        joined(node[:, :, None, :-1], node[:, :, None, :, :-1]),
        joined(node[:, None, :, 1:], node[:, None, :, :, 1:]),
        joined(down[:, None, None], across[:, None, None]),
    )
