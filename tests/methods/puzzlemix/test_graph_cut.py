"""The cut finds the least energy: against all labellings of small grids, and never above gco's alpha-beta swap."""

import importlib.util
import itertools
import sys

import numpy as np
import pytest
import torch
from tests.methods.puzzlemix import instances

from saligraft.methods.puzzlemix import MaskEnergy, optimal_levels
from saligraft.methods.puzzlemix.graph_cut import SOLVERS, Solver

pytest.importorskip("scipy", reason="the default solver needs the extra puzzle")


MODULES = {"scipy": "scipy", "pymaxflow": "maxflow"}
every_solver = pytest.mark.parametrize("solver", SOLVERS)


@every_solver
@pytest.mark.parametrize(("rows", "columns", "levels"), [(2, 2, 3), (2, 3, 3), (3, 2, 2), (2, 2, 5), (1, 4, 4)])
def test_least_of_all_labellings(solver: Solver, rows: int, columns: int, levels: int) -> None:
    pytest.importorskip(MODULES[solver])
    energy = instances.random_energy(20, rows, columns, levels)
    every = np.array(list(itertools.product(range(levels), repeat=rows * columns))).reshape(-1, rows, columns)
    found = optimal_levels(energy, solver)
    assert found.shape == (20, rows, columns)
    assert found.dtype == torch.int64
    for sample in range(20):
        one = MaskEnergy(*(part[sample : sample + 1].expand(len(every), *part.shape[1:]) for part in energy))
        least = instances.energy_of(one, every).min()
        ours = instances.energy_of(
            MaskEnergy(*(part[sample : sample + 1] for part in energy)), found[sample : sample + 1].numpy()
        )
        assert ours == pytest.approx(least, abs=1e-6)


def swapped(energy: MaskEnergy) -> np.ndarray:
    """Alpha-beta swaps sample by sample, as the authors' code does, in whole numbers (of fractions gco may abort)."""
    gco = pytest.importorskip("gco")
    levels, grid = energy.unary.shape[1:3]
    scale = 1000 * grid**2
    unary, down, across = ((scale * part.double()).numpy().astype(np.int32) for part in energy)
    level = np.arange(levels, dtype=np.int32)
    pairwise = (level[:, None] - level) ** 2
    found = []
    for costs, below, beside in zip(unary, down // (levels - 1) ** 2, across // (levels - 1) ** 2, strict=True):
        costs = np.ascontiguousarray(costs.transpose(1, 2, 0))
        found.append(gco.cut_grid_graph(costs, pairwise, below, beside, algorithm="swap").reshape(grid, grid))
    return np.stack(found).astype(np.int64)


@pytest.mark.parametrize("grid", [2, 4, 8, 16])
@pytest.mark.parametrize("kind", ["random", "pictures"])
def test_never_above_a_swap(grid: int, kind: str) -> None:
    make = (
        instances.picture_energy
        if kind == "pictures"
        else lambda batch, grid: instances.random_energy(batch, grid, grid)
    )
    energy = make(128, grid)
    theirs = instances.energy_of(energy, swapped(energy))
    ours = instances.energy_of(energy, optimal_levels(energy).numpy())
    assert (ours <= theirs + 1e-6 * np.abs(theirs)).all()
    if grid >= 8:
        assert (
            ours < theirs - 1e-6 * np.abs(theirs)
        ).sum() > 10  # a swap is only a local minimum: else this proves little


@pytest.mark.parametrize("grid", [8, 16])
def test_both_solvers_find_the_same_mask(grid: int) -> None:
    pytest.importorskip("maxflow")
    energy = instances.picture_energy(40, grid)
    slope = torch.randint(-2, 3, (40, 1, grid, grid), generator=torch.Generator().manual_seed(0)).float()
    tied = MaskEnergy(
        slope * torch.arange(3).view(1, 3, 1, 1), (energy.down > 0.002) * 1.0, (energy.across > 0.002) * 1.0
    )
    for each in (energy, tied):  # in the second many masks have the least energy
        assert torch.equal(optimal_levels(each, "scipy"), optimal_levels(each, "pymaxflow"))


def test_without_pymaxflow_scipy_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    energy = instances.random_energy(3, 4, 4)
    expected = optimal_levels(energy)
    monkeypatch.setitem(sys.modules, "maxflow", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert torch.equal(optimal_levels(energy), expected)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    energy = instances.picture_energy(40, 16)
    scaled = MaskEnergy(*(part * torch.linspace(0.1, 1e4, 40).view(-1, *[1] * (part.ndim - 1)) for part in energy))
    whole = optimal_levels(scaled)
    for sample in (0, 17, 39):
        alone = MaskEnergy(*(part[sample : sample + 1] for part in scaled))
        assert torch.equal(optimal_levels(alone)[0], whole[sample])


def test_without_neighbours_each_block_takes_its_own_best() -> None:
    energy = instances.random_energy(5, 6, 6, levels=4)
    free = energy._replace(down=torch.zeros_like(energy.down), across=torch.zeros_like(energy.across))
    assert torch.equal(optimal_levels(free), free.unary.argmin(dim=1))


def test_smoothness_without_end_gives_one_level() -> None:
    energy = instances.random_energy(30, 4, 4)
    stiff = energy._replace(down=energy.down * 0 + 1e4, across=energy.across * 0 + 1e4)
    expected = energy.unary.double().sum(dim=(2, 3)).argmin(dim=1)
    assert torch.equal(optimal_levels(stiff), expected[:, None, None].expand(-1, 4, 4))


def test_nothing_to_decide_takes_the_source() -> None:
    energy = MaskEnergy(torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4), torch.zeros(2, 4, 3))
    assert (optimal_levels(energy) == 2).all()


def test_costs_that_are_not_convex_are_refused() -> None:
    energy = instances.random_energy(2, 3, 3)
    with pytest.raises(ValueError, match="must be finite and convex in the level"):
        optimal_levels(energy._replace(unary=-energy.unary))
    with pytest.raises(ValueError, match="must be finite and convex in the level"):
        optimal_levels(energy._replace(unary=energy.unary * torch.nan))
    with pytest.raises(ValueError, match="solver must be one of 'auto', 'scipy', 'pymaxflow'; got 'gco'"):
        optimal_levels(energy, "gco")  # type: ignore[arg-type]
