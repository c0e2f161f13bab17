"""Any folder of class folders: a user's own images, without writing code."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from saligraft.checks import one_of, probability, whole_number
from saligraft.data.dataset import view_size
from saligraft.data.files import FileNames, class_names, data_root, labelled_files, loose_image
from saligraft.data.image_files import IMAGENET_MEAN, IMAGENET_STD, ImageFiles
from saligraft.names import LARGEST_VIEW

LAYOUT = "put one folder of images per class into it, such as {0}/cats/1.jpg"
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
    """Your own images, as "folder:PATH", with a folder per class: PATH/cats/1.jpg, PATH/dogs/1.jpg.

    Args:
        split: "train" or "test".
        root: PATH. It holds train and test (or val) with class folders in each, or only class folders, which are then
            split.
        size: Side, or (height, width), of a view.
        scale: Smallest and largest share of the area that a training view shows.
        test_share: Share of each class to test on, at least one image, if the folder is split here; chosen by a hash of
            `split_seed` and the file's path.
        split_seed: See `test_share`.
        mean: Per channel, of values in [0,1]; ImageNet's by default.
        std: Standard deviation, likewise.
    """
    one_of("split", split, ("train", "test"))
    whole_number("split_seed", split_seed, least=0)
    if root is None:
        raise ValueError("root must be the folder that holds the class folders, as in folder:PATH, got None")
    root = data_root("folder", root)
    if not root.is_dir():
        raise ValueError(f"folder {root} does not exist; {LAYOUT.format(root)}")
    if (root / "train").is_dir() and class_names(root / "train"):  # otherwise it may be a class of trains
        tests = [root / name for name in _TEST_FOLDERS if (root / name).is_dir()]
        if not tests:
            raise ValueError(f"folder {root} must hold test or val beside train; without train it is split here")
        classes = _classes(root / "train")
        place = root / "train" if split == "train" else tests[0]
        files, labels = labelled_files(place, classes)
    else:
        place, classes = root, _classes(root)
        files, labels = _own_split(root, classes, split, test_share, split_seed)
    return ImageFiles(
        name=f"folder:{root.resolve().name}",
        labels=labels,
        classes=classes,
        mean=mean,
        std=std,
        folder=place,
        files=files,
        size=view_size(size, most=LARGEST_VIEW),
        scale=scale,
    )


def _classes(place: Path) -> tuple[str, ...]:
    loose = loose_image(place)
    if loose is not None:
        raise ValueError(f"image {place / loose} must be in the folder of its class; {LAYOUT.format(place)}")
    classes = class_names(place)
    if len(classes) < 2:
        raise ValueError(
            f"folder {place} must hold at least 2 class folders, got {len(classes)}; {LAYOUT.format(place)}"
        )
    return classes


def _own_split(
    root: Path, classes: tuple[str, ...], split: str, test_share: float, seed: int
) -> tuple[FileNames, Tensor]:
    """Files and labels of one split; each class's share is exact and chosen independently of other classes."""
    probability("test_share", test_share)
    if test_share in (0, 1):
        raise ValueError(f"test_share must lie in (0, 1), got {test_share}")
    files, labels = labelled_files(root, classes)
    hashes = [hashlib.sha256(f"{seed}/{file}".encode(errors="surrogateescape")).digest() for file in files]
    chosen: list[int] = []
    for label, name in enumerate(classes):
        members = (labels == label).nonzero().flatten().tolist()
        if len(members) < 2:
            raise ValueError(f"class folder {root / name} must hold at least 2 images to be split, got {len(members)}")
        count = min(len(members) - 1, max(1, round(len(members) * test_share)))
        test = set(sorted(members, key=hashes.__getitem__)[:count])
        chosen += [place for place in members if (place in test) == (split == "test")]
    return files.subset(torch.tensor(chosen)), labels[chosen]
