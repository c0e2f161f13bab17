"""The stretches of a run, epochs that cost the same, each measured by a few of its own steps."""

import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from saligraft.data import Batch, Loader
from saligraft.training.accelerator import sum_over_processes
from saligraft.training.epoch import optimizer_step, set_learning_rate
from saligraft.training.evaluate import evaluate
from saligraft.training.progress import SilentReporter
from saligraft.training.session import Session
from saligraft.training.setup import labelled_images

WARM_UP_STEPS = 2  # the first ones allocate, choose kernels, and compile where asked to
TEST_BATCHES = 5


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Epochs in a row that cost the same: of one phase, all before or all after the warm-up without mixing."""

    first_epoch: int  # counted from 0
    epochs: int
    mixes: bool
    size: tuple[int, int]  # height, width of its images
    batch_size: int  # images of one optimiser step, over all processes
    steps: int  # optimiser steps of an epoch
    step_seconds: float  # with the wait for data
    wait_seconds: float  # of these, for data
    peak_memory: int | None  # bytes of this process so far, on its device; None where that is not known

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.step_seconds

    @property
    def seconds(self) -> float:
        return self.epochs * self.steps * self.step_seconds


def measure_stretches(session: Session, steps: int, seconds: float) -> tuple[Stretch, ...]:
    """Take up to `steps` measured steps of each stretch of the run, fewer once they took `seconds`."""
    epochs, warmup = session.timeline.epochs, session.recipe.training.warmup_epochs
    firsts = {stage.first_epoch for stage in session.timeline.stages} | {warmup}
    starts = sorted(first for first in firsts if first < epochs)
    spans = itertools.pairwise([*starts, epochs])
    return tuple(_measure(session, start, end, steps, seconds) for start, end in spans)


class Step(NamedTuple):
    """One measured step of this process."""

    seconds: float  # without the wait
    wait: float
    images: int


def _measure(session: Session, start: int, end: int, steps: int, seconds: float) -> Stretch:
    stage, group = session.timeline.stage(start), session.recipe.training.accumulate
    _forget_peak(session.accelerator.device)
    taken: list[Step] = []
    session.network.train()
    session.step.steps_taken = session.timeline.first_batch(start)
    set_learning_rate(session, start)
    with closing(WaitingTimer(stage.loader, start)) as batches:
        number, warm_up = session.timeline.first_batch(start), WARM_UP_STEPS + getattr(stage.loader, "workers", 0)
        began = time.perf_counter()
        while len(taken) < warm_up + steps and (len(taken) < 2 or mean_seconds_since(began, session) < seconds):
            taken.append(_timed_step(session, batches, number + len(taken) * group))
    measured = taken[min(warm_up, len(taken) - 1) :]
    # Workers deliver several batches at once and then none: the wait's mean counts, not its middle.
    wait = statistics.fmean(step.wait for step in measured)
    return Stretch(
        first_epoch=start,
        epochs=end - start,
        mixes=start >= session.recipe.training.warmup_epochs,
        size=batches.size,
        batch_size=measured[-1].images * session.accelerator.num_processes,
        steps=stage.batches // group,
        step_seconds=statistics.median(step.seconds for step in measured) + wait,
        wait_seconds=wait,
        peak_memory=_peak_memory(session.accelerator.device),
    )


def mean_seconds_since(began: float, session: Session) -> float:
    """The same in all processes: each step takes all of them."""
    [total] = sum_over_processes(session.accelerator, [time.perf_counter() - began])
    return total / int(session.accelerator.num_processes)


def _timed_step(session: Session, batches: "WaitingTimer", number: int) -> Step:
    wait, images, began = batches.seconds, batches.images, time.perf_counter()
    optimizer_step(session, batches, number, SilentReporter())
    _finish(session.accelerator.device)
    waited = batches.seconds - wait
    return Step(time.perf_counter() - began - waited, waited, batches.images - images)


class WaitingTimer:
    """A loader's batches without end, epoch after epoch; adds up how long each took to come."""

    def __init__(self, loader: Loader, epoch: int) -> None:
        self._batches = self._endless(loader, epoch)
        self.seconds, self.images, self.size = 0.0, 0, (0, 0)

    @staticmethod
    def _endless(loader: Loader, epoch: int) -> Iterator[Batch]:
        for number in itertools.count(epoch):
            loader.set_epoch(number)
            yield from loader.batches()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter()
        batch = next(self._batches)
        self.seconds += time.perf_counter() - began
        self.images += len(batch.labels)
        self.size = (batch.images.shape[2], batch.images.shape[3])
        return batch

    def close(self) -> None:
        self._batches.close()  # type: ignore[attr-defined]  # a generator: its workers end with it


def images_tested_per_second(session: Session) -> float:
    """Test images per second over all processes, from a few batches after a first one."""
    network, accelerator = session.tested_network, session.accelerator
    loader = session.test_loader
    batches = labelled_images(session.recipe, loader)
    evaluate(network, itertools.islice(batches, 1), accelerator)
    if len(loader) == 1:
        batches = labelled_images(session.recipe, loader)
    count = min(TEST_BATCHES, max(1, len(loader) - 1))
    began = time.perf_counter()
    evaluate(network, itertools.islice(batches, count), accelerator)
    seconds = time.perf_counter() - began
    images: int = min(count * loader.batch_size * accelerator.num_processes, len(session.test_data))
    return images / seconds


def _finish(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource  # absent on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
