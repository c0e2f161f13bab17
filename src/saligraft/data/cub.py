"""CUB-200-2011: 200 species of birds, with the official split and the bounding box of each bird.

Wah et al., 2011 (CNS-TR-2011-001).
"""

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from saligraft.checks import one_of
from saligraft.data.dataset import view_size
from saligraft.data.files import FileNames, data_root, download_command, read_lines
from saligraft.data.image_files import IMAGENET_MEAN, IMAGENET_STD, ImageFiles, image_size
from saligraft.names import LARGEST_VIEW

FOLDER = "CUB_200_2011"  # as the official archive names it
# Number of values in each line of an annotation file, after its key.
_COLUMNS = {
    "classes.txt": 1,
    "images.txt": 1,
    "image_class_labels.txt": 1,
    "train_test_split.txt": 1,
    "bounding_boxes.txt": 4,
}


def cub(
    *,
    split: str = "train",
    root: str | Path | None = None,
    size: int | Sequence[int] = 224,
    scale: tuple[float, float] | None = None,
) -> ImageFiles:
    """Birds of 200 species (CUB-200-2011, alias cub200), with boxes.

    Boxes are clipped to their images and rounded outwards to pixels. Statistics are ImageNet's, which pretrained
    networks expect.

    Args:
        split: "train" or "test".
        root: The folder CUB_200_2011 or its parent.
        size: Side, or (height, width), of a view.
        scale: By default images are resized to a square, of 256 px for views of 224, training views are cropped from it
            at random, and test views show the entire image. Otherwise the smallest and largest share of the area that a
            training view shows, as on ImageNet.
    """
    one_of("split", split, ("train", "test"))
    root = data_root("cub", root)
    base = root if (root / "images.txt").is_file() else root / FOLDER
    if not (base / "images.txt").is_file():
        raise FileNotFoundError(
            f"CUB-200-2011 must be in {root}, got no {root / 'images.txt'}; unpack CUB_200_2011.tgz of "
            f"data.caltech.edu/records/65de6-vp158 there, or download it: {download_command('cub', root)}"
        )
    tables = {name: _table(base / name, columns) for name, columns in _COLUMNS.items()}
    classes, files, classes_of, splits, boxes_of = tables.values()
    for file in ("image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt"):
        for key in sorted(tables[file].keys() ^ files.keys()):
            where = file if key in tables[file] else "images.txt"
            raise ValueError(f"{base / file} must list the images of images.txt, got {key} in {where} alone")
    names, labels, boxes = [], [], []
    for key, (name,) in files.items():
        if (_choice(base / "train_test_split.txt", key, splits, ("0", "1")) == "1") != (split == "train"):
            continue
        label = _choice(base / "image_class_labels.txt", key, classes_of, classes)
        (folder,) = classes[label]
        if Path(name).parent != Path(folder):
            raise ValueError(f"image_class_labels.txt must agree with images.txt, got class {folder} for {name}")
        names.append(name)
        labels.append(list(classes).index(label))
        boxes.append(_box(base, key, name, boxes_of[key]))
    return ImageFiles(
        name="cub",
        labels=torch.tensor(labels, dtype=torch.int64),
        classes=tuple(name.partition(".")[2].replace("_", " ") or name for (name,) in classes.values()),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        boxes=torch.tensor(boxes, dtype=torch.int64).reshape(-1, 4),
        folder=base / "images",
        files=FileNames(names),
        size=view_size(size, most=LARGEST_VIEW),
        scale=scale,
        upright=False,
    )


def _table(path: Path, columns: int) -> dict[str, list[str]]:
    """The values of each key of an annotation file."""
    rows: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        key, *values = line.split() or [""]
        if len(values) != columns or key in rows:
            raise ValueError(f"{path}, line {number}, must hold {columns + 1} columns and a new key, got {line!r}")
        rows[key] = values
    return rows


def _choice(path: Path, key: str, table: dict[str, list[str]], options: Collection[str]) -> str:
    (value,) = table[key]
    if value not in options:
        first, *_, last = options
        raise ValueError(f"{path} must hold one of {first} to {last} for {key}, got {value!r}")
    return value


def _box(base: Path, key: str, name: str, values: list[str]) -> tuple[int, int, int, int]:
    """x0 y0 x1 y1 in integer pixels, within the image, from left, top, width, height."""
    try:
        left, top, width, height = (float(value) for value in values)
        x0, y0 = max(0, math.floor(left)), max(0, math.floor(top))
        x1, y1 = math.ceil(left + width), math.ceil(top + height)
    except (ValueError, OverflowError):  # not a number, NaN or infinity
        raise ValueError(
            f"{base / 'bounding_boxes.txt'} must hold numbers for {key}, got {' '.join(values)!r}"
        ) from None
    rows, columns = image_size(base / "images" / name)
    x1, y1 = min(columns, x1), min(rows, y1)
    if x0 >= x1 or y0 >= y1:
        raise ValueError(f"box of {name} must overlap its image ({rows}, {columns}), got {left, top, width, height}")
    return x0, y0, x1, y1
