"""Minimum cuts by the libraries that may be there: SciPy (BSD) by default, PyMaxflow (GPL) on request."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Solver = Literal["scipy", "pymaxflow"]


class Links(NamedTuple):
    """Undirected links (n,), int32, between numbered bits: each costs its capacity where its two ends differ."""

    first: Tensor
    second: Tensor
    capacity: Tensor


def scipy_cut(costs: Tensor, links: Links) -> Tensor:
    """Bits, bool of the shape of `costs`, that minimise Σ costs over set bits + Σ capacities of links cut.

    Costs are whole numbers below 2^31. Of several minima the one with most bits set.
    """
    sparse = _needed("scipy.sparse", 'scipy: pip install "saligraft[puzzle]"')
    graphs = _needed("scipy.sparse.csgraph", 'scipy: pip install "saligraft[puzzle]"')
    flat = costs.flatten().int()
    bits = torch.ones(len(flat) + 2, dtype=torch.bool)
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
    bits[torch.from_numpy(reached).long()] = False  # cut off from the source is set, and pays the link from there
    return bits[:-2].view(costs.shape)


def pymaxflow_cut(costs: Tensor, links: Links) -> Tensor:
    """As `scipy_cut`, by the algorithm of Boykov and Kolmogorov; of several minima any."""
    maxflow = _needed("maxflow", "PyMaxflow, which is under the GPL: pip install PyMaxflow")
    graph = maxflow.GraphInt(costs.numel(), len(links.first))
    nodes = graph.add_nodes(costs.numel())
    capacity = links.capacity.numpy()
    graph.add_edges(links.first.numpy(), links.second.numpy(), capacity, capacity)
    flat = costs.flatten()
    graph.add_grid_tedges(nodes, flat.clamp(min=0).numpy(), (-flat).clamp(min=0).numpy())
    graph.maxflow()
    return torch.from_numpy(graph.get_grid_segments(nodes)).view(costs.shape)


SOLVERS: dict[Solver, Callable[[Tensor, Links], Tensor]] = {"scipy": scipy_cut, "pymaxflow": pymaxflow_cut}


def _needed(module: str, how: str) -> Any:
    """Import on first use, so that the core needs torch alone."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"the graph cut of PuzzleMix needs {how}") from error
