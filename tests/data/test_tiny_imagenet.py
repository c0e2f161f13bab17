"""Tiny-ImageNet from a small folder of the official form."""

import sys
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
from PIL import Image
from torch import Tensor

from saligraft.data import load
from saligraft.data.tiny_imagenet import tiny_imagenet

WNIDS = ["n03", "n01", "n02"]  # not sorted: the order of the file counts
WORDS = {"n01": "goldfish, Carassius auratus", "n02": "orange", "n03": "potpie", "n04": "of no image"}
TRAIN_BOXES = ["0\t0\t63\t63", "32\t63\t56\t63", "5\t9\t5\t9", "60\t60\t70\t99", "-4\t-1\t10\t2", "40\t50\t30\t20"]
# Ends excluded, inside the image, one pixel where nothing was left.
EXPECTED = [[0, 0, 64, 64], [32, 63, 57, 64], [5, 9, 6, 10], [60, 60, 64, 64], [0, 0, 11, 3], [40, 50, 41, 51]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALIGRAFT_CACHE", str(tmp_path / "cache"))


def write_image(path: Path, seed: int, mode: str = "RGB", side: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = torch.randint(256, (8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)).numpy()
    Image.fromarray(pixels).convert(mode).resize((side, side)).save(path, "JPEG")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-imagenet-200"
    for number, wnid in enumerate(WNIDS):
        for index in range(len(TRAIN_BOXES)):
            path = folder / "train" / wnid / "images" / f"{wnid}_{index}.JPEG"
            write_image(path, 10 * number + index, "L" if index == 1 else "RGB")
        lines = [f"{wnid}_{index}.JPEG\t{box}" for index, box in enumerate(TRAIN_BOXES)]
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("\n".join(lines) + "\n")
    for index in range(4):
        write_image(folder / "val" / "images" / f"val_{index}.JPEG", 100 + index)
    annotations = "".join(f"val_{index}.JPEG\t{WNIDS[(index * 2) % 3]}\t1\t2\t3\t{index + 4}\n" for index in range(4))
    (folder / "val" / "val_annotations.txt").write_text(annotations)
    (folder / "wnids.txt").write_text("\n".join(WNIDS))
    (folder / "words.txt").write_text("".join(f"{wnid}\t{names}\n" for wnid, names in WORDS.items()))
    return folder


def decoded(path: Path) -> Tensor:
    """By another decoder than Pillow."""
    return torch.from_numpy(cv2.imread(str(path), cv2.IMREAD_COLOR)[:, :, ::-1].copy()).permute(2, 0, 1)


def test_training_images_labels_boxes_and_names(root: Path) -> None:
    data = tiny_imagenet(split="train", root=root)
    assert data.classes == ("potpie", "goldfish", "orange")
    assert data.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert data.boxes is not None
    assert data.boxes.tolist() == EXPECTED * 3
    files = [root / "train" / wnid / "images" / f"{wnid}_{index}.JPEG" for wnid in WNIDS for index in range(6)]
    for image, path in zip(data.images, files, strict=True):
        assert (image.int() - decoded(path).int()).abs().max() <= 3  # decoders may round differently
    assert torch.equal(data.images[1, 0], data.images[1, 2])  # greyscale


def test_the_test_split_is_the_official_validation(root: Path) -> None:
    data = load("tiny-imagenet", split="test", root=root)
    assert data.digest() == load("tiny-imagenet", split="val", root=root).digest()
    assert data.labels.tolist() == [0, 2, 1, 0]
    assert data.boxes is not None
    assert data.boxes.tolist() == [[1, 2, 4, index + 5] for index in range(4)]
    assert (
        data.take(torch.tensor([3])).images[0].int() - decoded(root / "val/images/val_3.JPEG").int()
    ).abs().max() <= 3


def test_the_parent_folder_and_the_default_root_are_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(tiny_imagenet(root=root.parent)) == 18
    (root.parent / "data").mkdir()
    root.rename(root.parent / "data" / "tiny-imagenet")
    monkeypatch.chdir(root.parent)
    assert len(tiny_imagenet()) == 18


def test_a_changed_image_is_seen_in_spite_of_the_cache(root: Path) -> None:
    before = tiny_imagenet(root=root)
    write_image(root / "train" / "n01" / "images" / "n01_0.JPEG", 999)
    after = tiny_imagenet(root=root)
    differs = (before.images != after.images).flatten(1).any(1)
    assert differs.nonzero().flatten().tolist() == [6]


def test_decodes_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tiny_imagenet(root=root)
    monkeypatch.setattr(sys.modules["saligraft.data.tiny_imagenet"], "read_image", None)
    assert torch.equal(tiny_imagenet(root=root).images, first.images)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def replace(old: str, new: str) -> Any:
    return lambda path: path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("split", "victim", "damage", "words"),
    [
        ("train", "train/n01/images/n01_3.JPEG", truncate, "n01_3.JPEG cannot be read"),
        ("train", "train/n01/images/n01_3.JPEG", Path.unlink, "n01_3.JPEG is missing; n01_boxes.txt lists it"),
        ("train", "train/n01/images/n01_9.JPEG", Path.touch, "n01_9.JPEG has no line in n01_boxes.txt"),
        ("train", "train/n01/images/n01_3.JPEG", lambda path: write_image(path, 0, side=63), "must be 64 x 64, got 63"),
        ("train", "train/n01/n01_boxes.txt", Path.unlink, "n01_boxes.txt is missing"),
        (
            "train",
            "train/n01/n01_boxes.txt",
            lambda path: path.write_text("\n"),
            "n01_boxes.txt is damaged: it is empty",
        ),
        ("train", "train/n01/n01_boxes.txt", replace("_0.JPEG\t0\t0", "_0.JPEG\t0"), "the four integers of a box"),
        ("train", "train/n01/n01_boxes.txt", replace("0\t0\t63", "a\tb\tc"), "n01_boxes.txt is damaged"),
        (
            "train",
            "train/n01/n01_boxes.txt",
            lambda path: path.write_text(2 * path.read_text()),
            "lists an image twice",
        ),
        ("train", "wnids.txt", replace("n01", "n04"), "n04_boxes.txt is missing"),
        ("train", "wnids.txt", replace("n01", "n02"), "wnids.txt is damaged: it lists n02 twice"),
        ("train", "train/n09", Path.mkdir, "train/n09 is of a class that wnids.txt does not list"),
        ("train", "wnids.txt", lambda path: path.write_bytes(b"\xff\xfe\xfd"), "wnids.txt is damaged"),
        ("test", "words.txt", replace("n02", "n05"), "words.txt is damaged: it has no n02"),
        ("test", "val/val_annotations.txt", replace("n02", "n04"), "of a class that wnids.txt does not list"),
        ("test", "val/val_annotations.txt", replace("val_0.JPEG\tn03", "val_0.JPEG"), "val_annotations.txt is damaged"),
        ("test", "val/val_annotations.txt", replace("\t1\t2\t3\t4", ""), "the four integers of a box"),
        ("test", "val/val_annotations.txt", Path.unlink, "val_annotations.txt is missing"),
        ("test", "val/images/val_2.JPEG", Path.unlink, "val_2.JPEG is missing; val_annotations.txt lists it"),
        ("test", "val/images/val_2.JPEG", truncate, "val_2.JPEG cannot be read"),
    ],
)
def test_damage_is_named(root: Path, split: str, victim: str, damage: Any, words: str) -> None:
    damage(root / victim)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        tiny_imagenet(split=split, root=root)


def test_files_of_the_system_are_no_images(root: Path) -> None:
    (root / "train/n01/images/.DS_Store").touch()
    (root / "val/images/Thumbs.db").touch()
    assert len(tiny_imagenet(split="train", root=root)) > 0
    assert len(tiny_imagenet(split="test", root=root)) > 0


def test_a_missing_root_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=rf"no wnids.txt of tiny-imagenet in {tmp_path}/x: put tiny-imagenet-200"
    ):
        tiny_imagenet(root=tmp_path / "x")


def test_unknown_splits_list_the_valid_ones(root: Path) -> None:
    with pytest.raises(ValueError, match="split must be one of 'train', 'val', 'test'; got 'valid'"):
        tiny_imagenet(split="valid", root=root)
