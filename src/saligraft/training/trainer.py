"""The trainer: fit → epoch → step → evaluate → checkpoint.

No random state is carried along: each batch seeds its draws from (seed, number, process), so its numbers do not
depend on what ran before it, nor on how often the run was stopped.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import Dataset

from saligraft import checks
from saligraft.config.recipe import Recipe, make_recipe
from saligraft.config.saliency_section import Normalization
from saligraft.data import Batch, Split
from saligraft.data.keyed_draws import key
from saligraft.data.own_data import as_splits
from saligraft.import_path import GIVEN
from saligraft.networks.weights import load_weights_file
from saligraft.regularizers import DropBlock, set_drop_block_progress
from saligraft.training import checkpoint, setup
from saligraft.training.accelerator import (
    OtherProcessError,
    average_buffers,
    make_accelerator,
    shared_errors,
    start_trackers,
    sum_over_processes,
)
from saligraft.training.evaluate import evaluate
from saligraft.training.optimizer import INITIAL_LR, AveragedWeights, parameter_groups
from saligraft.training.progress import Reporter, SilentReporter, make_reporter
from saligraft.training.results import EpochMetrics, EpochTiming, Result, Scores, summarize
from saligraft.training.run_folder import RunFolder, load_weights, read_marker
from saligraft.training.state import Learner, Position, check_conditions, check_data, find_progress, run_conditions
from saligraft.training.stopping import (
    DivergenceError,
    RunStopped,
    StopRequest,
    catch_stop_signals,
    check_losses,
    check_weights,
    mean_loss,
)

# In optimiser steps. Reading a loss waits for the device, and agreeing on a signal exchanges a message.
READ_LOSSES_EVERY = 100
AGREE_EVERY = 8


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    model: nn.Module | None = None,
    data: tuple[Dataset[Any], Dataset[Any]] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Result:
    """Train a recipe and write the run folder; result.json is written last.

    SIGTERM, SIGHUP and Ctrl-C save a checkpoint and raise `RunStopped`, also where the run is already finished.

    Args:
        recipe: What to train.
        out: The run folder; None writes nothing. A folder that is not empty is refused unless one of the next two is
            set.
        model: A network to train in place of the recipe's, from its own weights; it is changed.
        data: Data sets to train and test on in place of the recipe's: any map-style torch `Dataset` of images and class
            numbers, see `saligraft.data.own_data`. recipe.toml records "given:NAME" for both; resume such a run by the
            same call.
        overwrite: Delete the run in the folder first.
        resume: Continue the run in the folder, which then ends with the same files, bit for bit, as if it had never
            been stopped; start one if there is none.
        reporter: Progress display; a bar or plain lines by default, `SilentReporter()` for none.

    Returns:
        The numbers of all epochs, the summary, and the network.

    Example:
        >>> from saligraft.training import SilentReporter, make_recipe, train
        >>> data = {"name": "shapes", "options": {"size": 16, "per_class": 2}}
        >>> training = {"epochs": 1, "batch_size": 10}
        >>> recipe = make_recipe({"data": data, "network": {"name": "wrn-10-1"}, "training": training})
        >>> train(recipe, reporter=SilentReporter()).summary["epochs"]
        1
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a Recipe, as load_recipe(NAME) returns, got {type(recipe).__name__}")
    if out is None and (recipe.training.trackers or resume):
        what = "training.trackers need" if recipe.training.trackers else "resume needs"
        raise ValueError(f"{what} a run folder, got out=None")
    recipe, splits = record_given(recipe, model, data)
    path = None if out is None else Path(out)
    checks.utf8("the run folder's path", str(path))  # safetensors reads no others
    accelerator = make_accelerator(recipe, track_in=path)
    if recipe.never_mixes and accelerator.is_main_process:
        warnings.warn(
            f"the run never mixes: its {recipe.training.epochs} epochs are all warm-up (training.warmup_epochs), "
            f"so that method {recipe.method.name} is never applied",
            stacklevel=2,
        )
    reporter = (reporter or make_reporter()) if accelerator.is_main_process else SilentReporter()
    with contextlib.ExitStack() as stack:
        folder = None
        with shared_errors(accelerator):
            if path and accelerator.is_main_process:
                folder = RunFolder.open(path, overwrite=overwrite, resume=resume)
                stack.callback(folder.close)
        stack.enter_context(reproducible())
        stop = stack.enter_context(catch_stop_signals())
        trainer = Trainer(
            recipe, accelerator, path=path, folder=folder, reporter=reporter, stop=stop, model=model, splits=splits
        )
        result = trainer.fit(resume=resume)
    if signal_number := stop.agreed(accelerator, now=True):  # the caller may have more to do
        raise RunStopped(signal_number, path, finished=True)
    return result


