"""Any map-style torch `Dataset` as a split: your own class, torchvision's, or one passed to `train`.

`dataset[i]` is an image and its class. A Pillow image becomes RGB and, like a uint8 tensor (C,H,W), is normalised by
the data set's `mean` and `std`, ImageNet's by default. A float tensor is trained on as it is; `mean` and `std`
then say how it was normalised, which predictions for other images need. All images have one size.
"""

import hashlib
import inspect
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from saligraft.data.dataset import Inputs, Split, StreamedData
from saligraft.data.image_files import IMAGENET_MEAN, IMAGENET_STD, to_tensor
from saligraft.import_path import call, import_object
from saligraft.pixels import denormalized

LABELS = ("targets", "labels", "_labels")  # as torchvision's data sets name them


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnData(StreamedData):
    """A torch `Dataset` as a split.

    The global random generators of torch, Python and NumPy are seeded while a sample is read, so that the data set's
    random transforms repeat in a resumed run; afterwards they are as before.

    Args:
        dataset: The data set.
        places: Index in `dataset` of each sample, (N,) int64.
        shape: Channels, height, width of every image.
        normalisation_known: See `Inputs`.
        name, labels, classes, mean, std, boxes, folder, files: See `StreamedData`.
    """

    geometry_known: ClassVar[bool] = False  # the data set may crop and flip

    dataset: Any
    places: Tensor
    shape: tuple[int, int, int]
    normalisation_known: bool = True

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.shape

    @property
    def inputs(self) -> Inputs:
        return super().inputs._replace(normalisation_known=self.normalisation_known)

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        """Read a sample, as values in [0, 255] that may be fractions, and the geometry of an image that is not cropped.

        Args:
            index: Index of the sample.
            draws: See `StreamedData.sample`.
        """
        place = int(self.places[index])
        with _seeded(place if draws is None else draws.getrandbits(63)):
            image, label = _read(self.dataset, place, self.name)
        if label != int(self.labels[index]):
            raise ValueError(
                f"sample {place} of {self.name} has label {label}, but its labels list {self.labels[index]}"
            )
        pixels = _pixels(image, place, self.name)
        if tuple(pixels.shape) != self.shape:
            shapes = f"{self.shape}, got {tuple(pixels.shape)} for sample {place}"
            raise ValueError(f"images of {self.name} must all have the shape {shapes}: resize them in its transform")
        if pixels.is_floating_point():
            pixels = 255 * denormalized(pixels.float(), self.mean, self.std)  # what the loader undoes
        return pixels, (0, 0)

    def digest(self) -> str:
        """Return a hash of the labels: images may be random, and reading all of them may take long."""
        return hashlib.sha256(self.labels.numpy().tobytes()).hexdigest()

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        return super()._rows(indices) | {"places": self.places[indices]}


def as_split(dataset: Any, name: str, classes: tuple[str, ...] | None = None) -> Split:
    """Return a data set as a split.

    Args:
        dataset: A map-style torch `Dataset`; a split is returned as it is.
        name: Name of the data set.
        classes: Class names; by default its `classes`, or numbers up to its largest label.
    """
    if isinstance(dataset, Split):
        return dataset
    labels = labels_of(dataset, name)
    names = classes or class_names(dataset) or _numbered(labels)
    with _seeded(0):
        image = _pixels(_read(dataset, 0, name)[0], 0, name)
    channels, height, width = image.shape
    mean: tuple[float, ...] = IMAGENET_MEAN if channels == 3 else (0.5,) * channels
    std: tuple[float, ...] = IMAGENET_STD if channels == 3 else (0.25,) * channels
    if image.is_floating_point():
        mean, std = (0.0,) * channels, (1.0,) * channels
    inner = _innermost(dataset)
    in_unit_range = not image.is_floating_point() or bool(((image >= 0) & (image <= 1)).all())
    return OwnData(
        name=name,
        labels=labels,
        classes=names,
        mean=tuple(map(float, getattr(inner, "mean", mean))),
        std=tuple(map(float, getattr(inner, "std", std))),
        dataset=dataset,
        places=torch.arange(len(labels)),
        shape=(channels, height, width),
        normalisation_known=in_unit_range or (hasattr(inner, "mean") and hasattr(inner, "std")),
    )


