"""CUB-200-2011: 200 species of birds, with the official split and a box about each bird.

Wah et al., 2011 (CNS-TR-2011-001).
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from saligraft.checks import one_of
from saligraft.data.file_names import FileNames
from saligraft.data.image_files import IMAGENET_MEAN, IMAGENET_STD, ImageFiles, image_size, view_size
from saligraft.data.roots import data_root

FOLDER = "CUB_200_2011"  # as the official archive names it


def cub(
    *,
    split: str = "train",
    root: str | Path | None = None,
    size: int | Sequence[int] = 224,
    scale: tuple[float, float] = (0.08, 1.0),
) -> ImageFiles:
    """Birds of 200 species, with boxes; `root` is the folder CUB_200_2011 or its parent.

    Boxes are clipped to their images and widened to whole pixels. Statistics are ImageNet's, which pretrained networks
    expect. `size`, `scale`: see `ImageFiles`.
    """
    one_of("split", split, ("train", "test"))
    base = _base(data_root("cub", root))
    classes = _Table(base / "classes.txt", columns=1)
    files, labels, splits, boxes = (
        _Table(base / name, columns)
        for name, columns in (
            ("images.txt", 1), ("image_class_labels.txt", 1), ("train_test_split.txt", 1), ("bounding_boxes.txt", 4),
        )
    )  # fmt: skip
    for table in (labels, splits, boxes):
        table.check_same_keys(files)
    wanted = [key for key in files.rows if splits.choice(key, ("0", "1")) == (split == "train")]
    names = [files.rows[key][0] for key in wanted]
    return ImageFiles(
        name="cub",
        labels=torch.tensor([_label(key, classes, labels, files) for key in wanted], dtype=torch.int64),
        classes=tuple(_in_words(name) for (name,) in classes.rows.values()),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        boxes=_clipped(base / "images", names, [boxes.numbers(key) for key in wanted]),
        folder=base / "images",
        files=FileNames(names),
        size=view_size(size),
        scale=scale,
        upright=False,
    )


class _Table:
    """A text file whose lines hold a key and `columns` values."""

    def __init__(self, path: Path, columns: int) -> None:
        if not path.is_file():
            raise ValueError(f"file {path} is missing; it comes with CUB_200_2011.tgz")
        self.path = path
        self.rows: dict[str, list[str]] = {}
        for number, line in enumerate(self._lines(), start=1):
            key, *values = line.split() or [""]
            if len(values) != columns or key in self.rows:
                raise ValueError(f"{path}, line {number}, must hold a new key and {columns} value(s), got {line!r}")
            self.rows[key] = values

    def _lines(self) -> list[str]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path} must be text, got {error}") from error
        if not lines:
            raise ValueError(f"{self.path} must hold lines, got none")
        return lines

    def check_same_keys(self, other: "_Table") -> None:
        if self.rows.keys() != other.rows.keys():
            odd = sorted(self.rows.keys() ^ other.rows.keys())[0]
            where = self.path.name if odd in self.rows else other.path.name
            raise ValueError(f"{self.path} must list the images of {other.path.name}, got {odd} in {where} alone")

    def choice(self, key: str, options: Sequence[str]) -> int:
        """Which of `options` a row's only value is."""
        (value,) = self.rows[key]
        if value not in options:
            raise ValueError(f"{self.path} must hold one of {options[0]} to {options[-1]} for {key}, got {value!r}")
        return options.index(value)

    def numbers(self, key: str) -> list[float]:
        try:
            values = [float(value) for value in self.rows[key]]
        except ValueError:
            values = [math.nan]
        if not all(map(math.isfinite, values)):
            raise ValueError(f"{self.path} must hold numbers for {key}, got {' '.join(self.rows[key])!r}")
        return values


def _label(key: str, classes: _Table, labels: _Table, files: _Table) -> int:
    """An image's class, which its folder must confirm."""
    label = labels.choice(key, list(classes.rows))
    folder, name = classes.rows[labels.rows[key][0]][0], files.rows[key][0]
    if Path(name).parent != Path(folder):
        raise ValueError(f"{labels.path} must agree with images.txt, got class {folder} for {name}")
    return label


def _base(root: Path) -> Path:
    for base in (root, root / FOLDER):
        if (base / "images.txt").is_file():
            return base
    raise ValueError(
        f"CUB-200-2011 must lie in {root}, got no {root / 'images.txt'}; unpack CUB_200_2011.tgz of "
        "data.caltech.edu/records/65de6-vp158 there"
    )


def _in_words(name: str) -> str:
    """ "005.Crested_Auklet" as "Crested Auklet"."""
    return name.partition(".")[2].replace("_", " ") or name


def _clipped(folder: Path, names: list[str], boxes: list[list[float]]) -> Tensor:
    """Boxes (N,4) as x0 y0 x1 y1 of whole pixels, within their images, from left, top, width, height."""
    clipped = []
    for name, (left, top, width, height) in zip(names, boxes, strict=True):
        rows, columns = image_size(folder / name)
        x0, y0 = max(0, math.floor(left)), max(0, math.floor(top))
        x1, y1 = min(columns, math.ceil(left + width)), min(rows, math.ceil(top + height))
        if x0 >= x1 or y0 >= y1:
            raise ValueError(f"box of {name} must meet its image ({rows}, {columns}), got {left, top, width, height}")
        clipped.append((x0, y0, x1, y1))
    return torch.tensor(clipped, dtype=torch.int64).reshape(-1, 4)
