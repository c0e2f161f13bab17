"""What a run would take: speed, memory and total time, from a few measured steps."""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from saligraft.config.recipe import Recipe
from saligraft.data import Batch, Loader
from saligraft.names import plural
from saligraft.training.accelerator import make_accelerator, sum_over_processes
from saligraft.training.evaluate import evaluate
from saligraft.training.progress import SilentReporter
from saligraft.training.run_folder import machine_facts
from saligraft.training.setup import labelled_images
from saligraft.training.state import Position
from saligraft.training.trainer import Trainer, reproducible

STEPS = 10
SECONDS = 60.0  # after which a slow machine measures no more steps of a segment
WARM_UP_STEPS = 2  # the first ones allocate, choose kernels, and compile if asked to
TEST_BATCHES = 5
SILENT = SilentReporter().note


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive epochs of equal cost: of one phase, all before or all after the warm-up without mixing.

    Args:
        first_epoch: First epoch, counted from 0.
        epochs: Number of epochs.
        mixes: False in the warm-up.
        size: Height and width of the images.
        batch_size: Images of one optimiser step, over all processes.
        steps: Optimiser steps of an epoch.
        step_seconds: Seconds of a step, including the wait for data.
        wait_seconds: Seconds of these spent waiting for data.
        peak_memory: Bytes of this process so far, on its device; None if unknown.
    """

    first_epoch: int
    epochs: int
    mixes: bool
    size: tuple[int, int]
    batch_size: int
    steps: int
    step_seconds: float
    wait_seconds: float
    peak_memory: int | None

    @property
    def images_per_second(self) -> float:
        """Over all processes."""
        return self.batch_size / self.step_seconds

    @property
    def seconds(self) -> float:
        """Training time of all its epochs."""
        return self.epochs * self.steps * self.step_seconds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Estimated course of a run; its time does not include checkpoints and the report.

    Args:
        segments: Segments in order.
        epochs: Epochs of the run; a test follows each.
        test_images: Images of one test.
        test_images_per_second: Over all processes.
        checkpoint_bytes: Size of one checkpoint.
        kept_checkpoints: Number of checkpoints kept on disk.
        machine: `machine_facts` of where it was measured.
    """

    segments: tuple[Segment, ...]
    epochs: int
    test_images: int
    test_images_per_second: float
    checkpoint_bytes: int
    kept_checkpoints: int
    machine: dict[str, Any]

    @property
    def test_seconds(self) -> float:
        """Of all tests together."""
        return self.epochs * self.test_images / self.test_images_per_second

    @property
    def seconds(self) -> float:
        """Of the entire run."""
        return sum(segment.seconds for segment in self.segments) + self.test_seconds


def plan(recipe: Recipe, steps: int = STEPS, seconds: float = SECONDS, *, note: Callable[[str], None] = SILENT) -> Plan:
    """Set the run up, measure some steps of each segment and some test batches; writes nothing.

    Args:
        recipe: What would be trained.
        steps: Measured steps per segment.
        seconds: Measure fewer steps of a segment once they took this long.
        note: Called with a line on what is measured next; none by default.
    """
    accelerator = make_accelerator(recipe)
    with reproducible():  # as in a run: it changes the speed
        note(f"Setting up {recipe.heading} ...")
        trainer = Trainer(recipe, accelerator)
        segments = measure_segments(trainer, steps, seconds, note)
        note("Measuring a few test batches ...")
        _, shared, own = trainer.learner.capture(Position())
        shared_bytes, own_bytes = (sum(tensor.nbytes for tensor in part.values()) for part in (shared, own))
        return Plan(
            segments=segments,
            epochs=recipe.training.epochs,
            test_images=len(trainer.test_data),
            test_images_per_second=measure_test_speed(trainer),
            checkpoint_bytes=shared_bytes + own_bytes * accelerator.num_processes,
            kept_checkpoints=recipe.training.keep_checkpoints,
            machine=machine_facts(accelerator.device, accelerator.num_processes),
        )


def measure_segments(
    trainer: Trainer, steps: int, seconds: float, note: Callable[[str], None] = SILENT
) -> tuple[Segment, ...]:
    """Measure up to `steps` steps of each segment of the run, fewer once they took `seconds`."""
    epochs, warmup = trainer.timeline.epochs, trainer.recipe.training.warmup_epochs
    firsts = {stage.first_epoch for stage in trainer.timeline.stages} | {warmup}
    starts = sorted(first for first in firsts if first < epochs)
    segments = []
    for start, end in itertools.pairwise([*starts, epochs]):
        note(f"Measuring steps as in epochs {start + 1} to {end}, for at most {duration(seconds)} ...")
        segments.append(_measure_segment(trainer, start, end, steps, seconds))
    return tuple(segments)


