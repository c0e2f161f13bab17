"""The parts of a run, built from its recipe: data, loaders, network, training step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from saligraft import data as datasets
from saligraft.compiling import compiled_model
from saligraft.config.recipe import Recipe
from saligraft.config.saliency_section import Normalization
from saligraft.data import Inputs, Loader, Split, make_data_loader
from saligraft.data.keyed_draws import key
from saligraft.data.per_class_subset import first_classes, per_class_subset
from saligraft.hooks import Mode, without_trace
from saligraft.import_path import is_given, is_import_path
from saligraft.methods import BatchMixer, FeatureMixer, ImageTransform, MethodChoice, StepStrategy
from saligraft.methods.kinds import Method
from saligraft.names import one_line
from saligraft.networks import build_network
from saligraft.saliency.memory import SaliencyMemory
from saligraft.step import TrainingStep
from saligraft.steps import training_step

# Separate streams of one seed. None is carried along: each use seeds itself from its position in the run.
WEIGHTS, MIXING, LAYERS = range(3)


def load_split(recipe: Recipe, split: str, splits: tuple[Split, Split] | None = None) -> Split:
    """Load the recipe's "train" or "test" images; of each, the recipe's subset per class.

    With `data.held_out`, the images to test on are training images that are not trained on.

    Args:
        recipe: What to load.
        split: "train" or "test".
        splits: Training and test split, if they were passed to `train`.
    """
    section = recipe.data
    skip = section.per_class_subset or 0 if section.held_out and split == "test" else 0
    source = "train" if skip else split
    if splits is not None:
        data = splits[source == "test"]
    elif is_given(section.name):
        raise ValueError(
            f"data.name {section.name!r} stands for data that were passed to train(data=...) in Python: resume the run "
            "by the same call"
        )
    else:
        data = datasets.load(section.name, split=source, root=section.root, **section.options)
    if not len(data):
        raise ValueError(f"{section.name} must hold images to {split} on, got none")
    if section.classes is not None:
        data = first_classes(data, section.classes)
    count = section.per_class_subset if split == "train" else section.test_subset
    return data if count is None and not skip else per_class_subset(data, count, section.subset_seed, skip=skip)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Epochs that share one loader; with progressive resizing there are several.

    Args:
        first_epoch: First epoch of the stage, counted from 0.
        loader: Training batches.
        batches: Batches of an epoch, a multiple of the batches of one optimiser step.
    """

    first_epoch: int
    loader: Loader
    batches: int


class Timeline:
    """The training batches of a run, numbered from 0 over all epochs.

    Args:
        stages: Stages in order, the first from epoch 0.
        epochs: Epochs of the run.
    """

    def __init__(self, stages: Sequence[Stage], epochs: int) -> None:
        self.stages, self.epochs = tuple(stages), epochs
        batches = (self.stage(epoch).batches for epoch in range(epochs))
        self._first_batches = tuple(accumulate(batches, initial=0))

    def stage(self, epoch: int) -> Stage:
        """Return the stage of an epoch, counted from 0."""
        return [stage for stage in self.stages if stage.first_epoch <= epoch][-1]

    @property
    def total_batches(self) -> int:
        """The number of batches of the entire run."""
        return self._first_batches[-1]

    def first_batch(self, epoch: int) -> int:
        """Return the number of batches in all epochs before this one; past the end, `total_batches`."""
        return self._first_batches[min(epoch, self.epochs)]

    def close_stages_before(self, epoch: int) -> None:
        """End the worker processes of finished stages; after the last epoch, of all."""
        current = self.stage(epoch) if epoch < self.epochs else None
        for stage in self.stages:
            if stage is not current and stage.first_epoch <= epoch:
                stage.loader.close()


def make_timeline(recipe: Recipe, data: Split, accelerator: Accelerator) -> Timeline:
    """Build the training loaders, one for each phase of the recipe.

    Args:
        recipe: Batch sizes, phases, and batches per step.
        data: Training images.
        accelerator: The run's accelerator: device and processes.
    """
    training = recipe.training
    splits = [(0, data, training.batch_size)]
    if training.phases:
        resized = getattr(data, "resized", None)
        if resized is None:
            raise ValueError(f"training.phases must be left out for {data.name}, whose images have one size")
        splits = [(phase.from_epoch, resized(phase.size), phase.batch_size) for phase in training.phases]
    stages = []
    for first_epoch, split, step_size in splits:
        loader = make_loader(recipe, split, accelerator, train=True, step_size=step_size)
        batches = len(loader) // training.accumulate * training.accumulate
        if not batches:
            raise ValueError(
                f"training.accumulate must be at most the batches of an epoch ({len(loader)}), "
                f"got {training.accumulate}"
            )
        stages.append(Stage(first_epoch=first_epoch, loader=loader, batches=batches))
    return Timeline(stages, training.epochs)


def make_loader(
    recipe: Recipe, data: Split, accelerator: Accelerator, *, train: bool, step_size: int | None = None
) -> Loader:
    """Build the loader of this process's share of each batch.

    Args:
        recipe: Seed, augmentation and workers.
        data: Images to load.
        accelerator: The run's accelerator: device and processes.
        train: Whether to shuffle, crop and flip.
        step_size: Images of one optimiser step, over all processes and accumulated batches; by default the recipe's.
    """
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
        keep_last=recipe.data.keep_last,
    )


