"""Results of a run: scores of batches, numbers per epoch, and their summary."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from saligraft.config.recipe import Recipe
from saligraft.data import Split
from saligraft.training.accelerator import sum_over_processes

TOP_K = 5
LAST_EPOCHS = 10  # the paper's Tiny-ImageNet numbers are means of the last ten epochs (appendix B)


class Scores(NamedTuple):
    """A network's scores on a test set.

    Args:
        test_loss: Mean cross-entropy.
        top1_error: Top-1 error in percent.
        top5_error: Top-5 error in percent.
    """

    test_loss: float
    top1_error: float
    top5_error: float


def batch_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum loss, top-1 errors, top-5 errors and images of one batch, (4,) on its device.

    Args:
        logits: (B,K).
        labels: (B,).
    """
    order = logits.argsort(dim=1, descending=True, stable=True)  # ties go to the lower class index
    rank = (order == labels[:, None]).int().argmax(dim=1)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    wrong1, wrong5 = (rank >= 1).sum(), (rank >= TOP_K).sum()
    return torch.stack([loss, wrong1, wrong5, torch.full_like(loss, len(labels))])


def total_scores(sums: Sequence[Tensor], accelerator: Accelerator) -> Scores:
    """Compute the scores of all batches of all processes.

    Args:
        sums: `batch_sums` of this process's batches.
        accelerator: The run's accelerator.
    """
    local = torch.stack(list(sums)).cpu().double().sum(dim=0).tolist() if sums else [0.0] * 4
    loss, wrong1, wrong5, images = sum_over_processes(accelerator, local)
    if images == 0:
        raise ValueError("the test set must hold at least one image, got none")
    return Scores(test_loss=loss / images, top1_error=100 * wrong1 / images, top5_error=100 * wrong5 / images)


class EpochMetrics(NamedTuple):
    """One line of metrics.jsonl; nothing here depends on the clock or the machine's folders.

    Args:
        epoch: Epoch, counted from 1.
        lr: The recipe's learning rate at the last step.
        train_loss: Mean over the epoch's batches.
        test_loss: See `Scores`.
        top1_error: See `Scores`.
        top5_error: See `Scores`.
    """

    epoch: int
    lr: float
    train_loss: float
    test_loss: float
    top1_error: float
    top5_error: float


class EpochTiming(NamedTuple):
    """One line of timing.jsonl.

    Args:
        epoch: Epoch, counted from 1.
        seconds: Seconds of the training part, by the clock.
        images_per_second: Images per second of the training part, by the clock.
        test_seconds: Seconds of the test after it, by the clock.
        cpu_seconds: CPU time of this process while training, unaffected by other programs.
    """

    epoch: int
    seconds: float
    images_per_second: float
    test_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run.

    Args:
        recipe: What was trained.
        summary: The content of result.json.
        metrics: Metrics of every epoch.
        timing: Timing of every epoch whose times are known.
        network: The final network, on the device it was trained on, in eval mode.
        test_data: The images it was tested on.
        folder: The run folder; None if nothing was written.
    """

    recipe: Recipe
    summary: dict[str, Any]
    metrics: tuple[EpochMetrics, ...]
    timing: tuple[EpochTiming, ...]
    network: nn.Module
    test_data: Split
    folder: Path | None


def has_top5(classes: int | None) -> bool:
    """Return whether the top-5 error says anything: with five classes or fewer it is always 0.

    Args:
        classes: Number of classes; None if it is not known.
    """
    return classes is None or classes > 5


def summarize(recipe: Recipe, metrics: Sequence[EpochMetrics], parameters: int) -> dict[str, Any]:
    """Return the content of result.json.

    The best epoch is the one with the lowest top-1 error on the test set; ties go to the last, as in CutMix's
    code. `top5_error.best` is that epoch's top-5 error, which the paper's tables report; `top5_error.lowest` is the
    lowest of any epoch.

    Args:
        recipe: What was trained.
        metrics: Metrics of all epochs.
        parameters: Number of parameters of the network.
    """
    best = min(reversed(metrics), key=lambda line: line.top1_error)
    top5 = [line.top5_error for line in metrics]
    return {
        "top1_error": {"best": best.top1_error, **_last_and_final([line.top1_error for line in metrics])},
        "top5_error": {"best": best.top5_error, **_last_and_final(top5), "lowest": min(top5)},
        "best_epoch": best.epoch,
        "test_loss": metrics[-1].test_loss,
        "epochs": len(metrics),
        "parameters": parameters,
        "seed": recipe.seed,
        "method": recipe.method.name,
        "data": recipe.data.name,
        "network": recipe.network.name,
        **({} if recipe.passes is None else {"passes": recipe.passes}),
    }


def _last_and_final(errors: Sequence[float]) -> dict[str, float]:
    last = errors[-LAST_EPOCHS:]
    return {"last10_mean": sum(last) / len(last), "final": errors[-1]}
