"""What Puzzle Mix's mask and transport cost beside the authors' procedure, and how their energies compare.

    python benchmarks/puzzle_cost.py              # needs scipy and gco-wrapper; PyMaxflow is measured where installed

"theirs" follows the authors' published code in plain torch: a loop over the batch that calls gco's alpha-beta swap,
then dense plans (B, g², g²) and matrix products. Both start from the same energy and end with both images moved. Every
round times each contender once, in turn, on one thread; the table shows medians, and the energies are evaluated in
NumPy. The JSON (commit and hardware included) goes to `runs/bench/puzzle_cost.json`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gco
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from step_cost import facts
from torch import Tensor
from torch.nn.functional import interpolate

from saligraft.methods.puzzlemix import (
    EnergyTerms,
    MaskEnergy,
    Solver,
    block_shares,
    mask_energy,
    move_blocks,
    optimal_levels,
    transport_plan,
)

XI = 0.8


class Case(NamedTuple):
    """One batch, ready for mask and transport: source and destination stacked as (2B, …)."""

    energy: MaskEnergy
    images: Tensor
    shares: Tensor


def make_case(batch: int, grid: int, seed: int) -> Case:
    """Images smooth with some noise, saliency peaked and grainy as input gradients are; 32 × 32 pixels."""
    stream = torch.Generator().manual_seed(seed)
    coarse = torch.randn(batch, 3, 8, 8, generator=stream)
    images = interpolate(coarse, size=32, mode="bilinear") + 0.3 * torch.randn(batch, 3, 32, 32, generator=stream)
    peaks = interpolate(torch.rand(batch, 1, 5, 5, generator=stream) ** 3, size=32, mode="bilinear")[:, 0]
    shares = block_shares(peaks * torch.randn(batch, 32, 32, generator=stream).abs(), grid)
    partner, ratio = torch.randperm(batch, generator=stream), torch.rand(1, generator=stream).expand(batch)
    energy = mask_energy(images, shares, partner, ratio, EnergyTerms())
    return Case(energy, torch.cat((images, images[partner])), torch.cat((shares, shares[partner])))


def swap_levels(energy: MaskEnergy) -> Tensor:
    """One alpha-beta swap per sample, on costs rounded down to integers at the authors' scale."""
    unary, down, across = (part.double().numpy() for part in energy)
    levels, grid = unary.shape[1:3]
    scale = 1000 * grid**2
    level = np.arange(levels)
    pairwise = ((level[:, None] - level) ** 2 / (levels - 1) ** 2).astype(np.float32)
    found = []
    for costs, below, beside in zip(unary, down, across, strict=True):
        integer_costs = np.ascontiguousarray((scale * costs.transpose(1, 2, 0)).astype(np.int32))
        edges = ((scale * below).astype(np.int32), (scale * beside).astype(np.int32))
        found.append(gco.cut_grid_graph(integer_costs, pairwise, *edges, algorithm="swap").reshape(grid, grid))
    return torch.from_numpy(np.stack(found)).long()


def dense_transport(images: Tensor, shares: Tensor, visible: Tensor) -> Tensor:
    """Plans of all blocks against all places, resolved by rows and columns, applied as matrix products."""
    batch, grid = shares.shape[:2]
    blocks = grid**2
    position = torch.cartesian_prod(torch.arange(grid), torch.arange(grid)).float()
    distance = (position[:, None] - position).square().sum(dim=2) / (grid - 1) ** 2
    cost = XI * distance - shares.reshape(batch, blocks, 1) * visible.float().reshape(batch, 1, blocks)
    for _ in range(grid):
        plan = torch.zeros_like(cost).scatter_(2, cost.min(dim=2).indices[:, :, None], 1)
        best = (plan * cost).min(dim=1).indices
        win = torch.zeros_like(cost).scatter_(1, best[:, None], 1) * plan
        cost = cost + (1 - win) * plan
    channels, side = images.shape[1], images.shape[2] // grid
    patches = images.reshape(batch, channels, grid, side, grid, side).permute(0, 1, 3, 5, 2, 4)
    patches = patches.reshape(batch, channels, side, side, blocks, 1)
    moved = win.transpose(1, 2)[:, None, None, None].matmul(patches)
    moved = moved.reshape(batch, channels, side, side, grid, grid).permute(0, 1, 4, 2, 5, 3)
    return moved.reshape(images.shape)


class Outcome(NamedTuple):
    levels: Tensor
    moved: Tensor
    visible: Tensor
    mask_seconds: float
    seconds: float


