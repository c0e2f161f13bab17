"""Every data set with files as a handful of made-up files in its official form."""

import dataclasses
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.speech_commands.small_set import write_set

from saligraft.data import cifar

CLASSES = ("n01440764", "n01443537", "n01484850")
PER_CLASS = 3
WHOLE = "0\t0\t63\t63"  # a box


def write_small_sets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Name → root of each set; checksums of CIFAR-100 and the cache become their own until `monkeypatch` undoes it."""
    monkeypatch.setenv("SALIGRAFT_CACHE", str(folder / "cache"))
    roots = {name: folder / name for name in ("cifar100", "tiny-imagenet", "imagenet", "speech-commands", "cub")}
    monkeypatch.setattr(cifar, "CIFAR100", _cifar100(roots["cifar100"]))
    _tiny_imagenet(roots["tiny-imagenet"])
    for split in ("train", "val"):
        _class_folders(roots["imagenet"] / split)
    write_set(roots["speech-commands"])
    _cub(roots["cub"])
    return roots


def _cifar100(root: Path) -> cifar.CifarFiles:
    """Two pictures of each class in each split; the source that knows these files."""
    root.mkdir()
    files = {}
    for split in ("train", "test"):
        pixels = np.random.default_rng(0).integers(0, 256, (200, 3072), dtype=np.uint8)
        labels = {b"fine_labels": list(range(100)) * 2, b"coarse_labels": [0] * 200}
        content = pickle.dumps({b"data": pixels, **labels}, protocol=3)
        (root / split).write_bytes(content)
        files[split] = {split: hashlib.md5(content).hexdigest()}
    source = cifar.CIFAR100
    pickles, binaries = (dataclasses.replace(form, files=files) for form in (source.pickles, source.binaries))
    return dataclasses.replace(source, pickles=pickles, binaries=binaries)


def _picture(path: Path, side: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(list(path.name.encode())).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((side, side)).save(path, "JPEG")
    return path.name


def _class_folders(folder: Path) -> None:
    for name in CLASSES:
        for number in range(PER_CLASS):
            _picture(folder / name / f"{name}_{number}.JPEG", 80)


def _tiny_imagenet(root: Path) -> None:
    validation = []
    for wnid in CLASSES:
        inside = root / "train" / wnid
        names = [_picture(inside / "images" / f"{wnid}_{number}.JPEG", 64) for number in range(PER_CLASS)]
        (inside / f"{wnid}_boxes.txt").write_text("".join(f"{name}\t{WHOLE}\n" for name in names))
        name = _picture(root / "val" / "images" / f"val_{wnid}.JPEG", 64)
        validation.append(f"{name}\t{wnid}\t{WHOLE}\n")
    (root / "val" / "val_annotations.txt").write_text("".join(validation))
    (root / "wnids.txt").write_text("\n".join(CLASSES))
    (root / "words.txt").write_text("".join(f"{wnid}\ta word\n" for wnid in CLASSES))


def _cub(root: Path) -> None:
    birds = [f"{number:03d}.Bird_{number}" for number in (1, 2, 3)]
    files = [
        f"{bird}/{_picture(root / 'images' / bird / f'{bird}_{number}.jpg', 80)}"
        for bird in birds
        for number in range(PER_CLASS + 1)
    ]
    columns = {
        "classes.txt": birds,
        "images.txt": files,
        "image_class_labels.txt": [str(number // (PER_CLASS + 1) + 1) for number in range(len(files))],
        "train_test_split.txt": [str(int(number % (PER_CLASS + 1) > 0)) for number in range(len(files))],
        "bounding_boxes.txt": ["5.0 5.0 40.0 50.0"] * len(files),
    }
    for file, values in columns.items():
        (root / file).write_text("".join(f"{number} {value}\n" for number, value in enumerate(values, start=1)))
