"""One epoch of training: batches, optimiser steps, checkpoints on the way, and what to do about a broken loss."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saligraft.data import Batch
from saligraft.data.keyed_draws import key
from saligraft.regularizers import set_drop_block_progress
from saligraft.training.accelerator import sum_over_processes
from saligraft.training.progress import Reporter
from saligraft.training.run_state import Position
from saligraft.training.session import Session
from saligraft.training.setup import LAYERS, MIXING, in_memory_order


class DivergenceError(ValueError):
    """A loss or a weight is no longer a finite number."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Who is told of a run's course."""

    reporter: Reporter
    after_step: Callable[[Position, int], None]
    """Given the optimiser steps of the run so far; may save, or raise to stop."""


def train_epoch(session: Session, position: Position, watch: Watch) -> tuple[float, float]:
    """The rest of the current epoch; returns its mean loss over all processes, and the last learning rate."""
    epoch, group = position.epoch, session.recipe.training.accumulate
    stage, first = session.timeline.stage(epoch), session.timeline.first_batch(epoch)
    session.network.train()
    stage.loader.set_epoch(epoch)
    batches = stage.loader.batches(position.batch)
    clock = Clock(position)
    while position.batch < stage.batches:
        set_learning_rate(session, epoch + position.batch / stage.batches)
        position.losses += optimizer_step(session, batches, first + position.batch, watch.reporter)
        position.batch += group
        clock.add()
        watch.after_step(position, (first + position.batch) // group)
    loss = mean_loss(session, position)
    clock.add()
    return loss, set_learning_rate(session, epoch + (stage.batches - group) / stage.batches)


class Clock:
    """Adds the time since it was last asked to the current epoch's."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.last = time.perf_counter(), time.process_time()

    def add(self) -> None:
        now = time.perf_counter(), time.process_time()
        self.position.seconds += now[0] - self.last[0]
        self.position.cpu_seconds += now[1] - self.last[1]
        self.last = now


def optimizer_step(session: Session, batches: Iterator[Batch], number: int, reporter: Reporter) -> list[Tensor]:
    """One move of the weights, by the gradient of one or more batches from number `number` of the run on."""
    group = session.recipe.training.accumulate
    kept = _copy_of_buffers(session.network) if session.recipe.training.on_nonfinite == "skip" else None
    losses = []
    session.optimizer.zero_grad()
    for place in range(number, number + group):
        is_last = place == number + group - 1
        with contextlib.nullcontext() if is_last else session.accelerator.no_sync(session.model):
            losses.append(_add_gradient(session, next(batches), place))
        reporter.step()
    if kept is not None and not _all_finite(session, losses):
        reporter.note(f"step {number // group + 1} is skipped: its loss is not a finite number")
        _put_back(session.network, kept)
        return [torch.full_like(loss, math.nan) for loss in losses]
    session.optimizer.step()
    if session.average is not None:
        session.average.update()
    return losses


def _add_gradient(session: Session, batch: Batch, number: int) -> Tensor:
    """Add one batch's share to the gradient; returns its loss, unread: reading would wait for the device."""
    seed_step(session, number)
    if session.drops_blocks:
        set_drop_block_progress(session.network, number / session.timeline.first_batch(session.timeline.epochs))
    images = in_memory_order(session.recipe, batch.images)
    out = session.step(images, batch.labels, index=batch.index, geometry=batch.geometry)
    session.accelerator.backward(out.loss / session.recipe.training.accumulate)
    return out.loss.detach()


def mean_loss(session: Session, position: Position) -> float:
    """The mean over the epoch's batches in all processes; those that were skipped do not count."""
    losses = torch.stack(position.losses).cpu().double()
    if session.recipe.training.on_nonfinite == "skip":
        losses = losses[losses.isfinite()]
    total, count = sum_over_processes(session.accelerator, [float(losses.sum()), float(len(losses))])
    if not count:
        raise DivergenceError(f"training diverged in epoch {position.epoch + 1}: all of its steps were skipped")
    check_losses(session, position)
    return total / count


def check_losses(session: Session, position: Position) -> None:
    """Raise for the first batch of the epoch whose loss is not finite in any process, unless such are skipped."""
    if session.recipe.training.on_nonfinite == "skip" or not position.losses:
        return
    losses = torch.stack(position.losses)[None]
    if session.accelerator.num_processes > 1:
        losses = session.accelerator.gather(losses)  # (processes, batches)
    broken = ~losses.isfinite()
    if broken.any():
        batch = int(broken.any(dim=0).int().argmax())
        loss = float(losses[broken[:, batch], batch][0])
        count = session.timeline.stage(position.epoch).batches
        raise DivergenceError(
            f"training diverged in epoch {position.epoch + 1} at batch {batch + 1} of {count} "
            f"(loss {loss}): lower optimizer.lr, or set training.on_nonfinite=skip"
        )


def check_weights(session: Session, position: Position) -> None:
    """Raise in all processes where a weight or running statistic of one is not finite.

    float64 holds the sum of any finite float32.
    """
    values = [value for value in session.network.state_dict().values() if value.is_floating_point()]
    own = float(sum(value.abs().sum(dtype=torch.float64) for value in values))
    [total] = sum_over_processes(session.accelerator, [own])
    if not math.isfinite(total):
        raise DivergenceError(f"training diverged in epoch {position.epoch + 1} (weights {total}): lower optimizer.lr")


def set_learning_rate(session: Session, epoch: float) -> float:
    """Set what the schedule says for this moment, in epochs done; returns the recipe's own learning rate there."""
    recipe = session.recipe
    factor = recipe.schedule.factor(epoch, recipe.training.epochs)
    for group in session.optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
    return recipe.optimizer.lr * factor


def seed_step(session: Session, number: int) -> None:
    """Seed a batch's mixing draws, and torch's global stream for what layers draw, such as dropout."""
    place = (session.recipe.seed, number, session.accelerator.process_index)
    session.generator.manual_seed(key(*place, MIXING))
    torch.manual_seed(key(*place, LAYERS))


def _all_finite(session: Session, losses: list[Tensor]) -> bool:
    """Whether all losses are finite in all processes; waits for the device."""
    broken = float((~torch.stack(losses).isfinite()).sum())
    return sum_over_processes(session.accelerator, [broken])[0] == 0


def _copy_of_buffers(network: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in network.buffers()]


@torch.no_grad()
def _put_back(network: nn.Module, kept: list[Tensor]) -> None:
    """Running statistics as they were before a broken batch passed through."""
    for buffer, value in zip(network.buffers(), kept, strict=True):
        buffer.copy_(value)
