"""Devices, precision, processes and trackers, all through Hugging Face Accelerate."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list, gather_object
from torch import distributed, nn

from saligraft.config.recipe import Recipe
from saligraft.names import one_of

PROJECT = "saligraft"  # the name trackers file a run under, and the folder of those that write files
Value = TypeVar("Value")


def make_accelerator(recipe: Recipe, track_in: Path | None = None, *, to_train: bool = True) -> Accelerator:
    """Build the accelerator of a run; the launcher's environment (torchrun, accelerate launch) sets the processes.

    Args:
        recipe: Its precision, trackers and batch sizes are checked against the device and the processes.
        track_in: Folder the recipe's trackers write to; None turns them off.
        to_train: False skips the checks that matter for training only.
    """
    precision = "no" if recipe.training.precision == "fp32" else recipe.training.precision
    trackers = recipe.training.trackers if track_in else ()
    available = sorted(tracker.value for tracker in get_available_trackers())
    for tracker in trackers:
        one_of("each of training.trackers", tracker, sorted(LOGGER_TYPE_TO_CLASS))
        if tracker not in available:
            raise ValueError(f"training.trackers: {tracker!r} needs its package: pip install {tracker}")
    # Accelerate keeps one state per process and refuses another precision, but runs in one process may differ.
    if AcceleratorState._shared_state.get("_mixed_precision", precision) != precision:
        AcceleratorState._reset_state()
    accelerator = Accelerator(
        mixed_precision=precision,
        cpu=only_cpu(),
        log_with=list(trackers) or None,
        project_dir=track_in,
        # A step makes two forward passes: broadcasting would overwrite buffers that the first one's backward needs.
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )
    with shared_errors(accelerator):
        _check_batch_sizes(recipe, accelerator.num_processes)
        if to_train:
            _check_device(recipe, accelerator.device.type)
    return accelerator


def start_trackers(accelerator: Accelerator, recipe: Recipe) -> None:
    """Open the recipe's trackers and pass them its settings."""
    if accelerator.log_with:
        accelerator.init_trackers(PROJECT, config=_flatten(recipe.model_dump()))


class OtherProcessError(ValueError):
    """An error of another process, which reports it to the user."""

    reported_elsewhere = True


@contextlib.contextmanager
def shared_errors(accelerator: Accelerator) -> Iterator[None]:
    """Raise a ValueError or OSError of one process in all of them, so that none waits for another forever.

    The first process that failed raises its own error, all others an `OtherProcessError`. Also a barrier.

    Args:
        accelerator: The run's accelerator; with one process nothing is exchanged.
    """
    failure: Exception | None = None
    try:
        yield
    except (ValueError, OSError) as error:
        failure = error
    if accelerator.num_processes > 1:
        messages = gather_object([None if failure is None else str(failure)])
        failed = next((rank for rank, message in enumerate(messages) if message is not None), None)
        if failed not in (None, accelerator.process_index):
            failure = OtherProcessError(messages[failed])
    if failure is not None:
        raise failure


def from_main_process(accelerator: Accelerator, compute: Callable[[], Value]) -> Value:
    """Compute a value in the main process alone and return it in all; an error is shared.

    Args:
        accelerator: The run's accelerator.
        compute: Called in the main process; its result must be picklable.
    """
    value: list[Any] = [None]
    with shared_errors(accelerator):
        if accelerator.is_main_process:
            value = [compute()]
    if accelerator.num_processes > 1:
        broadcast_object_list(value)
    return cast(Value, value[0])


def sum_over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Sum each number over all processes, in float64.

    Args:
        accelerator: The run's accelerator.
        values: Values to add, equally many in every process.
    """
    if accelerator.num_processes == 1:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
    summed: list[float] = accelerator.reduce(total, reduction="sum").tolist()
    return summed


def average_buffers(accelerator: Accelerator, network: nn.Module) -> None:
    """Average running statistics over all processes, so that all test and save the same network."""
    if accelerator.num_processes == 1:
        return
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.copy_(accelerator.reduce(buffer, reduction="mean"))


def is_main_process() -> bool:
    """Return whether this process is the one to print and write; without a process group the launcher's RANK tells."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return int(os.environ.get("RANK", "0")) == 0


def leave_group() -> bool:
    """Leave the process group, if there is one.

    Returns:
        True in the main process, which is the one to print.

    Example:
        >>> from saligraft.training import leave_group
        >>> leave_group()
        True
    """
    is_main = is_main_process()
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    return is_main


def only_cpu() -> bool:
    """Return True if there is no device but the CPU.

    Accelerate needs to know: otherwise each launched process trains as if it were alone.
    """
    if hasattr(torch, "accelerator"):  # torch 2.6 and up
        return not torch.accelerator.is_available()
    return not (torch.cuda.is_available() or torch.backends.mps.is_available())


def _check_device(recipe: Recipe, device: str) -> None:
    if recipe.training.sync_batch_norm and device != "cuda":
        raise ValueError(f"training.sync_batch_norm must be false on {device}: it needs CUDA")
    if recipe.training.precision == "fp16" and device == "cpu":  # Accelerate would silently train in fp32
        raise ValueError("training.precision must be fp32 or bf16 on cpu, got fp16: set training.precision=bf16")


def _check_batch_sizes(recipe: Recipe, processes: int) -> None:
    parts = processes * recipe.training.accumulate
    for batch_size in recipe.training.batch_sizes:
        if batch_size % parts:
            times = f" times training.accumulate ({parts})" if recipe.training.accumulate > 1 else f" ({processes})"
            raise ValueError(
                f"training.batch_size must be a multiple of the number of processes{times}, got {batch_size}"
            )


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, int | float | str | bool]:
    flat: dict[str, int | float | str | bool] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, int | float | str | bool) else str(value)
    return flat
