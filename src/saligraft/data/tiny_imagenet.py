"""Tiny-ImageNet (Stanford CS231n): 200 classes of ImageNet at 64 x 64, from the official folder or a part of it.

The labels of the official test images were never published, so "test" is the official validation split, as in the
paper. The classes are those of `wnids.txt`, in its order.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from saligraft.checks import one_of
from saligraft.data.cache import cached, files_key
from saligraft.data.dataset import ImageData
from saligraft.data.files import class_names, data_root, download_command, is_hidden, read_lines
from saligraft.data.image_files import read_image

SIDE = 64
FOLDER = "tiny-imagenet-200"
ARCHIVE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_BLOCK = 500

Annotation = tuple[str, int, list[int]]  # file under the root, label, box


def tiny_imagenet(*, split: str = "train", root: str | Path | None = None) -> ImageData:
    """Tiny-ImageNet with boxes: 100,000 training and 10,000 validation images if the set is complete.

    Greyscale files become RGB. Boxes are stored with inclusive ends, so ends grow by one here. They are clipped to the
    image. Boxes of objects outside the official square crop lie on its edge, some with no extent: they keep one pixel.

    Args:
        split: "train", or "val", alias "test".
        root: The folder `tiny-imagenet-200` or its parent.
    """
    import PIL

    one_of("split", split, ("train", "val", "test"))
    root = data_root("tiny-imagenet", root)
    folder = root if (root / "wnids.txt").is_file() else root / FOLDER
    if not (folder / "wnids.txt").is_file():
        raise FileNotFoundError(
            f"no wnids.txt of tiny-imagenet in {root}: put {FOLDER}, unpacked from {ARCHIVE}, there, or download it: "
            f"{download_command('tiny-imagenet', root)}"
        )
    wnids = [wnid for wnid in read_lines(folder / "wnids.txt") if wnid]
    for wnid in wnids:
        if wnids.count(wnid) > 1:
            raise ValueError(f"{folder / 'wnids.txt'} is damaged: it lists {wnid} twice")
    images = _training_images(folder, wnids) if split == "train" else _validation_images(folder, wnids)
    names = [name for name, _, _ in images]
    # Versions of the decoder may differ in the last bit.
    key = files_key(f"tiny-imagenet, RGB, {SIDE} x {SIDE}, Pillow {PIL.__version__}", folder, names)
    boxes = torch.tensor([box for _, _, box in images])
    start = boxes[:, :2].clamp(0, SIDE - 1)
    end = torch.maximum(boxes[:, 2:] + 1, start + 1).clamp(max=SIDE)
    return ImageData(
        name="tiny-imagenet",
        images=cached(f"tiny-imagenet-{'train' if split == 'train' else 'test'}", key, lambda: _decoded(folder, names)),
        labels=torch.tensor([label for _, label, _ in images]),
        classes=_class_names(folder / "words.txt", wnids),
        mean=(0.4802, 0.4481, 0.3975),  # of the complete training set, as commonly published
        std=(0.2770, 0.2691, 0.2821),
        boxes=torch.cat([start, end], dim=1),
    )


def _class_names(path: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first of the names that `words.txt` gives each class."""
    words = dict(line.split("\t", 1) for line in read_lines(path) if "\t" in line)
    for wnid in wnids:
        if wnid not in words:
            raise ValueError(f"{path} is damaged: it has no {wnid}, which wnids.txt lists")
    return tuple(words[wnid].split(",")[0].strip() for wnid in wnids)


def _training_images(folder: Path, wnids: list[str]) -> list[Annotation]:
    images = []
    for label, wnid in enumerate(wnids):
        path = folder / "train" / wnid / f"{wnid}_boxes.txt"
        rows = [(line, wnid, *line.split("\t")) for line in read_lines(path) if line]
        images += _annotated(folder, f"train/{wnid}/images", path, {wnid: label}, rows)
    for name in class_names(folder / "train"):
        if name not in wnids:
            raise ValueError(f"{folder / 'train' / name} is of a class that wnids.txt does not list")
    return images


def _validation_images(folder: Path, wnids: list[str]) -> list[Annotation]:
    path = folder / "val" / "val_annotations.txt"
    rows = []
    for line in filter(None, read_lines(path)):
        name, wnid, *box = f"{line}\t".split("\t")
        rows.append((line, wnid, name, *box[:-1]))
    return _annotated(folder, "val/images", path, {wnid: label for label, wnid in enumerate(wnids)}, rows)


def _annotated(
    folder: Path, inside: str, path: Path, labels: dict[str, int], rows: list[tuple[str, ...]]
) -> list[Annotation]:
    """Check rows (line, class, file, four numbers); the folder `inside` must hold their files, and no others."""
    if not (folder / inside).is_dir():
        raise FileNotFoundError(f"{folder / inside} is missing; the official archive contains it")
    unlisted = {entry.name for entry in (folder / inside).iterdir() if not is_hidden(entry.name)}
    images: dict[str, Annotation] = {}
    for line, wnid, name, *numbers in rows:
        if wnid not in labels:
            raise ValueError(f"{path} is damaged: {line!r} is of a class that wnids.txt does not list")
        try:
            x0, y0, x1, y1 = map(int, numbers)
        except ValueError:
            raise ValueError(f"{path} is damaged: {line!r} does not end with the four integers of a box") from None
        if name in images:
            raise ValueError(f"{path} is damaged: it lists an image twice, {name}")
        if name not in unlisted:
            raise FileNotFoundError(f"{folder / inside / name} is missing; {path.name} lists it")
        unlisted.remove(name)
        images[name] = (f"{inside}/{name}", labels[wnid], [x0, y0, x1, y1])
    for name in sorted(unlisted):
        raise ValueError(f"{folder / inside / name} has no line in {path.name}")
    return list(images.values())


def _decoded(folder: Path, names: list[str]) -> Iterator[Tensor]:
    for start in range(0, len(names), _BLOCK):
        images = {name: read_image(folder / name, upright=False) for name in names[start : start + _BLOCK]}
        for name, image in images.items():
            if image.shape != (3, SIDE, SIDE):
                size = " x ".join(map(str, image.shape[1:]))
                raise ValueError(f"image file {folder / name} must be {SIDE} x {SIDE}, got {size}")
        yield torch.stack(list(images.values()))
