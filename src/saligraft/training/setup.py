"""The parts of a run, built from its recipe: data, loaders, network, training step."""

import functools
from collections.abc import Iterator
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from saligraft import data as datasets
from saligraft.data import ImageData, InMemoryLoader
from saligraft.draws import key
from saligraft.losses import mixed_cross_entropy
from saligraft.networks import build_network
from saligraft.step import GraftingStep, MixingStep
from saligraft.strategies import FeatureMixingStep, ViewsStep, training_step
from saligraft.training.method_section import Normalization
from saligraft.training.recipe import Recipe

TrainingStep = GraftingStep | MixingStep | FeatureMixingStep | ViewsStep

# Separate streams of one seed. No stream is carried: each use seeds itself anew from where it stands.
WEIGHTS, MIXING, LAYERS = range(3)


def load_split(recipe: Recipe, split: str) -> ImageData:
    """The recipe's "train" or "test" images."""
    section = recipe.data
    return datasets.load(section.name, split=split, root=section.root, **section.options)


def make_loader(recipe: Recipe, data: ImageData, accelerator: Accelerator, *, train: bool) -> InMemoryLoader:
    """Batches of this process; all processes together take the recipe's batch size."""
    return InMemoryLoader(
        data,
        batch_size=recipe.training.batch_size // accelerator.num_processes,
        train=train,
        seed=recipe.seed,
        device=accelerator.device,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        pad=recipe.data.pad if train else 0,
        flip=recipe.data.flip,
    )


def make_network(recipe: Recipe, data: ImageData) -> nn.Module:
    """The recipe's network with initial weights that the seed decides, whatever was drawn before."""
    with torch.random.fork_rng():
        torch.manual_seed(key(recipe.seed, WEIGHTS))
        network = build_network(recipe.network.name, len(data.classes), data.images.shape[1], **recipe.network.options)
    return network.to(memory_format=torch.channels_last) if recipe.training.channels_last else network


def make_step(
    recipe: Recipe, model: nn.Module, data: ImageData, generator: torch.Generator, warmup_steps: int = 0
) -> TrainingStep:
    """The step of the recipe's method: on originals and mixed images, or as its authors do on the mixed alone."""
    normalization = Normalization(data.mean, data.std)
    options: dict[str, Any] = {
        "criterion": functools.partial(mixed_cross_entropy, label_smoothing=recipe.training.label_smoothing),
        "warmup_steps": warmup_steps,
        "generator": generator,
    }
    if recipe.method.saliency.name is not None:
        options["saliency_source"] = recipe.method.saliency.build(model, normalization)
    if recipe.method.with_originals:
        options["copies"] = recipe.training.copies
    return cast(TrainingStep, training_step(model, recipe.method.build(normalization), **options))


def labelled_images(recipe: Recipe, loader: InMemoryLoader) -> Iterator[tuple[Tensor, Tensor]]:
    """Images in the recipe's memory order, with their labels."""
    for batch in loader:
        yield in_memory_order(recipe, batch.images), batch.labels


def in_memory_order(recipe: Recipe, images: Tensor) -> Tensor:
    return images.to(memory_format=torch.channels_last) if recipe.training.channels_last else images
