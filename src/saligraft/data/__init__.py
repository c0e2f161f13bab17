"""Data sets by name, and loaders of batches: from memory, or from files read by worker processes."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saligraft.checks import one_of
from saligraft.data.cifar import cifar10, cifar100
from saligraft.data.cub import cub
from saligraft.data.dataset import ImageData, Inputs, Split, StreamedData
from saligraft.data.folder import folder
from saligraft.data.image_files import ImageFiles
from saligraft.data.imagenet import imagenet
from saligraft.data.loader import Batch, InMemoryLoader, Loader, crop_and_flip
from saligraft.data.own_data import load_own
from saligraft.data.shapes import shapes
from saligraft.data.speech_commands import speech_commands
from saligraft.data.streaming_loader import StreamingLoader
from saligraft.data.tiny_imagenet import tiny_imagenet
from saligraft.import_path import is_import_path
from saligraft.names import resolve

__all__ = [
    "DATASETS",
    "Batch",
    "ImageData",
    "ImageFiles",
    "InMemoryLoader",
    "Inputs",
    "Loader",
    "Split",
    "StreamedData",
    "StreamingLoader",
    "crop_and_flip",
    "load",
    "make_data_loader",
    "resolve",
]

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
    """Load one split of a data set by name, as a torch `Dataset`.

    `data[i]` is the test view of sample i, an image (C,H,W), float32 and normalised, and its class, so the split works
    in `torch.utils.data.DataLoader` directly. The laboratory's loader, `make_data_loader`, differs: it augments
    training images, keyed by (seed, epoch, sample index), and yields a `Batch`, which also holds the samples' indices
    and how each was cropped and flipped.

    Args:
        name: One of `DATASETS`; "folder:PATH" for your own images; "package.module:Name" for your own torch `Dataset`,
            which is called with `split` ("train" or "test") or `train` (True or False), `root` if given and `options`.
        split: "train" or "test"; also "val" where that is the official name.
        root: Folder of the data set's files, by default `data/NAME`; None for `shapes`, which needs none.
        options: Options of the data set's own function, e.g. size, per_class and seed of `shapes`.

    Returns:
        The split, with labels, class names, statistics and, where known, boxes and masks.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> data = load("shapes", split="test", per_class=2)
        >>> len(data), data.num_classes, data[3][0].shape, data[3][1]
        (20, 10, torch.Size([3, 32, 32]), 3)
        >>> images, labels = next(iter(DataLoader(data, batch_size=8)))
        >>> images.shape, labels.tolist()
        (torch.Size([8, 3, 32, 32]), [0, 1, 2, 3, 4, 5, 6, 7])
    """
    if is_import_path(name):
        return load_own(name, split, root, options)
    name, root = resolve(name, root)
    accepted = [option for option in inspect.signature(DATASETS[name]).parameters if option != "split"]
    if root is not None:
        if "root" not in accepted:
            raise ValueError(f"root must be None for {name}, which reads no files, got {str(root)!r}")
        options["root"] = root
    for option in options:
        one_of(f"option of {name}", option, accepted)
    return DATASETS[name](split=split, **options)


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
    """Build the loader that suits the split.

    Args:
        data: The split.
        batch_size: Samples per batch and rank.
        train: Whether to shuffle and augment.
        seed: Decides order and augmentation, with the epoch.
        pad: Padding of random crops of images in memory; other data sets define their own crops.
        flip: Whether to flip half of the training images.
        workers: Worker processes; images in memory need none.
        placement: device, rank, world_size and keep_last of `Loader`.

    Returns:
        An `InMemoryLoader` or a `StreamingLoader`.

    Example:
        >>> loader = make_data_loader(load("shapes", per_class=2), batch_size=4, train=True)
        >>> batch = next(iter(loader))
        >>> batch.images.shape, batch.index.shape, batch.geometry.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4]), torch.Size([4, 3]))
    """
    options = {"batch_size": batch_size, "train": train, "seed": seed, "flip": flip, **placement}
    if isinstance(data, ImageData):
        return InMemoryLoader(data, pad=pad if train else 0, **options)
    assert isinstance(data, StreamedData)
    return StreamingLoader(data, workers=workers, **options)