def make_network(recipe: Recipe, data: Split | Inputs, model: nn.Module | None = None) -> nn.Module:
    """Build the recipe's network; its initial weights depend on the recipe's seed alone.

    Args:
        recipe: Network and seed.
        data: Its classes and channels shape the network.
        model: The network, if it was passed to `train`.
    """
    name = recipe.network.name
    if model is not None:
        network = model
    elif is_given(name):
        raise ValueError(
            f"network.name {name!r} stands for a network that was passed to train(model=...) in Python: resume the run "
            "by the same call, or read it by load_run(folder, model=...)"
        )
    else:
        with torch.random.fork_rng():
            torch.manual_seed(key(recipe.seed, WEIGHTS))
            network = build_network(name, len(data.classes), data.image_shape[0], **recipe.network.options)
    if model is not None or is_import_path(name):
        _check_logits(network, data, name)
    if recipe.training.sync_batch_norm:
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return network.to(memory_format=torch.channels_last) if recipe.training.channels_last else network


@torch.no_grad()
def _check_logits(network: nn.Module, data: Split | Inputs, name: str) -> None:
    """Refuse a network of the user's own that does not give a logit per class; leaves no trace in it."""
    device = next((tensor.device for tensor in network.parameters()), torch.device("cpu"))
    images = torch.rand((2, *data.image_shape), generator=torch.Generator().manual_seed(0)).to(device)
    try:
        with without_trace(network, images, "eval"):
            logits = network(images)
    except Exception as error:  # the user's code
        shape = tuple(images.shape)
        raise ValueError(f"network {name!r} cannot take images {shape}: {one_line(error)}") from error
    expected = (2, len(data.classes))
    if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        advice = "" if isinstance(logits, Tensor) else "; recipes need a network whose forward returns the logits alone"
        raise ValueError(f"network {name!r} must give logits {expected} for 2 images, got {got}{advice}")


def make_step(
    recipe: Recipe,
    model: nn.Module,
    data: Split,
    generator: torch.Generator,
    methods: Sequence[Method | MethodChoice],
    *,
    warmup_steps: int = 0,
    frozen: nn.Module | None = None,
) -> TrainingStep:
    """The step of the recipe's method: on originals and mixed images, or as its authors do on the mixed alone.

    Args:
        recipe: Recipe with the method and how it trains.
        model: The network.
        data: Training data, for its statistics and size.
        generator: CPU generator for all random draws.
        methods: The recipe's methods.
        warmup_steps: Steps without any mixing.
        frozen: The network of `method.saliency.network`, if already built.
    """
    # Here and not by the step, so that the source makes its own passes with the compiled model too.
    model = compiled_model(model, recipe.training.compile)
    normalization = Normalization(data.mean, data.std)
    options: dict[str, Any] = {
        "criterion": recipe.training.criterion(),
        "warmup_steps": warmup_steps,
        "generator": generator,
    }
    if recipe.method.saliency.name is not None:
        # Maps of a method that has them from the training pass by its authors come with batch statistics in any case.
        own_pass = recipe.passes in ("joint", "mixed")
        mode: Mode | None = "current" if recipe.method.with_originals and own_pass else None
        options["saliency_source"] = recipe.method.saliency.build(model, normalization, mode, frozen)
    if recipe.weighs_losses:
        options |= {"copies": recipe.training.copies, "loss_weights": recipe.loss_weights}
    if recipe.passes is not None:
        options["passes"] = recipe.passes
    if recipe.passes == "remembered":
        options["memory"] = SaliencyMemory(samples=len(data))
    return training_step(model, methods, **options)


def check_method(
    recipe: Recipe,
    network: nn.Module,
    data: Split,
    methods: Sequence[Method | MethodChoice],
    frozen: nn.Module | None = None,
) -> None:
    """Mix a batch of noise of the data's size by every method: what does not fit fails here.

    Nothing of the network or of the caller's random state changes.

    Args:
        recipe: Recipe whose saliency source is checked.
        network: The network.
        data: Training data, for its image size and statistics.
        methods: The recipe's methods.
        frozen: The network of `method.saliency.network`, if already built.
    """
    if recipe.passes == "remembered" and not data.geometry_known:
        raise ValueError(
            f"training.passes must not be 'remembered' for {data.name}, which does not report how its training views "
            "are cropped or moved: use 'mixed'"
        )
    images = torch.rand((2, *data.image_shape), generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(2, dtype=torch.int64)
    saliency = torch.ones(2, 4, 4)
    if recipe.method.saliency.name is not None:  # a source may not suit the network: CAM does not suit every head
        normalization = Normalization(data.mean, data.std)
        recipe.method.saliency.build(network, normalization, frozen=frozen)(images, labels)
    singles = [single for method in methods for single in method.singles()]
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
    """Yield images in the recipe's memory format, with their labels.

    Args:
        recipe: Whether images are channels-last.
        loader: Batches of images.
    """
    for batch in loader:
        yield in_memory_format(recipe, batch.images), batch.labels


def in_memory_format(recipe: Recipe, images: Tensor) -> Tensor:
    """Return the images in the recipe's memory format."""
    return images.to(memory_format=torch.channels_last) if recipe.training.channels_last else images