def _measure_segment(trainer: Trainer, start: int, end: int, steps: int, seconds: float) -> Segment:
    stage, accumulate = trainer.timeline.stage(start), trainer.recipe.training.accumulate
    first, device = trainer.timeline.first_batch(start), trainer.accelerator.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    step_times: list[float] = []  # without the waits
    waits: list[float] = []  # of each batch
    trainer.network.train()
    trainer.step.steps_taken = first
    trainer.set_learning_rate(start)
    warm_up = WARM_UP_STEPS + getattr(stage.loader, "workers", 0)
    start_time = time.perf_counter()
    with closing(_timed_batches(stage.loader, start, waits)) as batches:
        while len(step_times) < warm_up + steps and (
            len(step_times) < 2 or mean_seconds_since(start_time, trainer.accelerator) < seconds
        ):
            step_start = time.perf_counter()
            trainer.optimizer_step(batches, first + len(step_times) * accumulate)
            _synchronize(device)
            step_times.append(time.perf_counter() - step_start - sum(waits[-accumulate:]))
        height, width = next(batches).images.shape[2:]
    skipped = min(warm_up, len(step_times) - 1)
    # Workers deliver several batches at once and then none: the mean of the wait counts, not its median.
    wait = accumulate * statistics.fmean(waits[skipped * accumulate : len(step_times) * accumulate])
    return Segment(
        first_epoch=start,
        epochs=end - start,
        mixes=start >= trainer.recipe.training.warmup_epochs,
        size=(height, width),
        batch_size=stage.loader.batch_size * accumulate * trainer.accelerator.num_processes,
        steps=stage.batches // accumulate,
        step_seconds=statistics.median(step_times[skipped:]) + wait,
        wait_seconds=wait,
        peak_memory=_peak_memory(device),
    )


def mean_seconds_since(start: float, accelerator: Accelerator) -> float:
    """Average over all processes, so that all stop measuring together: each step needs all of them."""
    [total] = sum_over_processes(accelerator, [time.perf_counter() - start])
    return total / int(accelerator.num_processes)


def _timed_batches(loader: Loader, epoch: int, waits: list[float]) -> Generator[Batch, None, None]:
    """Yield batches, epoch after epoch without end, and record the seconds waited for each."""
    for number in itertools.count(epoch):
        loader.set_epoch(number)
        start = time.perf_counter()
        for batch in loader.batches():
            waits.append(time.perf_counter() - start)
            yield batch
            start = time.perf_counter()


def measure_test_speed(trainer: Trainer) -> float:
    """Measure test images per second over all processes, on a few batches after a first one."""
    network, accelerator, loader = trainer.tested_network, trainer.accelerator, trainer.test_loader
    batches = labelled_images(trainer.recipe, loader)
    evaluate(network, itertools.islice(batches, 1), accelerator)
    if len(loader) == 1:
        batches = labelled_images(trainer.recipe, loader)
    count = min(TEST_BATCHES, max(1, len(loader) - 1))
    start = time.perf_counter()
    evaluate(network, itertools.islice(batches, count), accelerator)
    seconds = time.perf_counter() - start
    images: int = min(count * loader.batch_size * accelerator.num_processes, len(trainer.test_data))
    return images / seconds


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource  # absent on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def print_plan(estimate: Plan, console: Console | None = None) -> None:
    """Print a table with a row per segment, and the totals.

    Args:
        estimate: Result of `plan`.
        console: Standard output by default.
    """
    console = console or Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(("epochs", "batch", "px", "steps", "images/s", "wait", "memory", "time")):
        table.add_column(title, justify="right" if place else "left", no_wrap=True)
    for segment in estimate.segments:
        table.add_row(*_cells(segment))
    tests = ("", "", "", f"{estimate.test_images_per_second:,.0f}", "", "", duration(estimate.test_seconds))
    table.add_row(plural(estimate.epochs, "test"), *tests)
    console.print(table)
    console.print("[dim]wait: share of the time in which a step waits for data; plain: without mixing[/dim]\n")
    count = estimate.kept_checkpoints
    kept = f"the newest {count} are kept" if count > 1 else "the newest is kept"
    console.print(f"estimated time:   [bold]{duration(estimate.seconds)}[/bold]", highlight=False)
    console.print(f"measured on:      {_machine(estimate.machine)}", highlight=False)
    console.print(f"checkpoint:       {decimal(estimate.checkpoint_bytes)}; {kept}", highlight=False)


def _cells(segment: Segment) -> tuple[str, ...]:
    height, width = segment.size
    return (
        f"{segment.first_epoch + 1} to {segment.first_epoch + segment.epochs}{'' if segment.mixes else ' plain'}",
        f"{segment.batch_size:,}",
        f"{height}" if height == width else f"{height}×{width}",
        f"{segment.epochs * segment.steps:,}",
        f"{segment.images_per_second:,.0f}",
        f"{100 * segment.wait_seconds / segment.step_seconds:.0f} %",
        "unknown" if segment.peak_memory is None else decimal(segment.peak_memory),
        duration(segment.seconds),
    )


def _machine(facts: dict[str, Any]) -> str:
    processes, threads = facts["processes"], facts["threads"]
    parts = [f"{facts['device']} ({facts['device_name']})"]
    if processes > 1:
        parts.append(f"{processes} processes")
    if facts["device"] == "cpu":
        parts.append(plural(threads, "thread") + (" each" if processes > 1 else ""))
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds with at most two units.

    >>> duration(320)
    '5 min 20 s'
    """
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    rest = max(1, round(seconds))
    for place, (name, length) in enumerate(units):
        if rest >= length and name != "s":
            below, shorter = units[place + 1]
            count = round(rest / shorter)
            whole, part = divmod(count, length // shorter)
            return f"{whole} {name} {part} {below}" if part else f"{whole} {name}"
    return f"{rest} s"
