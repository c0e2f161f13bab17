"""A run's parts, ready to go: data, network, optimiser and step, and which loader serves which epoch."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from saligraft.config.recipe import Recipe
from saligraft.data import Loader, Split
from saligraft.regularizers import DropBlock
from saligraft.step import TrainingStep
from saligraft.training.accelerator import told_to_all
from saligraft.training.ema import Average
from saligraft.training.optimizer import build_optimizer
from saligraft.training.setup import (
    check_method,
    load_split,
    make_loader,
    make_network,
    make_step,
    training_loaders,
)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Epochs that share one loader, from `first_epoch` on; with progressive resizing there are several."""

    first_epoch: int
    loader: Loader
    batches: int  # of an epoch: a multiple of the batches that one optimiser step takes


class Timeline:
    """Where in the run a batch stands, counted from 0."""

    def __init__(self, stages: Sequence[Stage], epochs: int) -> None:
        self.stages, self.epochs = tuple(stages), epochs
        batches = (self.stage(epoch).batches for epoch in range(epochs))
        self._first_batches = tuple(accumulate(batches, initial=0))

    def stage(self, epoch: int) -> Stage:
        return [stage for stage in self.stages if stage.first_epoch <= epoch][-1]

    def close_stages_before(self, epoch: int) -> None:
        """Let go of the worker processes of stages that are over; after the last epoch, of all."""
        current = self.stage(epoch) if epoch < self.epochs else None
        for stage in self.stages:
            if stage is not current and stage.first_epoch <= epoch:
                stage.loader.close()

    def first_batch(self, epoch: int) -> int:
        """The number of batches in all epochs before this one; of the whole run, beyond its end."""
        return self._first_batches[min(epoch, self.epochs)]


@dataclass(frozen=True, kw_only=True)
class Session:
    """One process's part of a run."""

    recipe: Recipe
    accelerator: Accelerator
    model: nn.Module  # as Accelerate wrapped it
    network: nn.Module  # the bare one
    average: Average | None  # of its weights
    optimizer: Any  # Accelerate's wrapper, which knows about loss scaling
    step: TrainingStep
    generator: torch.Generator  # of the step's draws
    drops_blocks: bool  # whether the network holds DropBlock, whose rate grows with the steps
    timeline: Timeline
    train_data: Split
    test_loader: Loader
    test_data: Split

    @property
    def tested_network(self) -> nn.Module:
        """What is tested and saved: the average of the weights where there is one."""
        return self.network if self.average is None else self.average.network


def prepare(recipe: Recipe, accelerator: Accelerator) -> Session:
    """Load the data, build the network, and hand network and optimiser to Accelerate."""
    with told_to_all(accelerator):
        train_data, test_data = load_split(recipe, "train"), load_split(recipe, "test")
        network = make_network(recipe, train_data)
        check_method(recipe, network, train_data)
        optimizer = build_optimizer(network, recipe.optimizer)
    with warnings.catch_warnings():
        # torch >= 2.15 renames the option that `make_accelerator` sets; Accelerate knows the old name alone
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
        model, optimizer = accelerator.prepare(network, optimizer)
    network = accelerator.unwrap_model(model)
    timeline = _timeline(recipe, train_data, accelerator)
    generator = torch.Generator()
    warmup = timeline.first_batch(recipe.training.warmup_epochs)
    return Session(
        recipe=recipe,
        accelerator=accelerator,
        model=model,
        network=network,
        average=Average(network, recipe.training.ema_decay) if recipe.training.ema_decay else None,
        optimizer=optimizer,
        step=make_step(recipe, model, train_data, generator, warmup),
        generator=generator,
        drops_blocks=any(isinstance(module, DropBlock) for module in network.modules()),
        timeline=timeline,
        train_data=train_data,
        test_loader=make_loader(recipe, test_data, accelerator, train=False),
        test_data=test_data,
    )


def _timeline(recipe: Recipe, data: Split, accelerator: Accelerator) -> Timeline:
    group = recipe.training.accumulate
    stages = []
    for first_epoch, loader in training_loaders(recipe, data, accelerator):
        batches = len(loader) // group * group
        if not batches:
            raise ValueError(
                f"training.accumulate must be at most the batches of an epoch ({len(loader)}), got {group}"
            )
        stages.append(Stage(first_epoch=first_epoch, loader=loader, batches=batches))
    return Timeline(stages, recipe.training.epochs)