def run(mask: Callable[[MaskEnergy], Tensor], transport: Callable[..., Tensor], case: Case) -> Outcome:
    start = time.perf_counter()
    levels = mask(case.energy)
    between = time.perf_counter()
    visible = torch.cat((levels > 0, levels < case.energy.unary.shape[1] - 1))
    moved = transport(case.images, case.shares, visible)
    end = time.perf_counter()
    return Outcome(levels, moved, visible, between - start, end - start)


def gathered_transport(images: Tensor, shares: Tensor, visible: Tensor) -> Tensor:
    return move_blocks(images, transport_plan(shares, visible, XI))


def their_transport(images: Tensor, shares: Tensor, visible: Tensor) -> Tensor:
    """Source and destination one after the other, as the authors' code does."""
    parts = zip(images.chunk(2), shares.chunk(2), visible.chunk(2), strict=True)
    return torch.cat([dense_transport(*part) for part in parts])


def energy_of(energy: MaskEnergy, levels: Tensor) -> np.ndarray:
    unary, down, across = (part.double().numpy() for part in energy)
    z = levels.numpy() / (unary.shape[1] - 1)
    total = np.take_along_axis(unary, levels.numpy()[:, None], axis=1).sum(axis=(1, 2, 3))
    total += (down * np.diff(z, axis=1) ** 2).sum(axis=(1, 2))
    return total + (across * np.diff(z, axis=2) ** 2).sum(axis=(1, 2))


def measure(grid: int, batch: int, rounds: int) -> dict[str, list[Outcome]]:
    solvers: list[Solver] = ["scipy"] + (["pymaxflow"] if importlib.util.find_spec("maxflow") else [])
    contenders = {"theirs": (swap_levels, their_transport)}
    for solver in solvers:
        contenders[f"ours, {solver}"] = (
            lambda energy, solver=solver: optimal_levels(energy, solver),
            gathered_transport,
        )
    small = make_case(4, grid, seed=0)
    for mask, transport in contenders.values():
        run(mask, transport, small)  # warm up
    outcomes: dict[str, list[Outcome]] = {name: [] for name in contenders}
    for seed in range(rounds):
        case = make_case(batch, grid, seed)
        for name, (mask, transport) in contenders.items():
            outcomes[name].append(run(mask, transport, case))
        check_same_picture(case, outcomes["theirs"][-1])
    return outcomes


def check_same_picture(case: Case, theirs: Outcome) -> None:
    """Given their mask, our transport must show what theirs shows."""
    ours = gathered_transport(case.images, case.shares, theirs.visible)
    shown = interpolate(theirs.visible[:, None].float(), size=case.images.shape[2:])
    if not torch.equal(ours * shown, theirs.moved * shown):
        raise RuntimeError("the two transports show different blocks")


def report(grid: int, batch: int, outcomes: dict[str, list[Outcome]], table: Table) -> dict[str, object]:
    rows: dict[str, object] = {}
    cases = [make_case(batch, grid, seed).energy for seed in range(len(outcomes["theirs"]))]
    energies = {
        name: np.concatenate([energy_of(e, o.levels) for e, o in zip(cases, runs, strict=True)])
        for name, runs in outcomes.items()
    }
    together = {name: [o.seconds for o in runs] for name, runs in outcomes.items()}
    masks = {name: [o.mask_seconds for o in runs] for name, runs in outcomes.items()}
    for name in outcomes:
        ratio = statistics.median(a / b for a, b in zip(together["theirs"], together[name], strict=True))
        mask_ratio = statistics.median(a / b for a, b in zip(masks["theirs"], masks[name], strict=True))
        above = int((energies[name] > energies["theirs"] + 1e-6).sum())
        below = int((energies[name] < energies["theirs"] - 1e-6).sum())
        compared = f"{above} above, {below} below of {len(energies[name])}"
        mask_ms, ms = statistics.median(masks[name]) * 1e3, statistics.median(together[name]) * 1e3
        table.add_row(
            f"{grid}×{grid}", name, f"{mask_ms:.1f}", f"{mask_ratio:.2f}x", f"{ms:.1f}", f"{ratio:.1f}x", compared
        )
        rows[name] = {"mask_ms": mask_ms, "mask_ratio": mask_ratio, "ms": ms, "ratio": ratio, "energy": compared}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--grids", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/puzzle_cost.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)

    title = f"Mask and transport of {options.batch} pairs at 32×32, medians of {options.rounds} rounds, one thread"
    table = Table("blocks", "contender", "mask ms", "theirs / it", "both ms", "theirs / it", "energy", title=title)
    results = {}
    for grid in options.grids:
        results[grid] = report(grid, options.batch, measure(grid, options.batch, options.rounds), table)
    Console(width=120).print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"facts": facts(), "setting": title, "results": results}, indent=1))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
