"""What each saliency source costs: bottom-up ones against OpenCV, those that ask a network against a training pass.

    python benchmarks/saliency_cost.py            # needs the extra `dev`, for OpenCV

Every round times each contender once, in turn, so that noise of a shared machine falls on all alike; ratios are medians
over rounds of the ratio within a round, of processor time. One thread for torch and for OpenCV; OpenCV sees one 8-bit
image after the other, as it must, with the arrays ready. The JSON (commit and hardware included) goes to
`runs/bench/saliency_cost.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import torch
from rich.console import Console
from rich.table import Table
from step_cost import facts
from torch import Tensor, nn

from saligraft.data import load
from saligraft.networks import build_network
from saligraft.saliency import (
    SALIENCY_SOURCES,
    fine_grained_saliency,
    saliency_source,
    spectral_residual_saliency,
)
from saligraft.saliency.base import NetworkSource

Contenders = dict[str, Callable[[], object]]


def bottom_up(size: int, batch: int) -> Contenders:
    """Ours on the entire batch and OpenCV image by image, on the rendered shapes."""
    data = load("shapes", split="train", size=size, per_class=2).images
    images = data[torch.arange(batch) % len(data)]
    arrays = [image.permute(1, 2, 0).flip(2).contiguous().numpy() for image in images]
    floats = images / 255
    fine = cv2.saliency.StaticSaliencyFineGrained_create()
    spectral = cv2.saliency.StaticSaliencySpectralResidual_create()
    return {
        "fine-grained": lambda: fine_grained_saliency(floats),
        "OpenCV fine-grained": lambda: [fine.computeSaliency(array) for array in arrays],
        "spectral-residual": lambda: spectral_residual_saliency(floats),
        "OpenCV spectral-residual": lambda: [spectral.computeSaliency(array) for array in arrays],
    }


def with_network(network: str, size: int, batch: int) -> Contenders:
    """A plain training pass, forward and backward, and the same with each source's maps from it."""
    torch.manual_seed(0)
    model = build_network(network, 10).train()
    images, labels = torch.randn(batch, 3, size, size), torch.randint(10, (batch,))

    def train(run: Callable[[], Tensor]) -> None:
        nn.functional.cross_entropy(run(), labels).backward()

    contenders: Contenders = {"plain": lambda: train(lambda: model(images))}
    for name in SALIENCY_SOURCES:
        source = saliency_source(name, model)
        contenders[f"{name}, shared"] = lambda source=source: train(
            lambda: source.with_logits(model, images, labels)[0]
        )
        if isinstance(source, NetworkSource):
            contenders[f"{name}, alone"] = lambda source=source: (
                source(images, labels),
                train(lambda: model(images)),
            )
    return contenders


def measure(contenders: Contenders, rounds: int) -> dict[str, list[float]]:
    """Seconds per contender and round; the first round warms up and is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, call in contenders.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    return {name: times[1:] for name, times in seconds.items()}


def ratio(over: list[float], under: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def print_bottom_up(seconds: dict[str, list[float]], title: str) -> None:
    table = Table("source", "ours ms", "OpenCV ms", "OpenCV / ours", title=title)
    for name in ("fine-grained", "spectral-residual"):
        ours, theirs = seconds[name], seconds[f"OpenCV {name}"]
        milliseconds = [f"{statistics.median(times) * 1e3:.1f}" for times in (ours, theirs)]
        table.add_row(name, *milliseconds, f"{ratio(theirs, ours):.2f}x")
    Console().print(table)


def print_with_network(seconds: dict[str, list[float]], title: str) -> None:
    table = Table("training pass and", "ms", "against plain", title=title)
    for name, times in seconds.items():
        table.add_row(name, f"{statistics.median(times) * 1e3:.1f}", f"{ratio(times, seconds['plain']):.2f}x")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 224])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--network", default="wrn-10-2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/saliency_cost.json"))
    options = parser.parse_args()

    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    results: dict[str, dict[str, list[float]]] = {}
    for size in options.sizes:
        title = f"Bottom-up, batch {options.batch}, {size}x{size}"
        results[title] = measure(bottom_up(size, options.batch), options.rounds)
        print_bottom_up(results[title], title)
    title = f"{options.network}, batch {options.batch}, 32x32"
    results[title] = measure(with_network(options.network, 32, options.batch), options.rounds)
    print_with_network(results[title], title)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"facts": facts() | {"opencv": cv2.__version__}, "seconds": results}, indent=1))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
