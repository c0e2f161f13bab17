"""Minimum cuts of small graphs against all assignments of bits."""

import itertools
import sys

import pytest
import torch

from saligraft.methods.puzzlemix.graph_cut import SOLVERS, Links, Solver

MODULES = {"scipy": "scipy", "pymaxflow": "maxflow"}
HINTS = {"scipy": r"needs scipy: `pip install 'saligraft\[puzzle\]'`", "pymaxflow": "needs PyMaxflow, .* GPL"}
every_solver = pytest.mark.parametrize("solver", SOLVERS)


def value(bits: torch.Tensor, costs: torch.Tensor, links: Links) -> int:
    cut = bits[links.first.long()] != bits[links.second.long()]
    return int(costs[bits].sum() + links.capacity[cut].sum())


@every_solver
def test_least_of_all_cuts(solver: Solver) -> None:
    pytest.importorskip(MODULES[solver])
    stream = torch.Generator().manual_seed(0)
    pairs = torch.combinations(torch.arange(7, dtype=torch.int32))
    every = [torch.tensor(bits) for bits in itertools.product((False, True), repeat=7)]
    for _ in range(20):
        costs = torch.randint(-9, 10, (7,), generator=stream)
        links = Links(pairs[:, 0], pairs[:, 1], torch.randint(0, 6, (len(pairs),), generator=stream).int())
        least = min(value(bits, costs, links) for bits in every)
        bits = SOLVERS[solver](costs, links)
        assert bits.dtype == torch.bool
        assert value(bits, costs, links) == least
        assert int(bits.sum()) == max(int(each.sum()) for each in every if value(each, costs, links) == least)


@every_solver
@pytest.mark.parametrize("sign", [1, -1])
def test_costs_of_one_sign_need_no_cut(solver: Solver, sign: int) -> None:
    pytest.importorskip(MODULES[solver])
    links = Links(*(torch.tensor(part, dtype=torch.int32) for part in ([0, 1], [1, 2], [5, 5])))
    assert (SOLVERS[solver](sign * torch.tensor([[1, 2, 3]]), links) == (sign < 0)).all()


@every_solver
def test_a_missing_library_is_named(solver: Solver, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (MODULES[solver], f"{MODULES[solver]}.sparse"):
        monkeypatch.setitem(sys.modules, module, None)
    empty = torch.zeros(0, dtype=torch.int32)
    with pytest.raises(ImportError, match=HINTS[solver]):
        SOLVERS[solver](torch.tensor([1]), Links(empty, empty, empty))
