"""Any folder of class folders: a user's own pictures, without code."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from saligraft.checks import one_of, probability, whole_number
from saligraft.data.class_folders import class_names, files_of, labelled_files, loose_image
from saligraft.data.file_names import FileNames
from saligraft.data.image_files import IMAGENET_MEAN, IMAGENET_STD, ImageFiles, view_size
from saligraft.data.roots import data_root

_TEST_FOLDERS = ("test", "val", "validation")


def folder(
    *,
    split: str = "train",
    root: str | Path | None = None,
    size: int | Sequence[int] = 224,
    scale: tuple[float, float] = (0.08, 1.0),
    test_share: float = 0.2,
    split_seed: int = 0,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
) -> ImageFiles:
    """A user's own pictures, a folder per class, as "folder:PATH"; `root` is PATH.

    It holds train and test (or val) with class folders in each, or class folders alone, which are split here: of
    each class `test_share`, at least one image, chosen by a hash of `split_seed` and the file's path.
    `size`, `scale`: see `ImageFiles`. `mean` and `std` are ImageNet's unless given.
    """
    one_of("split", split, ("train", "test"))
    whole_number("split_seed", split_seed, least=0)
    if root is None:
        raise ValueError("root must be the folder that holds the class folders, as in folder:PATH, got None")
    root = data_root("folder", root)
    if not root.is_dir():
        raise ValueError(f"folder {root} does not exist; put one folder of images per class into it")
    places = _split_folders(root)
    if places is None:
        classes = _classes(root)
        place, (files, labels) = root, _own_split(root, classes, split, test_share, split_seed)
    else:
        classes = _classes(places["train"])
        place, (files, labels) = places[split], labelled_files(places[split], classes)
    return ImageFiles(
        name=f"folder:{root.resolve().name}",
        labels=labels,
        classes=classes,
        mean=mean,
        std=std,
        folder=place,
        files=files,
        size=view_size(size),
        scale=scale,
    )


def _split_folders(root: Path) -> dict[str, Path] | None:
    """Where train and test lie, or None where `root` holds the classes themselves."""
    train = root / "train"
    if not train.is_dir() or not class_names(train):  # else it may be the class of trains
        return None
    tests = [root / name for name in _TEST_FOLDERS if (root / name).is_dir()]
    if not tests:
        raise ValueError(f"folder {root} must hold test or val beside train; without train it would be split here")
    return {"train": train, "test": tests[0]}


def _classes(place: Path) -> tuple[str, ...]:
    classes = class_names(place)
    loose = loose_image(place)
    if loose is not None:
        raise ValueError(f"image {place / loose} must lie in the folder of its class")
    if len(classes) < 2:
        raise ValueError(f"folder {place} must hold at least 2 class folders, got {len(classes)}")
    return classes


def _own_split(
    root: Path, classes: tuple[str, ...], split: str, test_share: float, seed: int
) -> tuple[FileNames, torch.Tensor]:
    """Files and labels of one split; a class's share is exact, and its choice depends on no other class."""
    probability("test_share", test_share)
    if test_share in (0, 1):
        raise ValueError(f"test_share must lie in (0, 1), got {test_share}")
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        members = files_of(root, name)
        if len(members) < 2:
            raise ValueError(f"class folder {root / name} must hold at least 2 images to be split, got {len(members)}")
        count = min(len(members) - 1, max(1, round(len(members) * test_share)))
        test = set(sorted(members, key=lambda file: _hash(seed, file))[:count])
        chosen = [file for file in members if (file in test) == (split == "test")]
        files += chosen
        labels += [label] * len(chosen)
    return FileNames(files), torch.tensor(labels)


def _hash(seed: int, file: str) -> bytes:
    return hashlib.sha256(f"{seed}/{file}".encode(errors="surrogateescape")).digest()