def as_splits(train: Any, test: Any, name: str) -> tuple[Split, Split]:
    """Return two data sets as splits of the same classes.

    Args:
        train: Data set to train on.
        test: Data set to test on.
        name: Name of both.
    """
    classes = class_names(train) or class_names(test) or _numbered(labels_of(train, name), labels_of(test, name))
    splits = as_split(train, name, classes), as_split(test, name, classes)
    if splits[0].classes != splits[1].classes:
        counts = " and ".join(str(len(split.classes)) for split in splits)
        raise ValueError(f"both data sets must have the same classes, got {counts}, or other names")
    return splits


def load_own(path: str, split: str, root: str | Path | None, options: dict[str, Any]) -> Split:
    """Load a split of a data set that is named by its import path.

    Args:
        path: "package.module:Name" of a class or function, which takes `split` ("train" or "test") or, as many of
            torchvision's do, `train` (True or False).
        split: "train" or "test".
        root: Passed on if it is given.
        options: Its further keyword arguments.
    """
    parameters = inspect.signature(import_object(path, "data set")).parameters
    if "split" not in parameters and "train" not in parameters:
        raise ValueError(f"data set {path!r} must take split='train' or 'test', or train=True or False")

    def build(part: str) -> Any:
        which = {"split": part} if "split" in parameters else {"train": part == "train"}
        place = {} if root is None else {"root": str(root)}
        return call(path, "data set", {**options, **which, **place})

    dataset = build(split)
    if isinstance(dataset, Split) or class_names(dataset):
        return as_split(dataset, path)
    other = build("test" if split == "train" else "train")
    return as_split(dataset, path, _numbered(labels_of(dataset, path), labels_of(other, path)))


def class_names(dataset: Any) -> tuple[str, ...] | None:
    """Return the names in a data set's `classes`; None if it has none.

    Args:
        dataset: The data set, or a `Subset` of it.
    """
    names = getattr(_innermost(dataset), "classes", None)
    return tuple(map(str, names)) if isinstance(names, Sequence) and names else None


def _numbered(*labels: Tensor) -> tuple[str, ...]:
    """Numbers as names of all classes, up to the largest label of the splits."""
    return tuple(map(str, range(max(int(part.max()) for part in labels) + 1)))


def labels_of(dataset: Any, name: str) -> Tensor:
    """Return the class of every sample (N,): from `targets` or `labels`, else by reading all samples once.

    Args:
        dataset: The data set.
        name: Name of the data set, for errors.
    """
    if isinstance(dataset, Split):
        return dataset.labels
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise TypeError(f"{name} must be a map-style torch Dataset with __getitem__ and __len__, got {type(dataset)}")
    if not len(dataset):
        raise ValueError(f"{name} must hold images, got none")
    if isinstance(dataset, Subset):
        return labels_of(dataset.dataset, name)[torch.as_tensor(dataset.indices)]
    if getattr(dataset, "target_transform", None) is None:
        for attribute in LABELS:
            try:
                labels = torch.as_tensor(getattr(dataset, attribute, None))
            except (TypeError, ValueError, RuntimeError):  # absent, or not numbers
                continue
            if labels.shape == (len(dataset),) and not labels.is_floating_point():
                return labels.to(torch.int64)
    with _seeded(0):
        return torch.tensor([_read(dataset, place, name)[1] for place in range(len(dataset))])


def _innermost(dataset: Any) -> Any:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _read(dataset: Dataset[Any], place: int, name: str) -> tuple[Any, int]:
    pair = dataset[place]
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"sample {place} of {name} must be (image, label), got {type(pair).__name__}")
    image, label = pair
    try:
        number = int(label)
    except (TypeError, ValueError, RuntimeError):
        shape = f" of shape {tuple(label.shape)}" if isinstance(label, Tensor) else ""
        raise TypeError(
            f"the label of sample {place} of {name} must be the number of a class, got {type(label).__name__}{shape}"
        ) from None
    if number != label:
        raise ValueError(f"the label of sample {place} of {name} must be the number of a class, got {label!r}")
    return image, number


def _pixels(image: Any, place: int, name: str) -> Tensor:
    """(C,H,W), uint8 or floating point."""
    if hasattr(image, "convert"):  # Pillow's
        return to_tensor(image)
    if not isinstance(image, Tensor) or image.ndim != 3:
        got = f"shape {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        raise TypeError(f"the image of sample {place} of {name} must be a Pillow image or a tensor (C,H,W), got {got}")
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise TypeError(f"the image of sample {place} of {name} must be uint8 or floating point, got {image.dtype}")
    return image


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that transforms draw from, and restore them afterwards."""
    numpy = sys.modules.get("numpy")
    states = random.getstate(), None if numpy is None else numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(states[0])
            if numpy is not None:
                numpy.random.set_state(states[1])
