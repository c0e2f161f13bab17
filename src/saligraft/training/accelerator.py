"""Devices, precision, processes and trackers, all through Hugging Face Accelerate."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list, gather_object
from torch import nn

from saligraft.config.recipe import Recipe

PROJECT = "saligraft"  # what trackers file a run under; of those that write files also the folder's name
Decision = TypeVar("Decision")
ACCELERATE_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def make_accelerator(recipe: Recipe, track_in: Path | None = None, *, to_train: bool = True) -> Accelerator:
    """The accelerator of one run; the launcher's environment (torchrun, accelerate launch) decides the processes.

    The recipe's trackers write to the folder `track_in`; without one they stay off. What stands in the way of training
    alone is passed over unless one means to.
    """
    precision = ACCELERATE_PRECISION[recipe.training.precision]
    trackers = recipe.training.trackers if track_in else ()
    _check_trackers(trackers)
    # Accelerate keeps one state per process and refuses another precision, but runs in one process may differ.
    if AcceleratorState._shared_state.get("_mixed_precision", precision) != precision:
        AcceleratorState._reset_state()
    accelerator = Accelerator(
        mixed_precision=precision,
        cpu=only_cpu(),
        log_with=list(trackers) or None,
        project_dir=track_in,
        # Two forward passes a step: broadcasting would overwrite buffers that the first one's backward needs.
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )
    with told_to_all(accelerator):
        _check_batches(recipe, accelerator.num_processes)
        if to_train:
            _check_device(recipe, accelerator.device.type)
    return accelerator


def start_trackers(accelerator: Accelerator, recipe: Recipe) -> None:
    """Open the recipe's trackers and hand them its settings."""
    if accelerator.log_with:
        accelerator.init_trackers(PROJECT, config=_flat(recipe.model_dump()))


class ToldElsewhereError(ValueError):
    """Another process found a mistake, and tells the user."""

    told_elsewhere = True


@contextlib.contextmanager
def told_to_all(accelerator: Accelerator) -> Iterator[None]:
    """Make a user's mistake that one process finds a mistake in all, so that none waits for another in vain.

    Where several find one, the first of them tells the user.
    """
    found: Exception | None = None
    try:
        yield
    except (ValueError, OSError) as error:
        found = error
    if accelerator.num_processes > 1:
        messages = gather_object([None if found is None else str(found)])
        teller = next((number for number, message in enumerate(messages) if message is not None), None)
        if teller not in (None, accelerator.process_index):
            found = ToldElsewhereError(messages[teller])
    if found is not None:
        raise found


def decided_by_first(accelerator: Accelerator, decide: Callable[[], Decision]) -> Decision:
    """What the first process decides, in all; its mistake is one in all."""
    decision: list[Any] = [None]
    with told_to_all(accelerator):
        if accelerator.is_main_process:
            decision = [decide()]
    if accelerator.num_processes > 1:
        broadcast_object_list(decision)
    return cast(Decision, decision[0])


def sum_over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Each number summed over all processes, in float64."""
    if accelerator.num_processes == 1:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
    summed: list[float] = accelerator.reduce(total, reduction="sum").tolist()
    return summed


def average_buffers(accelerator: Accelerator, network: nn.Module) -> None:
    """Give all processes the mean of their running statistics: all then test and save the same network."""
    if accelerator.num_processes == 1:
        return
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.copy_(accelerator.reduce(buffer, reduction="mean"))


def only_cpu() -> bool:
    """True where there is nothing but the CPU.

    Accelerate must be told, or launched processes run side by side, each as if it were alone.
    """
    if hasattr(torch, "accelerator"):  # torch 2.6 and up
        return not torch.accelerator.is_available()
    return not (torch.cuda.is_available() or torch.backends.mps.is_available())


def _check_device(recipe: Recipe, device: str) -> None:
    if recipe.training.sync_batch_norm and device != "cuda":
        raise ValueError(f"training.sync_batch_norm must be false on {device}: it needs CUDA")
    if recipe.training.precision == "fp16" and device == "cpu":  # Accelerate would quietly train in fp32
        raise ValueError("training.precision must be fp32 or bf16 on cpu, got fp16: set training.precision=bf16")


def _check_batches(recipe: Recipe, processes: int) -> None:
    parts = processes * recipe.training.accumulate
    for batch_size in recipe.training.batch_sizes:
        if batch_size % parts:
            times = f" times training.accumulate ({parts})" if recipe.training.accumulate > 1 else f" ({processes})"
            raise ValueError(
                f"training.batch_size must be a multiple of the number of processes{times}, got {batch_size}"
            )


def _check_trackers(trackers: Sequence[str]) -> None:
    available = sorted(tracker.value for tracker in get_available_trackers())
    for tracker in trackers:
        if tracker not in available:
            raise ValueError(
                f"training.trackers: {tracker!r} is unknown or its package is not installed; "
                f"installed: {', '.join(available) or '(none)'}"
            )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, int | float | str | bool]:
    flat: dict[str, int | float | str | bool] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, int | float | str | bool) else str(value)
    return flat
