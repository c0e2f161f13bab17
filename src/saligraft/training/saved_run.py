"""A finished run, read back: its network, what its input must be, predictions for images, and its test data.

`load_run` is the one way to read a run folder. Class names, normalisation and image size are in model.safetensors, so
that neither the training data nor its folder is needed to use the network.
Shapes: N test images, B batch, C channels, H W pixels, K classes.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from saligraft import checks
from saligraft.config.recipe import Recipe
from saligraft.config.recipe_file import load_recipe, recipe_of_run
from saligraft.data import Batch, Inputs, Split
from saligraft.data.dataset import normalisation
from saligraft.data.image_files import grey, test_view
from saligraft.saliency.base import SaliencySource
from saligraft.saliency.sources import FeatureMap
from saligraft.training import checkpoint
from saligraft.training.accelerator import make_accelerator
from saligraft.training.results import Scores, batch_sums, total_scores
from saligraft.training.run_folder import load_weights, read_inputs
from saligraft.training.setup import in_memory_format, load_split, make_loader, make_network
from saligraft.training.state import load_tested_network


class Predictions(NamedTuple):
    """A network's outputs for all test images, on the host, in the order of the data set.

    Args:
        labels: True classes (N,).
        logits: (N,K) float32.
        scores: Errors and loss of them.
    """

    labels: Tensor
    logits: Tensor
    scores: Scores

    @property
    def predicted(self) -> Tensor:
        """The most probable class of each image (N,); ties go to the lower index."""
        return self.logits.argsort(dim=1, descending=True, stable=True)[:, 0]

    @property
    def confidence(self) -> Tensor:
        """The probability of that class (N,)."""
        return self.logits.double().softmax(dim=1).amax(dim=1)


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """The network of a run folder, with its classes, its normalisation and its test data.

    Args:
        folder: Run folder.
        recipe: The run's recipe, with overrides applied.
        accelerator: Accelerator to evaluate with: device and processes.
        network: Network on the device, in eval mode, without wrappers.
        inputs: Class names, normalisation and image size.
        test_data: Test images, if already loaded; by default the recipe's, loaded when they are first used.

    Example:
        >>> from saligraft.training import load_run
        >>> run = load_run("runs/mine")
        >>> run.network.training, run.inputs.classes[:3], run.inputs.image_shape
        (False, ('disc', 'hexagon', 'square'), (3, 16, 16))
        >>> run.predictions.logits.shape == (len(run.data), run.data.num_classes)
        True
    """

    folder: Path
    recipe: Recipe
    accelerator: Accelerator
    network: nn.Module
    inputs: Inputs
    test_data: Split | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits."""
        return self.inputs.classes

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel, of pixels in [0, 1]."""
        return self.inputs.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of each channel, of pixels in [0, 1]."""
        return self.inputs.std

    def __repr__(self) -> str:  # without the whole network and recipe
        size = "x".join(map(str, self.inputs.image_shape))
        network, method, data = self.recipe.network.name, self.recipe.method.name, self.recipe.data.name
        return f"SavedRun({str(self.folder)!r}: {network}, {method}, {len(self.classes)} classes of {data}, {size})"

    @cached_property
    def data(self) -> Split:
        """Test images."""
        data = load_split(self.recipe, "test") if self.test_data is None else self.test_data
        if len(data.classes) != len(self.classes):
            raise ValueError(
                f"a run must be tested on as many classes as it was trained on ({len(self.classes)}), "
                f"got {len(data.classes)} of {data.name}"
            )
        return data

    def transform(self, image: Any) -> Tensor:
        """Prepare an image as the test images were: upright, resized, cropped at the centre and normalised.

        Args:
            image: A file, a Pillow image of any size and mode, or a tensor (3,H,W) or (1,H,W), uint8 or float in
                [0, 1]; greyscale becomes RGB, or RGB grey for a network of one channel; transparency is ignored. If
                the run does not know how its images were normalised: a float tensor of the network's input.

        Returns:
            (C,H,W) float32, the network's input.
        """
        inputs = self.inputs
        channels, data = inputs.image_shape[0], self.recipe.data.name
        if not inputs.normalisation_known:
            if isinstance(image, Tensor) and image.is_floating_point() and tuple(image.shape) == inputs.image_shape:
                return image.float().cpu()
            raise ValueError(
                f"{data} returned normalised images and has no attributes `mean` and `std`, so an image must be the "
                f"network's input, a float tensor {inputs.image_shape}, got {_kind(image)}"
            )
        if channels not in (1, 3):
            raise ValueError(
                f"images need a network of 3 channels, RGB, or of 1, grey, got one of {channels}, trained on {data}"
            )
        scale, shift = normalisation(inputs.mean, inputs.std)
        view = test_view(image, inputs)
        return (view if channels == 3 else grey(view)).float() * scale + shift

    @torch.no_grad()
    def predict(self, images: Any, *, top: int = 5) -> list[list[tuple[str, float]]]:
        """Classify images.

        Args:
            images: One image, or several: files, Pillow images or tensors as in `transform`; a tensor (B,C,H,W) is B of
                them.
            top: Number of classes to return, at most all.

        Returns:
            For each image, even a single one, its most probable classes with their probabilities, the most probable
            first.
        """
        checks.whole_number("top", top, least=1)
        is_one = isinstance(images, str) or not isinstance(images, Iterable)
        images = [images] if is_one or (isinstance(images, Tensor) and images.ndim != 4) else list(images)
        answers = []
        self.network.eval()
        size = self.recipe.training.batch_size
        for start in range(0, len(images), size):
            batch = torch.stack([self.transform(image) for image in images[start : start + size]])
            batch = in_memory_format(self.recipe, batch.to(self.accelerator.device))
            best = self.network(batch).cpu().double().softmax(dim=1).topk(min(top, len(self.classes)))
            for chosen, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                answers.append([(self.classes[place], share) for place, share in zip(chosen, shares, strict=True)])
        return answers

    @cached_property
    @torch.no_grad()
    def predictions(self) -> Predictions:
        """The network's outputs for all test images, from one pass that all evaluations share."""
        sums, rows = [], []
        for batch in self.batches():
            logits = self.network(batch.images).float()
            sums.append(batch_sums(logits, batch.labels))
            rows.append((batch.index.cpu(), batch.labels.cpu(), logits.cpu()))
        scores = total_scores(sums, self.accelerator)
        labels, logits = self.gather(rows)
        return Predictions(labels, logits, scores)

    def batches(self, data: Split | None = None) -> Iterator[Batch]:
        """Iterate over test views, this process's share, with the network in eval mode.

        Args:
            data: Images to test on; by default all of the run's test images.
        """
        self.network.train(False)
        loader = make_loader(self.recipe, self.data if data is None else data, self.accelerator, train=False)
        try:
            for batch in loader:
                yield batch._replace(images=in_memory_format(self.recipe, batch.images))
        finally:
            loader.close()

    def through_training(self) -> Iterator[tuple[int, "SavedRun"]]:
        """Iterate over epochs and the run with the network as it was tested after them, oldest first.

        Checkpoints are kept of as many epochs as the run's `training.keep_checkpoints` says.
        """
        for path in checkpoint.paths(self.folder):
            saved = checkpoint.read(path)
            if saved.state["batch"] == 0:  # the end of an epoch
                network = copy.deepcopy(self.network)
                load_tested_network(network, saved)
                yield saved.state["epoch"], replace(self, network=network, test_data=self.data)

    def gather(self, rows: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
        """Collect values of all processes in the order of the data set.

        Args:
            rows: For each batch the places of its samples (B,), and values with one entry per sample, on the host.
        """
        columns = [torch.cat(parts) for parts in zip(*rows, strict=True)]
        if self.accelerator.num_processes > 1:
            columns = [torch.cat(parts) for parts in zip(*gather_object([columns]), strict=True)]
        order = columns[0].argsort()
        return [values[order] for values in columns[1:]]

    def saliency(self) -> SaliencySource:
        """The paper's forward saliency, of the layer that the run itself used if it named one."""
        return FeatureMap(self.network, self.recipe.method.saliency.feature_layer)


def _kind(image: Any) -> str:
    return f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__


def load_run(
    folder: str | Path,
    overrides: Iterable[str] = (),
    *,
    model: nn.Module | None = None,
    tested: SavedRun | None = None,
) -> SavedRun:
    """Load the network of a finished run.

    A recipe that names your own code ("package.module:Name") imports and runs it: load only runs that you trust.

    Args:
        folder: Folder of a finished run.
        overrides: Changes to its recipe, "section.key=value", such as other test data.
        model: The network that was passed to `train`, which the recipe cannot build; it gets the run's weights.
        tested: A run on the same data set, whose test data to use.

    Returns:
        The run: `network` in eval mode, `inputs` with `classes`, `mean`, `std` and `image_shape`, `recipe`, `transform`
        and `predict` for images, and `data`, which is loaded when it is first used.

    Example:
        >>> from PIL import Image
        >>> from saligraft.training import load_run
        >>> run = load_run("runs/mine")
        >>> [[(name, share)]] = run.predict([Image.new("L", (40, 30))], top=1)
        >>> name in run.classes, 0.1 <= share <= 1
        (True, True)
    """
    folder = Path(folder)
    recipe = load_recipe(recipe_of_run(folder), overrides)
    if tested is not None and recipe.data.name != tested.recipe.data.name:
        raise ValueError(f"reference must be a run on {tested.recipe.data.name}, got one on {recipe.data.name}")
    accelerator = make_accelerator(recipe, to_train=False)
    inputs = read_inputs(folder)
    network = make_network(recipe, inputs, model)
    load_weights(folder, network)
    network = accelerator.unwrap_model(accelerator.prepare_model(network, evaluation_mode=True)).eval()
    return SavedRun(
        folder=folder,
        recipe=recipe,
        accelerator=accelerator,
        network=network,
        inputs=inputs,
        test_data=None if tested is None else tested.data,
    )
