"""Data sets, and the loader that crops and flips them as whole batches on the device."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saligraft.checks import one_of
from saligraft.data.image_data import ImageData
from saligraft.data.loader import Batch, InMemoryLoader, crop_and_flip, undo_crop_and_flip
from saligraft.data.shapes import shapes

__all__ = ["DATASETS", "Batch", "ImageData", "InMemoryLoader", "crop_and_flip", "load", "undo_crop_and_flip"]

DATASETS: dict[str, Callable[..., ImageData]] = {"shapes": shapes}


def load(name: str = "shapes", *, split: str = "train", root: str | Path | None = None, **options: Any) -> ImageData:
    """Load one split, "train" or "test", of a data set by name; `shapes` needs no `root`.

    `options` are those of the data set's own function, e.g. size, per_class and seed of `shapes`.
    """
    one_of("data set", name, tuple(DATASETS))
    accepted = [option for option in inspect.signature(DATASETS[name]).parameters if option != "split"]
    if root is not None:
        if "root" not in accepted:
            raise ValueError(f"root must be None for {name}, which reads no files, got {str(root)!r}")
        options["root"] = root
    for option in options:
        one_of(f"option of {name}", option, accepted)
    return DATASETS[name](split=split, **options)
