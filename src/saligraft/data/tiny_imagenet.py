"""Tiny-ImageNet (Stanford CS231n): 200 classes of ImageNet at 64 x 64, from the official folder or a part of it.

The labels of the official test images were never published, so "test" is the official validation split, as in the
paper. The classes are those of `wnids.txt`, in its order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from saligraft.checks import one_of
from saligraft.data.cache import cached, files_key
from saligraft.data.class_folders import class_names, is_hidden
from saligraft.data.image_data import ImageData
from saligraft.data.image_files import read_image
from saligraft.data.roots import data_root

SIDE = 64
FOLDER = "tiny-imagenet-200"
ARCHIVE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_BLOCK = 500


@dataclass(frozen=True, kw_only=True)
class Listed:
    """An image that an annotation file lists."""

    file: str  # under the root
    label: int
    box: tuple[int, ...]


def tiny_imagenet(*, split: str = "train", root: str | Path | None = None) -> ImageData:
    """Tiny-ImageNet with boxes: 100,000 training and 10,000 test images where the set is whole.

    `root` is the folder `tiny-imagenet-200` or its parent. Greyscale files become RGB.

    Boxes are stored with both ends included, so ends grow by one here. They are clipped to the image. Those of objects
    that the official crop to a square cut away lie on its edge, some without any extent: they keep one pixel.
    """
    one_of("split", split, ("train", "test"))
    folder = _folder(data_root("tiny-imagenet", root))
    wnids = _wnids(folder / "wnids.txt")
    images = _training_images(folder, wnids) if split == "train" else _validation_images(folder, wnids)
    names = [image.file for image in images]
    return ImageData(
        name="tiny-imagenet",
        images=cached(f"tiny-imagenet-{split}", files_key(_decoding(), folder, names), lambda: _decoded(folder, names)),
        labels=torch.tensor([image.label for image in images]),
        classes=_class_names(folder, wnids),
        mean=(0.4802, 0.4481, 0.3975),  # of the whole training set, as commonly published
        std=(0.2770, 0.2691, 0.2821),
        boxes=_inside(torch.tensor([image.box for image in images])),
    )


def _folder(root: Path) -> Path:
    for folder in (root, root / FOLDER):
        if (folder / "wnids.txt").is_file():
            return folder
    raise FileNotFoundError(
        f"no wnids.txt of tiny-imagenet in {root}: put {FOLDER}, unpacked from {ARCHIVE}, there, "
        "or let --download do it"
    )


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; the official archive holds it")
    try:
        lines = [line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not any(lines):
        raise ValueError(f"{path} is damaged: it is empty")
    return [line for line in lines if line]


def _wnids(path: Path) -> list[str]:
    wnids = _lines(path)
    for number, wnid in enumerate(wnids):
        if wnid in wnids[:number]:
            raise ValueError(f"{path} is damaged: it lists {wnid} twice")
    return wnids


def _class_names(folder: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first of the names that `words.txt` gives each class."""
    path = folder / "words.txt"
    words = dict(line.split("\t", 1) for line in _lines(path) if "\t" in line)
    for wnid in wnids:
        if wnid not in words:
            raise ValueError(f"{path} is damaged: it names no {wnid}, which wnids.txt lists")
    return tuple(words[wnid].split(",")[0].strip() for wnid in wnids)


def _training_images(folder: Path, wnids: list[str]) -> list[Listed]:
    images = []
    for label, wnid in enumerate(wnids):
        inside, path = f"train/{wnid}/images", folder / "train" / wnid / f"{wnid}_boxes.txt"
        listed = []
        for line in _lines(path):
            name, *box = line.split("\t")
            listed.append(Listed(file=f"{inside}/{name}", label=label, box=_box(path, line, box)))
        _check_files(folder, inside, path, listed)
        images += listed
    for name in class_names(folder / "train"):
        if name not in wnids:
            raise ValueError(f"{folder / 'train' / name} is of a class that wnids.txt does not list")
    return images


def _validation_images(folder: Path, wnids: list[str]) -> list[Listed]:
    path, labels, listed = folder / "val" / "val_annotations.txt", {wnid: n for n, wnid in enumerate(wnids)}, []
    for line in _lines(path):
        name, _, rest = line.partition("\t")
        wnid, *box = rest.split("\t")
        if wnid not in labels:
            raise ValueError(f"{path} is damaged: {line!r} is of a class that wnids.txt does not list")
        listed.append(Listed(file=f"val/images/{name}", label=labels[wnid], box=_box(path, line, box)))
    _check_files(folder, "val/images", path, listed)
    return listed


def _box(path: Path, line: str, numbers: list[str]) -> tuple[int, ...]:
    try:
        x0, y0, x1, y1 = map(int, numbers)
    except ValueError:
        raise ValueError(f"{path} is damaged: {line!r} does not end in the four whole numbers of a box") from None
    return x0, y0, x1, y1


def _inside(boxes: Tensor) -> Tensor:
    """Boxes with excluded ends, clipped to the image, of at least one pixel."""
    start = boxes[:, :2].clamp(0, SIDE - 1)
    end = torch.maximum(boxes[:, 2:] + 1, start + 1).clamp(max=SIDE)
    return torch.cat([start, end], dim=1)


def _check_files(folder: Path, inside: str, annotations: Path, listed: list[Listed]) -> None:
    """A folder must hold the images that its annotations list, once each, and no other."""
    if not (folder / inside).is_dir():
        raise FileNotFoundError(f"{folder / inside} is missing; the official archive holds it")
    there = {f"{inside}/{path.name}" for path in (folder / inside).iterdir() if not is_hidden(path.name)}
    names = [image.file for image in listed]
    for name in names:
        if name not in there:
            raise FileNotFoundError(f"{folder / name} is missing; {annotations.name} lists it")
    for name in sorted(there - set(names)):
        raise ValueError(f"{folder / name} has no line in {annotations.name}")
    if len(names) != len(there):
        raise ValueError(f"{annotations} is damaged: it lists an image twice")


def _decoding() -> str:
    """How files become samples, for the key of the cache; decoders may differ in the last bit."""
    import PIL

    return f"tiny-imagenet, RGB, {SIDE} x {SIDE}, Pillow {PIL.__version__}"


def _decoded(folder: Path, names: list[str]) -> Iterator[Tensor]:
    for start in range(0, len(names), _BLOCK):
        yield torch.stack([_image(folder / name) for name in names[start : start + _BLOCK]])


def _image(path: Path) -> Tensor:
    image = read_image(path, upright=False)
    if image.shape != (3, SIDE, SIDE):
        height, width = image.shape[1:]
        raise ValueError(f"image file {path} must be {SIDE} x {SIDE}, got {height} x {width}")
    return image
