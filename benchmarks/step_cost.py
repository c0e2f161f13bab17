"""What a training step costs with each method, as ratios to plain training within one interleaved run.

    make bench                                    # or: python benchmarks/step_cost.py --network wrn-16-2 --batch 128

Every round times each contender once, so that noise of a shared machine falls on all alike; the table shows
medians with the interquartile range, and the JSON (commit and hardware included) goes to `runs/bench/step_cost.json`;
`method_cost.json` beside this file is one such run, with `--network wrn-10-1 --batch 64 --rounds 9` on one thread.
"two plain passes" is the floor of Saliency Grafting: the difference is the cost of the graft itself.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import saligraft as sg
from saligraft.cli.measure import time_in_turn
from saligraft.methods import REGISTRY
from saligraft.networks import build_network


def plain_passes(model: nn.Module, passes: int) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(images: Tensor, labels: Tensor) -> Tensor:
        losses = [nn.functional.cross_entropy(model(images), labels) for _ in range(passes)]
        return torch.stack(losses).mean()

    return loss


def contenders(network: str) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return build_network(network, 10).train()

    steps = {name: sg.training_step(model(), entry.method()) for name, entry in REGISTRY.items()}
    return {
        "plain": plain_passes(model(), 1),
        "two plain passes": plain_passes(model(), 2),
        **{name: lambda x, y, step=step: step(x, y).loss for name, step in steps.items()},
    }


def measure(network: str, batch: int, size: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of forward and backward per contender and round."""
    images, labels = torch.rand(batch, 3, size, size), torch.randint(10, (batch,))
    losses = contenders(network)
    return time_in_turn(
        {name: lambda loss=loss: loss(images, labels).backward() for name, loss in losses.items()}, rounds
    )


def facts() -> dict[str, str | int]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip() or "unknown",
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="wrn-16-2")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/step_cost.json"))
    options = parser.parse_args()

    seconds = measure(options.network, options.batch, options.size, options.rounds)
    plain = statistics.median(seconds["plain"])
    setting = f"{options.network}, batch {options.batch}, {options.size}x{options.size}"
    table = Table("step", "ms", "IQR", "against plain", title=f"Forward and backward: {setting}")
    for name, times in seconds.items():
        low, middle, high = statistics.quantiles(times, n=4)
        table.add_row(name, f"{middle * 1e3:.1f}", f"{(high - low) * 1e3:.1f}", f"{middle / plain:.2f}x")
    Console().print(table)
    ratios = [
        graft / floor for graft, floor in zip(seconds["saliency-grafting"], seconds["two plain passes"], strict=True)
    ]
    print(
        f"saliency-grafting against its two passes: {statistics.median(ratios):.3f}x (median of {len(ratios)} rounds)"
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"facts": facts(), "setting": setting, "seconds": seconds}, indent=1))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
