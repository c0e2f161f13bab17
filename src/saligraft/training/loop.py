"""The training loop: epochs of steps, a test after each, everything written to the run folder.

No stream of randomness is carried: each step seeds its draws from (seed, step, process), so a step's numbers do not
depend on what ran before it.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from saligraft.data import Loader, Split
from saligraft.draws import key
from saligraft.regularizers import DropBlock, set_drop_block_progress
from saligraft.reports.run_report import write_run_report
from saligraft.training.accelerator import (
    average_buffers,
    make_accelerator,
    start_trackers,
    sum_over_processes,
)
from saligraft.training.evaluate import evaluate
from saligraft.training.optimizer import build_optimizer
from saligraft.training.progress import Reporter, SilentReporter, make_reporter
from saligraft.training.recipe import Recipe
from saligraft.training.results import EpochMetrics, EpochTiming, Result, summarize
from saligraft.training.run_folder import RunFolder
from saligraft.training.run_gallery import pictures
from saligraft.training.setup import (
    LAYERS,
    MIXING,
    TrainingStep,
    check_method,
    in_memory_order,
    labelled_images,
    load_split,
    make_loader,
    make_network,
    make_step,
)


@dataclass(frozen=True, kw_only=True)
class Session:
    """A run's parts, ready to go."""

    recipe: Recipe
    accelerator: Accelerator
    network: nn.Module  # the bare one; the step holds it as Accelerate wrapped it
    optimizer: Any  # Accelerate's wrapper, which knows about loss scaling
    step: TrainingStep
    generator: torch.Generator  # of the step's draws
    drops_blocks: bool  # whether the network holds DropBlock, whose rate grows with the steps
    train_loader: Loader
    test_loader: Loader
    test_data: Split


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Result:
    """Train as the recipe says and write the run folder `out`; without one, nothing is written.

    A folder that holds anything is refused unless `overwrite` is asked for. `reporter` shows the progress: a bar
    or plain lines by default, `SilentReporter()` for none.
    """
    if recipe.training.trackers and out is None:
        raise ValueError("training.trackers need a run folder to write to, got out=None")
    path = None if out is None else Path(out)
    accelerator = make_accelerator(recipe, track_in=path)
    folder = RunFolder.plan(path, overwrite=overwrite) if path and accelerator.is_main_process else None
    told = (reporter or make_reporter()) if accelerator.is_main_process else SilentReporter()
    with _leaving_random_state_alone():
        session = prepare(recipe, accelerator)
        if folder is not None:  # only now: a mistake in the settings leaves an earlier run as it was
            folder.start(recipe, accelerator.device, accelerator.num_processes)
        metrics, timing = _run_epochs(session, folder, told)
    parameters = sum(parameter.numel() for parameter in session.network.parameters())
    summary = summarize(recipe, metrics, parameters)
    if folder is not None:
        folder.finish(summary, session.network)
        shown = pictures(recipe, session.network, session.test_data, accelerator.device)
        write_run_report(folder.path, shown)
    accelerator.wait_for_everyone()
    return Result(
        recipe=recipe,
        summary=summary,
        metrics=tuple(metrics),
        timing=tuple(timing),
        network=session.network.eval(),
        folder=path,
    )


def prepare(recipe: Recipe, accelerator: Accelerator) -> Session:
    """Load the data, build the network, and hand network and optimiser to Accelerate."""
    train_data, test_data = load_split(recipe, "train"), load_split(recipe, "test")
    network = make_network(recipe, train_data)
    check_method(recipe, network, train_data)
    optimizer = build_optimizer(network, recipe.optimizer)
    with warnings.catch_warnings():
        # torch >= 2.15 renames the option that `make_accelerator` sets; Accelerate knows the old name alone
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
        model, optimizer = accelerator.prepare(network, optimizer)
    generator = torch.Generator()
    train_loader = make_loader(recipe, train_data, accelerator, train=True)
    warmup_steps = recipe.training.warmup_epochs * len(train_loader)
    return Session(
        recipe=recipe,
        accelerator=accelerator,
        network=accelerator.unwrap_model(model),
        optimizer=optimizer,
        step=make_step(recipe, model, train_data, generator, warmup_steps),
        generator=generator,
        drops_blocks=any(isinstance(module, DropBlock) for module in network.modules()),
        train_loader=train_loader,
        test_loader=make_loader(recipe, test_data, accelerator, train=False),
        test_data=test_data,
    )