def record_given(
    recipe: Recipe, model: nn.Module | None, data: tuple[Any, Any] | None
) -> tuple[Recipe, tuple[Split, Split] | None]:
    """Name what was passed to `train` in the recipe, and return the data as splits.

    Args:
        recipe: Recipe, whose network or data is replaced.
        model: The network, if it was passed.
        data: Training and test data set, if they were passed.
    """
    changes: dict[str, Any] = {}
    splits = None
    if model is not None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        changes["network"] = {"name": f"{GIVEN}:{type(model).__name__}", "weights": recipe.network.weights}
    if data is not None:
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise TypeError(f"data must be a pair of data sets, to train and to test on, got {type(data).__name__}")
        name = f"{GIVEN}:{type(data[0]).__name__}"
        splits = as_splits(*data, name)
        changes["data"] = {**recipe.data.model_dump(), "name": name, "root": None, "options": {}}
    if not changes:
        return recipe, None
    untitled = {"title": "", "paper": ""}  # those of the recipe do not apply to other data or networks
    return make_recipe({**recipe.model_dump(), **untitled, **changes}), splits


@contextlib.contextmanager
def reproducible() -> Iterator[None]:
    """Leave the caller's random state unchanged, and keep cuDNN from choosing kernels by timing them."""
    with torch.random.fork_rng(), torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield


