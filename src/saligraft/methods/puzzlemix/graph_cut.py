"""The exact mask of minimum energy: Ishikawa's construction turns a convex energy of levels into one minimum cut.

Ishikawa, PAMI 2003. A block at level k of K = L − 1 becomes K bits of which k are set. Summed over all pairs of bits,
|x_s − x_t| is (k_s − k_t)² + k_s (K − k_s) + k_t (K − k_t), so equal links between all bits of neighbouring blocks give
the squared difference once the rest is subtracted from the unary costs; convex unary costs keep the bits in order.
Optional libraries compute the cut: PyMaxflow (GPL), which is faster, or SciPy (BSD). The masks are the same.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from saligraft import checks
from saligraft.import_path import install_command
from saligraft.methods.puzzlemix.energy import MaskEnergy

Solver = Literal["auto", "scipy", "pymaxflow"]

# Capacities are integers below 2^29: twice that, the most a residual link can hold, still fits in 32 bits.
_LARGEST = 1 << 29
# Bits per graph: samples are independent, and a graph that fits the cache is cut faster than one of the entire batch.
_BITS_PER_GRAPH = 8192


def optimal_levels(energy: MaskEnergy, solver: Solver = "auto") -> Tensor:
    """Find the levels of minimum energy; solved on the CPU, returned on the energy's device.

    Costs are rounded to 29 bits per sample, so a result depends only on its own sample. Among masks of the same energy
    every solver finds the one that shows most of the source.

    Args:
        energy: From `mask_energy`; finite, and convex in the level.
        solver: "scipy", "pymaxflow", or "auto": PyMaxflow if it is installed.

    Returns:
        Levels (B, g, g), int64 in [0, L).
    """
    checks.one_of("solver", solver, get_args(Solver))
    cut = SOLVERS[("pymaxflow" if importlib.util.find_spec("maxflow") else "scipy") if solver == "auto" else solver]
    problem = _integer_costs(energy)
    batch, samples = len(problem[0]), max(1, _BITS_PER_GRAPH // problem[0][0].numel())
    parts = []
    for start in range(0, batch, samples):
        costs, down, across = (part[start : start + samples] for part in problem)
        parts.append(cut(costs, _links(costs, down, across)).sum(dim=1))
    levels = torch.cat(parts)
    return levels.to(energy.unary.device)


def _integer_costs(energy: MaskEnergy) -> tuple[Tensor, Tensor, Tensor]:
    """Integer costs (B, K, g, g) of setting each bit, i.e. of going one level up, and integer weights."""
    unary, down, across = (part.detach().cpu().double() for part in energy)
    top = unary.shape[1] - 1
    rises = unary.diff(dim=1)
    slack = 1e-5 * unary.abs().max()  # rounding of float32 sums
    if not bool(unary.isfinite().all() & (rises.diff(dim=1) >= -slack).all()):
        raise ValueError("unary costs must be finite and convex in the level")
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
    level = torch.arange(top + 1, device="cpu")
    correction = (level * (top - level)).diff()[:, None, None]
    return rises.transpose(0, 1) - degree[:, None] * correction, down, across


def _links(costs: Tensor, down: Tensor, across: Tensor) -> Links:
    """Link every bit of a block with every bit of the block below and of the one to its right."""
    batch, bits, rows, columns = costs.shape
    node = torch.arange(costs.numel(), dtype=torch.int32, device="cpu").view(costs.shape)
    below, beside = (batch, bits, bits, rows - 1, columns), (batch, bits, bits, rows, columns - 1)

    def joined(vertical: Tensor, horizontal: Tensor) -> Tensor:
        return torch.cat((vertical.expand(below).flatten(), horizontal.expand(beside).flatten())).int()

    return Links(
        joined(node[:, :, None, :-1], node[:, :, None, :, :-1]),
        joined(node[:, None, :, 1:], node[:, None, :, :, 1:]),
        joined(down[:, None, None], across[:, None, None]),
    )


class Links(NamedTuple):
    """Undirected links (n,), int32, between numbered bits: each costs its capacity where its two ends differ.

    Args:
        first: One end of each link.
        second: The other end.
        capacity: >= 0.
    """

    first: Tensor
    second: Tensor
    capacity: Tensor


def scipy_cut(costs: Tensor, links: Links) -> Tensor:
    """Find the bits that minimise Σ costs over set bits + Σ capacities of cut links.

    Args:
        costs: Integers below 2^31.
        links: Between the bits, numbered in the order of `costs`.

    Returns:
        Bits, bool of the shape of `costs`; of several minima the one with most bits set.
    """
    sparse = _needed("scipy.sparse", f"scipy: {install_command('puzzle')}")
    graphs = _needed("scipy.sparse.csgraph", f"scipy: {install_command('puzzle')}")
    flat = costs.flatten().int()
    bits = torch.ones(len(flat) + 2, dtype=torch.bool, device="cpu")
    source, sink = len(flat), len(flat) + 1
    dear, cheap = (bit.flatten().int() for bit in ((flat > 0).nonzero(), (flat < 0).nonzero()))
    tails = torch.cat((links.first, links.second, torch.full_like(dear, source), cheap))
    heads = torch.cat((links.second, links.first, dear, torch.full_like(cheap, sink)))
    capacity = torch.cat((links.capacity, links.capacity, flat[dear], -flat[cheap]))
    shape = (len(bits), len(bits))
    network = sparse.csr_array((capacity.numpy(), (tails.numpy(), heads.numpy())), shape=shape)
    residual = network - graphs.maximum_flow(network, source, sink).flow
    residual.eliminate_zeros()
    reached = graphs.breadth_first_order(residual, source, return_predecessors=False)
    bits[torch.from_numpy(reached).long()] = False  # the others are set, at the cost of their link to the source
    return bits[:-2].view(costs.shape)


def pymaxflow_cut(costs: Tensor, links: Links) -> Tensor:
    """`scipy_cut` by the algorithm of Boykov and Kolmogorov."""
    maxflow = _needed("maxflow", "PyMaxflow, which is under the GPL: pip install PyMaxflow")
    graph = maxflow.GraphInt(costs.numel(), len(links.first))
    nodes = graph.add_nodes(costs.numel())
    capacity = links.capacity.numpy()
    graph.add_edges(links.first.numpy(), links.second.numpy(), capacity, capacity)
    flat = costs.flatten()
    # The source pulls bits to be set here: PyMaxflow counts those that neither end reaches as the source's.
    graph.add_grid_tedges(nodes, (-flat).clamp(min=0).numpy(), flat.clamp(min=0).numpy())
    graph.maxflow()
    return ~torch.from_numpy(graph.get_grid_segments(nodes)).view(costs.shape)


SOLVERS: dict[str, Callable[[Tensor, Links], Tensor]] = {"scipy": scipy_cut, "pymaxflow": pymaxflow_cut}


def _needed(module: str, how: str) -> Any:
    """Import on first use, so that the core needs torch alone."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"the graph cut of PuzzleMix needs {how}") from error