def _run_epochs(
    session: Session, folder: RunFolder | None, reporter: Reporter
) -> tuple[list[EpochMetrics], list[EpochTiming]]:
    recipe, accelerator = session.recipe, session.accelerator
    metrics: list[EpochMetrics] = []
    timing: list[EpochTiming] = []
    start_trackers(accelerator, recipe)
    reporter.start(_title(recipe), recipe.training.epochs, len(session.train_loader))
    try:
        for epoch in range(recipe.training.epochs):
            line, times = run_epoch(session, epoch, reporter)
            metrics.append(line)
            timing.append(times)
            if folder is not None:
                folder.add_epoch(line, times)
            accelerator.log(line._asdict(), step=line.epoch)
            reporter.epoch(line, times)
    finally:
        reporter.close()
        for tracker in accelerator.trackers:
            tracker.finish()
    return metrics, timing


def run_epoch(session: Session, epoch: int, reporter: Reporter) -> tuple[EpochMetrics, EpochTiming]:
    """Train for one epoch (counted from 0), then test."""
    began, cpu_began = time.perf_counter(), time.process_time()
    train_loss, lr = train_epoch(session, epoch, reporter)
    trained, cpu_seconds = time.perf_counter(), time.process_time() - cpu_began
    average_buffers(session.accelerator, session.network)
    batches = labelled_images(session.recipe, session.test_loader)
    scores = evaluate(session.network, batches, session.accelerator)
    tested = time.perf_counter()
    _check_converging(epoch, "test loss", scores.test_loss)
    _check_converging(epoch, "weights", _sum_of_magnitudes(session.network))
    images = len(session.train_loader) * session.train_loader.batch_size * session.accelerator.num_processes
    seconds = trained - began
    return (
        EpochMetrics(epoch + 1, lr, train_loss, *scores),
        EpochTiming(epoch + 1, seconds, images / seconds, tested - trained, cpu_seconds),
    )


def train_epoch(session: Session, epoch: int, reporter: Reporter) -> tuple[float, float]:
    """All steps of one epoch; returns their mean loss over all processes, and the last learning rate."""
    session.network.train()
    session.train_loader.set_epoch(epoch)
    steps = len(session.train_loader)
    losses = []
    for number, batch in enumerate(session.train_loader, start=epoch * steps):
        lr = set_learning_rate(session, number / steps)
        seed_step(session, number)
        if session.drops_blocks:
            set_drop_block_progress(session.network, number / (steps * session.recipe.training.epochs))
        images = in_memory_order(session.recipe, batch.images)
        out = session.step(images, batch.labels, index=batch.index, geometry=batch.geometry)
        session.optimizer.zero_grad()
        session.accelerator.backward(out.loss)
        session.optimizer.step()
        losses.append(out.loss.detach())  # read once per epoch: reading each would wait for the device
        reporter.step()
    own = [float(torch.stack(losses).cpu().double().sum()), float(len(losses))]
    total, count = sum_over_processes(session.accelerator, own)
    _check_converging(epoch, "train loss", total / count)
    return total / count, lr


def _check_converging(epoch: int, name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"training diverged in epoch {epoch + 1} ({name} {value}): lower optimizer.lr")


def _sum_of_magnitudes(network: nn.Module) -> float:
    """Finite if and only if all weights and running statistics are; float64 holds the sum of any finite float32."""
    values = [value for value in network.state_dict().values() if value.is_floating_point()]
    return float(sum(value.abs().sum(dtype=torch.float64) for value in values))


def set_learning_rate(session: Session, epoch: float) -> float:
    """Set what the schedule says for this moment, in epochs done."""
    recipe = session.recipe
    lr = recipe.optimizer.lr * recipe.schedule.factor(epoch, recipe.training.epochs)
    for group in session.optimizer.param_groups:
        group["lr"] = lr
    return lr


def seed_step(session: Session, number: int) -> None:
    """Seed the step's mixing draws, and torch's global stream for what layers draw, such as dropout."""
    place = (session.recipe.seed, number, session.accelerator.process_index)
    session.generator.manual_seed(key(*place, MIXING))
    torch.manual_seed(key(*place, LAYERS))


@contextlib.contextmanager
def _leaving_random_state_alone() -> Iterator[None]:
    """Keep the caller's random state, and let cuDNN choose none of its kernels by stopwatch."""
    with (
        torch.random.fork_rng(),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True),
    ):
        yield


def _title(recipe: Recipe) -> str:
    return recipe.title or f"{recipe.method.name} on {recipe.data.name} with {recipe.network.name}"