class Trainer:
    """Trains one recipe: `fit` reads top to bottom from the first epoch to the result.

    Args:
        recipe: What to train.
        accelerator: Device, precision and processes, from `make_accelerator`.
        path: The run folder, known to all processes; None writes nothing.
        folder: The open run folder, in the main process alone.
        reporter: Progress display; silent by default.
        stop: Handler that records a signal to stop.
        model: The network, if the recipe does not name it.
        splits: Training and test data, if the recipe does not name them.

    Example:
        >>> from saligraft.training import Trainer, make_recipe
        >>> from saligraft.training.accelerator import make_accelerator
        >>> data = {"name": "shapes", "options": {"size": 16, "per_class": 2}}
        >>> training = {"epochs": 1, "batch_size": 10}
        >>> recipe = make_recipe({"data": data, "network": {"name": "wrn-10-1"}, "training": training})
        >>> len(Trainer(recipe, make_accelerator(recipe)).fit().metrics)
        1
    """

    def __init__(
        self,
        recipe: Recipe,
        accelerator: Accelerator,
        *,
        path: Path | None = None,
        folder: RunFolder | None = None,
        reporter: Reporter | None = None,
        stop: StopRequest | None = None,
        model: nn.Module | None = None,
        splits: tuple[Split, Split] | None = None,
    ) -> None:
        self.recipe, self.accelerator, self.path, self.folder = recipe, accelerator, path, folder
        self.reporter, self.stop = reporter or SilentReporter(), stop or StopRequest()
        with shared_errors(accelerator):
            self.train_data, self.test_data = (setup.load_split(recipe, split, splits) for split in ("train", "test"))
            network = setup.make_network(recipe, self.train_data, model)
            if recipe.network.weights is not None:
                load_weights_file(network, recipe.network.weights)
            normalization = Normalization(self.train_data.mean, self.train_data.std)
            methods = recipe.method.build(normalization)
            frozen = recipe.method.saliency.frozen_network(network, normalization)
            setup.check_method(recipe, network, self.train_data, methods, frozen)
            optimizer = recipe.optimizer.build(parameter_groups(network, recipe.optimizer))
        with warnings.catch_warnings():
            # torch >= 2.15 renames the option that `make_accelerator` sets; Accelerate knows the old name alone
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            self.model, self.optimizer = accelerator.prepare(network, optimizer)  # wrapped, as for DDP and loss scaling
        self.network = accelerator.unwrap_model(self.model)
        decay = recipe.training.ema_decay
        self.average = AveragedWeights(self.network, decay) if decay else None
        self.tested_network = self.network if self.average is None else self.average.network  # saved, too
        self.timeline = setup.make_timeline(recipe, self.train_data, accelerator)
        self.test_loader = setup.make_loader(recipe, self.test_data, accelerator, train=False)
        self.generator = torch.Generator()
        warmup = self.timeline.first_batch(recipe.training.warmup_epochs)
        self.step = setup.make_step(
            recipe, self.model, self.train_data, self.generator, methods, warmup_steps=warmup, frozen=frozen
        )
        self.learner = Learner(self.network, self.average, self.optimizer, accelerator, self.step)
        self.drops_blocks = any(isinstance(module, DropBlock) for module in self.network.modules())
        self.position = Position()
        self.saved: tuple[int, int] | None = None  # epoch and batch of the newest checkpoint
        self.conditions: dict[str, Any] = {}
        self.metrics: list[EpochMetrics] = []
        self.timing: list[EpochTiming] = []

    def fit(self, *, resume: bool = False) -> Result:
        """Train and test until the last epoch is done, and write the result.

        Args:
            resume: Continue from the newest intact checkpoint in the run folder, if there is one.
        """
        self._start(resume=resume)
        with contextlib.nullcontext() if self.folder is None else self.folder.record_new_files():
            start_trackers(self.accelerator, self.recipe)
        recipe, timeline, position = self.recipe, self.timeline, self.position
        done = (position.epoch, timeline.first_batch(position.epoch) + position.batch)
        self.reporter.classes = len(self.train_data.classes)
        self.reporter.start(recipe.heading, timeline.epochs, timeline.total_batches, done)
        try:
            while self.position.epoch < timeline.epochs:
                self.run_epoch()
        except DivergenceError as error:  # in all processes
            paths = [] if self.path is None else checkpoint.paths(self.path)
            last = f"last good checkpoint: {paths[-1]}" if paths else "there is no checkpoint"
            kind = ValueError if self.accelerator.is_main_process else OtherProcessError
            raise kind(f"{error}; {last}") from error
        finally:
            self.reporter.close()
            timeline.close_stages_before(timeline.epochs)
            self.test_loader.close()
            for tracker in self.accelerator.trackers:
                tracker.finish()
        return self._finish()

    def run_epoch(self) -> None:
        """Train the rest of the current epoch, test, write the numbers and save a checkpoint."""
        train_loss, lr = self.train_epoch()
        start = time.perf_counter()
        scores = self.evaluate()
        position, stage = self.position, self.timeline.stage(self.position.epoch)
        images = min(stage.batches * stage.loader.batch_size * self.accelerator.num_processes, len(self.train_data))
        seconds, test_seconds = position.seconds, time.perf_counter() - start
        self.position = Position(epoch=position.epoch + 1)
        epoch = self.position.epoch
        metrics = EpochMetrics(epoch, lr, train_loss, *scores)
        timing = EpochTiming(epoch, seconds, images / seconds, test_seconds, position.cpu_seconds)
        self.metrics.append(metrics)
        self.timing.append(timing)
        with shared_errors(self.accelerator):
            if self.folder is not None:
                self.folder.add_epoch(metrics, timing)
        self.accelerator.log(metrics._asdict(), step=epoch)
        self.reporter.epoch(metrics, timing)
        self.timeline.close_stages_before(epoch)
        if epoch == self.timeline.epochs or epoch % self.recipe.training.checkpoint_epochs == 0:
            self.save_checkpoint()
        self._stop_if_requested(now=True)

    def train_epoch(self) -> tuple[float, float]:
        """Train the rest of the current epoch.

        Returns:
            Its mean loss over all processes, and the last learning rate.
        """
        position, training = self.position, self.recipe.training
        epoch, accumulate = position.epoch, training.accumulate
        stage, first = self.timeline.stage(epoch), self.timeline.first_batch(epoch)
        self.network.train()
        stage.loader.set_epoch(epoch)
        batches = stage.loader.batches(position.batch)
        clock = time.perf_counter(), time.process_time()
        while position.batch < stage.batches:
            self.set_learning_rate(epoch + position.batch / stage.batches)
            position.losses += self.optimizer_step(batches, first + position.batch)
            position.batch += accumulate
            clock = position.add_time(clock)
            steps, at_end = (first + position.batch) // accumulate, position.batch == stage.batches
            if steps % READ_LOSSES_EVERY == 0:
                self._check_losses()
            if training.checkpoint_steps and steps % training.checkpoint_steps == 0 and not at_end:
                self.save_checkpoint()
            self._stop_if_requested(now=at_end or steps % AGREE_EVERY == 0)
        loss = mean_loss(position.losses, self.accelerator, epoch, skip=training.on_nonfinite == "skip")
        self._check_losses()
        position.add_time(clock)
        return loss, self.set_learning_rate(epoch + (stage.batches - accumulate) / stage.batches)

    def optimizer_step(self, batches: Iterator[Batch], number: int) -> list[Tensor]:
        """Update the weights once, with the gradient of one or more batches.

        Args:
            batches: Training batches; `training.accumulate` batches are consumed.
            number: Number of the first of them in the run, counted from 0.

        Returns:
            The loss of each batch; NaN if the step was skipped.
        """
        training, losses = self.recipe.training, []
        skips = training.on_nonfinite == "skip"
        buffers = [buffer.clone() for buffer in self.network.buffers()] if skips else []
        self.optimizer.zero_grad()
        for place in range(number, number + training.accumulate):
            is_last = place == number + training.accumulate - 1
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.model):
                losses.append(self._add_gradient(next(batches), place))
            self.reporter.step()
        if skips:
            broken = float((~torch.stack(losses).isfinite()).sum())  # waits for the device
            if sum_over_processes(self.accelerator, [broken])[0]:
                self.reporter.note(
                    f"step {number // training.accumulate + 1} is skipped: its loss is not a finite number"
                )
                with torch.no_grad():  # running statistics as they were before the broken batch
                    for buffer, value in zip(self.network.buffers(), buffers, strict=True):
                        buffer.copy_(value)
                return [torch.full_like(loss, math.nan) for loss in losses]
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return losses

    def _add_gradient(self, batch: Batch, number: int) -> Tensor:
        """Add one batch's share of the gradient; returns its loss, unread: reading would wait for the device."""
        self.seed_batch(number)
        if self.drops_blocks:
            set_drop_block_progress(self.network, number / self.timeline.total_batches)
        images = setup.in_memory_format(self.recipe, batch.images)
        out = self.step(images, batch.labels, index=batch.index, geometry=batch.geometry)
        self.accelerator.backward(out.loss / self.recipe.training.accumulate)
        return out.loss.detach()

    def seed_batch(self, number: int) -> None:
        """Seed a batch's mixing draws, and torch's global stream for layers such as dropout.

        Args:
            number: Number of the batch in the run, counted from 0.
        """
        place = (self.recipe.seed, number, self.accelerator.process_index)
        self.generator.manual_seed(key(*place, setup.MIXING))
        torch.manual_seed(key(*place, setup.LAYERS))

    def set_learning_rate(self, epoch: float) -> float:
        """Set the learning rate that the schedule has at a point of the run.

        Args:
            epoch: Epochs done, with a fraction within an epoch.

        Returns:
            The recipe's own learning rate at that point; parameter groups may have others.
        """
        factor = self.recipe.schedule.factor(epoch, self.recipe.training.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = group[INITIAL_LR] * factor
        return self.recipe.optimizer.lr * factor

    def evaluate(self) -> Scores:
        """Test the network, with running statistics averaged over all processes."""
        average_buffers(self.accelerator, self.network)
        if self.average is not None:
            average_buffers(self.accelerator, self.average.network)
        batches = setup.labelled_images(self.recipe, self.test_loader)
        scores = evaluate(self.tested_network, batches, self.accelerator)
        if not math.isfinite(scores.test_loss):
            raise DivergenceError(self.position.epoch, f" (test loss {scores.test_loss}): lower optimizer.lr")
        check_weights(self.network, self.accelerator, self.position.epoch)
        return scores

    def save_checkpoint(self) -> None:
        """Save a checkpoint, unless one exists for this position; raises on divergence and keeps the previous one."""
        position = self.position
        here = (position.epoch, position.batch)
        if self.path is None or here == self.saved:
            return
        self._check_losses()
        check_weights(self.network, self.accelerator, position.epoch)
        state, shared, own = self.learner.capture(position)
        state = {**self.conditions, **state}
        if self.folder is not None:
            state["metrics"] = self.folder.digest.hexdigest()
        batches = self.timeline.first_batch(position.epoch) + position.batch
        newest = checkpoint.save(self.path, batches, state, shared, own, self.accelerator)
        self.saved = here
        if self.folder is not None:
            checkpoint.prune(self.path, self.recipe.training.keep_checkpoints, newest)

    def _start(self, *, resume: bool) -> None:
        """Begin at the first epoch, at the newest intact checkpoint, or at the end of a finished run."""
        accelerator, path = self.accelerator, self.path
        if path is None:
            return
        saved, history = find_progress(path, self.recipe, accelerator) if resume else (None, None)
        initial_data = None  # the data, as the run was started
        if saved is not None:
            initial_data = saved.state["data"]
        elif history is not None:
            initial_data = (read_marker(path) or {}).get("data")
        with shared_errors(accelerator):
            self.conditions = run_conditions(self.recipe, accelerator, self.train_data, self.test_data)
            differences = [] if saved is None else check_conditions(self.conditions, saved)
            if initial_data is not None:
                check_data(self.conditions["data"], initial_data, is_main_process=accelerator.is_main_process)
                self.conditions["data"] = initial_data  # to warn at each resume
        for difference in differences:
            self.reporter.note(f"resumed under other conditions, so the last digits may differ: {difference}")
        if saved is not None:
            self.position = self.learner.restore(saved)
            self.saved = (self.position.epoch, self.position.batch)
            self.step.steps_taken = self.timeline.first_batch(self.position.epoch) + self.position.batch
        if history is not None:
            if len(history.metrics) > self.position.epoch:  # finished, and its last checkpoint is damaged
                with shared_errors(accelerator):
                    load_weights(path, self.tested_network)
                self.position = Position(epoch=len(history.metrics))
            self.metrics, self.timing = history
        with shared_errors(accelerator):
            if self.folder is not None:
                machine = accelerator.device, accelerator.num_processes
                if history is None:
                    self.folder.start(self.recipe, *machine, self.conditions["data"])
                else:
                    self.folder.resume(self.recipe, history, *machine)

    def _finish(self) -> Result:
        network = self.tested_network
        summary = summarize(self.recipe, self.metrics, sum(p.numel() for p in network.parameters()))
        with shared_errors(self.accelerator):
            if self.folder is not None:
                facts = {"network": self.recipe.network.model_dump(), "data": self.recipe.data.name}
                self.folder.finish(summary, network, facts | self.test_data.inputs._asdict())
        return Result(
            recipe=self.recipe,
            summary=summary,
            metrics=tuple(self.metrics),
            timing=tuple(self.timing),
            network=network.eval(),
            test_data=self.test_data,
            folder=self.path,
        )

    def _check_losses(self) -> None:
        position = self.position
        if self.recipe.training.on_nonfinite != "skip":
            check_losses(position.losses, self.accelerator, position.epoch, self.timeline.stage(position.epoch).batches)

    def _stop_if_requested(self, *, now: bool) -> None:
        signal_number = self.stop.agreed(self.accelerator, now=now)
        if signal_number:
            self.save_checkpoint()
            raise RunStopped(signal_number, self.path)
