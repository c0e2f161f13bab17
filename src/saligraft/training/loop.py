"""The training loop: epochs of steps, a test after each, everything written to the run folder, from which it can go on.

No stream of randomness is carried: each batch seeds its draws from (seed, number, process), so its numbers do not
depend on what ran before it, nor on how often the run was stopped.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from saligraft import checks
from saligraft.config.recipe import Recipe
from saligraft.training import checkpoint
from saligraft.training.accelerator import (
    ToldElsewhereError,
    average_buffers,
    decided_by_first,
    make_accelerator,
    start_trackers,
    told_to_all,
)
from saligraft.training.epoch import DivergenceError, Watch, check_losses, check_weights, train_epoch
from saligraft.training.evaluate import evaluate
from saligraft.training.progress import Reporter, SilentReporter, make_reporter
from saligraft.training.results import EpochMetrics, EpochTiming, Result, Scores, summarize
from saligraft.training.run_folder import History, RunFolder, load_weights, read_finished, read_history, read_marker
from saligraft.training.run_state import Position, capture, changed_data, check_classes, differences, facts, restore
from saligraft.training.session import Session, prepare
from saligraft.training.setup import labelled_images
from saligraft.training.stopping import RunStopped, StopRequest, listening

# In optimiser steps. To read a loss is to wait for the device, and processes that agree exchange a message.
READ_LOSSES_EVERY = 100
AGREE_EVERY = 8


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Result:
    """Train as the recipe says and write the run folder `out`; without one, nothing is written.

    A folder that holds anything is refused unless asked to `overwrite` it, or to `resume` the run that stands there,
    which then ends with the same files, bit for bit, as if it had never been stopped; where nothing stands yet,
    `resume` begins. `reporter` shows the progress: a bar or plain lines by default, `SilentReporter()` for none.
    SIGTERM, SIGHUP and Ctrl-C save a checkpoint and raise `RunStopped`.
    """
    if out is None and (recipe.training.trackers or resume):
        what = "training.trackers need" if recipe.training.trackers else "resume needs"
        raise ValueError(f"{what} a run folder, got out=None")
    path = None if out is None else Path(out)
    checks.utf8("the run folder's path", str(path))  # safetensors reads no others
    accelerator = make_accelerator(recipe, track_in=path)
    if recipe.never_mixes and accelerator.is_main_process:
        warnings.warn(
            f"the run never mixes: its {recipe.training.epochs} epochs are all warm-up (training.warmup_epochs), "
            f"so that method {recipe.method.name} is never applied",
            stacklevel=2,
        )
    told = (reporter or make_reporter()) if accelerator.is_main_process else SilentReporter()
    with contextlib.ExitStack() as stack:
        folder = None
        with told_to_all(accelerator):
            if path and accelerator.is_main_process:
                folder = RunFolder.plan(path, overwrite=overwrite, resume=resume)
                stack.callback(folder.close)
        stack.enter_context(_leaving_random_state_alone())
        request = stack.enter_context(listening())
        run = Run(prepare(recipe, accelerator), path, folder, told, request)
        run.begin(resume=resume)
        run.epochs()
        return run.finish()


@dataclass
class Run:
    """A run under way; `path` is known to all processes, `folder` is the first one's to write."""

    session: Session
    path: Path | None
    folder: RunFolder | None
    reporter: Reporter
    request: StopRequest

    def begin(self, *, resume: bool) -> None:
        """Stand at the start, where the newest whole checkpoint was taken, or at the end of a finished run."""
        recipe, accelerator = self.session.recipe, self.session.accelerator
        self.position = Position()
        self.saved: tuple[int, int] | None = None  # epoch and batch of the newest checkpoint
        found, history = self._newest(self.path) if resume and self.path is not None else (None, None)
        with told_to_all(accelerator):
            self.facts = facts(self.session) if self.path is not None else {}
        if found is not None:
            with told_to_all(accelerator):
                changed = differences(self.facts, found)
            self._compare_data(found.state["data"])
            for difference in changed:
                self.reporter.note(f"resumed under other conditions, so the last digits may differ: {difference}")
            self.position = restore(self.session, found)
            self.saved = (self.position.epoch, self.position.batch)
        if history is not None and self.path is not None:
            if found is None:
                self._compare_data((read_marker(self.path) or {}).get("data"))
            self._take_up(history, self.path)
        with told_to_all(accelerator):
            if self.folder is not None:
                place = (accelerator.device, accelerator.num_processes)
                if history is None:
                    self.folder.start(recipe, *place, self.facts["data"])
                else:
                    self.folder.go_on(history, *place)

    def _compare_data(self, began_with: dict[str, Any] | None) -> None:
        """Refuse other classes than the run began with, and warn of other samples, at each resume."""
        if began_with is None:
            return
        with told_to_all(self.session.accelerator):
            check_classes(began_with["classes"], self.facts["data"]["classes"])
        changes = changed_data(began_with, self.facts["data"])
        if changes and self.session.accelerator.is_main_process:
            message = f"the data changed since the run began, so its result cannot be repeated: {changes}"
            warnings.warn(message, stacklevel=4)
        self.facts["data"] = began_with

    def _newest(self, path: Path) -> tuple[checkpoint.Checkpoint | None, History | None]:
        """The newest whole checkpoint, and the epochs before it; of a finished run all epochs."""
        recipe, accelerator = self.session.recipe, self.session.accelerator

        def history(state: Mapping[str, Any]) -> History:
            return read_history(path, state["epoch"], state["metrics"])

        finished = decided_by_first(accelerator, lambda: read_finished(path, recipe))
        try:
            found = checkpoint.latest(path, accelerator, check=history)
        except ValueError:  # all are damaged
            if finished is None:
                raise
            found = None
        if found is None or finished is not None:
            return found, finished
        return found, decided_by_first(accelerator, lambda: history(found.state))

    def _take_up(self, history: History, path: Path) -> None:
        """Have the epochs behind the run; a finished one may have more than its newest whole checkpoint."""
        if len(history.metrics) > self.position.epoch:
            with told_to_all(self.session.accelerator):
                load_weights(path, self.session.tested_network)
            self.position = Position(epoch=len(history.metrics))
        self.position.metrics, self.position.timing = history

    def epochs(self) -> None:
        """Train and test until the last epoch is done."""
        session, position = self.session, self.position
        timeline, accelerator = session.timeline, session.accelerator
        with contextlib.nullcontext() if self.folder is None else self.folder.owning_new_files():
            start_trackers(accelerator, session.recipe)
        done = (position.epoch, timeline.first_batch(position.epoch) + position.batch)
        self.reporter.start(_title(session.recipe), timeline.epochs, timeline.first_batch(timeline.epochs), done)
        try:
            while position.epoch < timeline.epochs:
                self._epoch()
        except DivergenceError as error:  # in all processes
            kind = DivergenceError if accelerator.is_main_process else ToldElsewhereError
            raise kind(f"{error}; {self._last_good()}") from error
        finally:
            self.reporter.close()
            timeline.close_stages_before(timeline.epochs)
            session.test_loader.close()
            for tracker in accelerator.trackers:
                tracker.finish()

    def _epoch(self) -> None:
        session, position = self.session, self.position
        line, times = run_epoch(session, position, Watch(reporter=self.reporter, after_step=self._after_step))
        position.metrics.append(line)
        position.timing.append(times)
        position.epoch, position.batch = position.epoch + 1, 0
        position.losses, position.seconds, position.cpu_seconds = [], 0.0, 0.0
        with told_to_all(session.accelerator):
            if self.folder is not None:
                self.folder.add_epoch(line, times)
        session.accelerator.log(line._asdict(), step=line.epoch)
        self.reporter.epoch(line, times)
        session.timeline.close_stages_before(position.epoch)
        is_last = position.epoch == session.timeline.epochs
        if is_last or position.epoch % session.recipe.training.checkpoint_epochs == 0:
            self._save()
        self._stop_if_asked(now=True)

    def _after_step(self, position: Position, steps: int) -> None:
        every = self.session.recipe.training.checkpoint_steps
        at_end = position.batch == self.session.timeline.stage(position.epoch).batches
        if steps % READ_LOSSES_EVERY == 0:
            check_losses(self.session, position)
        if every and steps % every == 0 and not at_end:
            self._save()
        self._stop_if_asked(now=at_end or steps % AGREE_EVERY == 0)

    def _stop_if_asked(self, *, now: bool) -> None:
        number = self.request.agreed(self.session.accelerator, now=now)
        if number:
            self._save()
            raise RunStopped(number, self.path)

    def _save(self) -> None:
        """A checkpoint of here, unless something is no longer a number: then the one before stays the last."""
        session, position = self.session, self.position
        here = (position.epoch, position.batch)
        if self.path is None or here == self.saved:
            return
        check_losses(session, position)
        check_weights(session, position)
        captured = capture(session, position, self.facts)
        if self.folder is not None:
            captured.state["metrics"] = self.folder.digest.hexdigest()
        batches = session.timeline.first_batch(position.epoch) + position.batch
        newest = checkpoint.save(self.path, batches, *captured, session.accelerator)
        self.saved = here
        if self.folder is not None:
            checkpoint.prune(self.path, session.recipe.training.keep_checkpoints, newest)

    def _last_good(self) -> str:
        names = [] if self.path is None else checkpoint.names(self.path)
        return f"last good checkpoint: {names[-1]}" if names else "there is no checkpoint"

    def finish(self) -> Result:
        """Write what came out."""
        session, position = self.session, self.position
        recipe, network = session.recipe, session.tested_network
        summary = summarize(recipe, position.metrics, sum(p.numel() for p in network.parameters()))
        with told_to_all(session.accelerator):
            if self.folder is not None:
                self.folder.finish(summary, network)
        session.accelerator.wait_for_everyone()
        return Result(
            recipe=recipe,
            summary=summary,
            metrics=tuple(position.metrics),
            timing=tuple(position.timing),
            network=network.eval(),
            folder=self.path,
            test_data=session.test_data,
        )


def run_epoch(session: Session, position: Position, watch: Watch) -> tuple[EpochMetrics, EpochTiming]:
    """Train to the end of the current epoch, then test."""
    train_loss, lr = train_epoch(session, position, watch)
    began = time.perf_counter()
    average_buffers(session.accelerator, session.network)
    if session.average is not None:
        average_buffers(session.accelerator, session.average.network)
    batches = labelled_images(session.recipe, session.test_loader)
    scores = evaluate(session.tested_network, batches, session.accelerator)
    _check_scores(position, scores)
    check_weights(session, position)
    stage = session.timeline.stage(position.epoch)
    images = stage.batches * stage.loader.batch_size * session.accelerator.num_processes
    rate = images / position.seconds
    number = position.epoch + 1
    return (
        EpochMetrics(number, lr, train_loss, *scores),
        EpochTiming(number, position.seconds, rate, time.perf_counter() - began, position.cpu_seconds),
    )


def _check_scores(position: Position, scores: Scores) -> None:
    if not math.isfinite(scores.test_loss):
        raise DivergenceError(
            f"training diverged in epoch {position.epoch + 1} (test loss {scores.test_loss}): lower optimizer.lr"
        )


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
