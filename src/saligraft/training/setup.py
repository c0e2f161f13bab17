"""The parts of a run, built from its recipe: data, loaders, network, training step."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from saligraft import data as datasets
from saligraft.config.method_section import Normalization
from saligraft.config.recipe import Recipe
from saligraft.data import Loader, Split, make_data_loader
from saligraft.data.keyed_draws import key
from saligraft.data.per_class_subset import per_class_subset
from saligraft.hooks import without_trace
from saligraft.losses import mixed_cross_entropy
from saligraft.methods import BatchMixer, FeatureMixer, ImageTransform, StepStrategy
from saligraft.networks import build_network
from saligraft.step import TrainingStep
from saligraft.steps import training_step
from saligraft.training.compiled import compile_passes

# Separate streams of one seed. No stream is carried: each use seeds itself anew from where it stands.
WEIGHTS, MIXING, LAYERS = range(3)


def load_split(recipe: Recipe, split: str) -> Split:
    """The recipe's "train" or "test" images; of training images the recipe's part of each class."""
    section = recipe.data
    data = datasets.load(section.name, split=split, root=section.root, **section.options)
    if not len(data):
        raise ValueError(f"{section.name} must hold images to {split} on, got none")
    if split != "train" or section.per_class_subset is None:
        return data
    return per_class_subset(data, section.per_class_subset, section.subset_seed)


def training_loaders(recipe: Recipe, data: Split, accelerator: Accelerator) -> list[tuple[int, Loader]]:
    """First epoch and loader of each phase; one from epoch 0 on where images keep their size."""
    phases = recipe.training.phases
    if not phases:
        return [(0, make_loader(recipe, data, accelerator, train=True))]
    resized = getattr(data, "resized", None)
    if resized is None:
        raise ValueError(f"training.phases must be left out for {data.name}, whose images have one size")
    return [
        (
            phase.from_epoch,
            make_loader(recipe, resized(phase.size), accelerator, train=True, step_size=phase.batch_size),
        )
        for phase in phases
    ]


def make_loader(
    recipe: Recipe, data: Split, accelerator: Accelerator, *, train: bool, step_size: int | None = None
) -> Loader:
    """Batches of this process: all processes, and the batches that a step accumulates, make up one step's images."""
    return make_data_loader(
        data,
        batch_size=(step_size or recipe.training.batch_size) // accelerator.num_processes // recipe.training.accumulate,
        train=train,
        seed=recipe.seed,
        device=accelerator.device,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        pad=recipe.data.pad,
        flip=recipe.data.flip,
        workers=recipe.data.workers,
    )


def make_network(recipe: Recipe, data: Split) -> nn.Module:
    """The recipe's network with initial weights that the seed decides, whatever was drawn before."""
    with torch.random.fork_rng():
        torch.manual_seed(key(recipe.seed, WEIGHTS))
        network = build_network(recipe.network.name, len(data.classes), data.image_shape[0], **recipe.network.options)
    if recipe.training.sync_batch_norm:
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return network.to(memory_format=torch.channels_last) if recipe.training.channels_last else network


def make_step(
    recipe: Recipe, model: nn.Module, data: Split, generator: torch.Generator, warmup_steps: int = 0
) -> TrainingStep:
    """The step of the recipe's method: on originals and mixed images, or as its authors do on the mixed alone.

    Args:
        recipe: Says which method, and how it trains.
        model: The network.
        data: What the images were normalised by.
        generator: Of all draws.
        warmup_steps: Steps without any mixing.
    """
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
    if recipe.training.compile:
        model = compile_passes(model, options.get("saliency_source"))
    return training_step(model, recipe.method.build(normalization), **options)


def check_method(recipe: Recipe, network: nn.Module, data: Split) -> None:
    """Mix a batch of noise of the data's size by every method: what does not fit fails here.

    Nothing of the network or of the caller's random state changes.

    Args:
        recipe: Says which methods.
        network: The network.
        data: Whose image size and statistics hold.
    """
    images = torch.rand((2, *data.image_shape), generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(2, dtype=torch.int64)
    saliency = torch.ones(2, 4, 4)
    normalization = Normalization(data.mean, data.std)
    if recipe.method.saliency.name is not None:  # a source may not suit the network, as CAM not every head
        recipe.method.saliency.build(network, normalization)(images, labels)
    singles = [single for method in recipe.method.build(normalization) for single in method.singles()]
    with torch.random.fork_rng():
        for method in (single.without_noise() for single in singles):
            if isinstance(method, BatchMixer):
                method(images, labels, saliency if method.needs_saliency else None)
            elif isinstance(method, ImageTransform):
                method(images)
            elif isinstance(method, StepStrategy):
                method.views(images)
            elif isinstance(method, FeatureMixer):
                quiet = without_trace(network, images, "eval")
                with torch.no_grad(), quiet, method.mixing(network, images, labels) as mixed:
                    network(mixed.images)


def labelled_images(recipe: Recipe, loader: Loader) -> Iterator[tuple[Tensor, Tensor]]:
    """Images in the recipe's memory order, with their labels."""
    for batch in loader:
        yield in_memory_order(recipe, batch.images), batch.labels


def in_memory_order(recipe: Recipe, images: Tensor) -> Tensor:
    return images.to(memory_format=torch.channels_last) if recipe.training.channels_last else images
