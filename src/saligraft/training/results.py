"""What a run yields: numbers per epoch, and their summary."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from saligraft.config.recipe import Recipe
from saligraft.data import Split

LAST_EPOCHS = 10  # the paper's Tiny-ImageNet numbers are means of the last ten epochs (appendix B)


class Scores(NamedTuple):
    """A network on a test set: mean loss, errors in percent."""

    test_loss: float
    top1_error: float
    top5_error: float


class EpochMetrics(NamedTuple):
    """One line of metrics.jsonl; nothing here depends on the clock or the machine's folders."""

    epoch: int
    lr: float
    train_loss: float
    test_loss: float
    top1_error: float
    top5_error: float


class EpochTiming(NamedTuple):
    """One line of timing.jsonl: seconds of the training part, and of the test that follows it.

    `cpu_seconds` is the time that this process's threads computed while training; neighbours do not prolong it.
    """

    epoch: int
    seconds: float
    images_per_second: float
    test_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run."""

    recipe: Recipe
    summary: dict[str, Any]  # as in result.json
    metrics: tuple[EpochMetrics, ...]
    timing: tuple[EpochTiming, ...]
    network: nn.Module  # as it was at the end, on the device it was trained on, in eval mode
    folder: Path | None
    test_data: Split  # as the network was tested on


def summarize(recipe: Recipe, metrics: Sequence[EpochMetrics], parameters: int) -> dict[str, Any]:
    """The content of result.json."""
    return {
        "top1_error": _three_ways([line.top1_error for line in metrics]),
        "top5_error": _three_ways([line.top5_error for line in metrics]),
        "test_loss": metrics[-1].test_loss,
        "epochs": len(metrics),
        "parameters": parameters,
        "seed": recipe.seed,
        "method": recipe.method.name,
        "data": recipe.data.name,
        "network": recipe.network.name,
    }


def _three_ways(errors: Sequence[float]) -> dict[str, float]:
    """Best epoch, which picks by the test set as the paper's CIFAR tables do; mean of the last ten; last epoch."""
    last = errors[-LAST_EPOCHS:]
    return {"best": min(errors), "last10_mean": sum(last) / len(last), "final": errors[-1]}
