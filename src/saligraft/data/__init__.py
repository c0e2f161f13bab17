"""Data sets by name, and the loaders that make batches of them: from memory, or from files by workers."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saligraft.checks import one_of
from saligraft.data.batches import Batch, Loader
from saligraft.data.cifar import cifar10, cifar100
from saligraft.data.cub import cub
from saligraft.data.folder import folder
from saligraft.data.image_data import ImageData
from saligraft.data.image_files import ImageFiles
from saligraft.data.imagenet import imagenet
from saligraft.data.loader import InMemoryLoader, crop_and_flip, undo_crop_and_flip
from saligraft.data.shapes import shapes
from saligraft.data.speech_commands import speech_commands
from saligraft.data.streamed import StreamedData
from saligraft.data.streaming_loader import StreamingLoader
from saligraft.data.tiny_imagenet import tiny_imagenet

__all__ = [
    "DATASETS",
    "Batch",
    "ImageData",
    "ImageFiles",
    "InMemoryLoader",
    "Loader",
    "Split",
    "StreamedData",
    "StreamingLoader",
    "crop_and_flip",
    "load",
    "make_data_loader",
    "resolve",
    "undo_crop_and_flip",
]

Split = ImageData | StreamedData

DATASETS: dict[str, Callable[..., Split]] = {
    "shapes": shapes,
    "cifar100": cifar100,
    "cifar10": cifar10,
    "tiny-imagenet": tiny_imagenet,
    "imagenet": imagenet,
    "speech-commands": speech_commands,
    "cub": cub,
    "folder": folder,
}


def load(name: str = "shapes", *, split: str = "train", root: str | Path | None = None, **options: Any) -> Split:
    """Load one split, "train" or "test", of a data set by name; `shapes` needs no `root`.

    `options` are those of the data set's own function, e.g. size, per_class and seed of `shapes`. A user's own pictures
    are "folder:PATH".
    """
    name, root = resolve(name, root)
    accepted = [option for option in inspect.signature(DATASETS[name]).parameters if option != "split"]
    if root is not None:
        if "root" not in accepted:
            raise ValueError(f"root must be None for {name}, which reads no files, got {str(root)!r}")
        options["root"] = root
    for option in options:
        one_of(f"option of {name}", option, accepted)
    return DATASETS[name](split=split, **options)


def resolve(name: str, root: str | Path | None = None) -> tuple[str, str | Path | None]:
    """The entry of `DATASETS` and the root that a name stands for: "folder:PATH" names both."""
    kind, colon, path = name.partition(":")
    if kind == "folder" and colon:
        if root is not None:
            raise ValueError(f"root must be None for {name}, whose name holds it, got {str(root)!r}")
        if not path:
            raise ValueError("data set folder: must name a path, as in folder:PATH, got none")
        name, root = kind, path
    one_of("data set", name, tuple(DATASETS))
    return name, root


def make_data_loader(
    data: Split,
    *,
    batch_size: int,
    train: bool,
    seed: int = 0,
    pad: int = 4,
    flip: bool = True,
    workers: int = 0,
    **placement: Any,
) -> Loader:
    """The loader that suits the split; `placement` is device, rank, world_size.

    `pad` is for images in memory: others are cropped as their data set says. `workers` is for the others: images in
    memory need none.
    """
    if isinstance(data, ImageData):
        pad = pad if train else 0
        return InMemoryLoader(data, batch_size=batch_size, train=train, seed=seed, pad=pad, flip=flip, **placement)
    return StreamingLoader(data, batch_size=batch_size, train=train, seed=seed, flip=flip, workers=workers, **placement)
