"""CUB-200-2011 on files of the official form: split, boxes, names, and every inconsistency."""

import random
from pathlib import Path

import pytest
import torch
from PIL import Image

from saligraft.data import load
from saligraft.data.cub import cub

FILES = {
    "classes.txt": "1 001.Black_footed_Albatross\n2 002.Wren\n",
    "images.txt": "1 001.Black_footed_Albatross/a.jpg\n2 001.Black_footed_Albatross/b.jpg\n3 002.Wren/c.jpg\n",
    "image_class_labels.txt": "1 1\n2 1\n3 2\n",
    "train_test_split.txt": "1 0\n2 1\n3 1\n",
    "bounding_boxes.txt": "1 2.5 3.0 10.2 5.0\n2 0.0 0.0 40.0 20.0\n3 30.7 -2.0 15.0 40.0\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Images of 20 by 40 pixels (H, W), one of them grey."""
    base = tmp_path / "CUB_200_2011"
    for name, folder, mode in (("a", "001.Black_footed_Albatross", "RGB"), ("b", "001.Black_footed_Albatross", "L"),
                               ("c", "002.Wren", "RGB")):  # fmt: skip
        path = base / "images" / folder / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (40, 20), 100 if mode == "L" else (10, 20, 30)).save(path)
    for file, text in FILES.items():
        (base / file).write_text(text, encoding="utf-8")
    return base


def change(root: Path, file: str, old: str, new: str) -> None:
    text = (root / file).read_text(encoding="utf-8")
    assert old in text
    (root / file).write_text(text.replace(old, new), encoding="utf-8")


def test_split_names_and_boxes_are_the_official_ones_clipped(root: Path) -> None:
    train, test = cub(root=root), cub(root=root.parent, split="test", size=16)
    assert train.classes == test.classes == ("Black footed Albatross", "Wren")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1], [0])
    assert train.boxes is not None
    assert test.boxes is not None
    assert train.boxes.tolist() == [[0, 0, 40, 20], [30, 0, 40, 20]]
    assert test.boxes.tolist() == [[2, 3, 13, 8]]
    assert test.files[0].endswith("/a.jpg")


def test_views_show_most_of_the_bird_as_in_the_protocol_of_localisation(root: Path) -> None:
    """7/8 of each side in training, all of it in tests; recipes of before, which name a scale, keep their views."""
    train, test = load("cub", root=root, size=14), load("cub", root=root, split="test", size=14)
    boxes = [train.sample(0, random.Random(seed))[1] for seed in range(20)]
    assert {box[2] for box in boxes} <= {17, 18}
    assert {box[3] for box in boxes} <= {34, 35, 36}
    assert test.sample(0, None)[1] == (0, 0, 20, 40, 20, 40)
    before = load("cub", root=root, size=14, scale=(0.08, 1.0))
    assert len({before.sample(0, random.Random(seed))[1][2:4] for seed in range(20)}) > 10
    assert load("cub", root=root, split="test", size=14, scale=(0.08, 1.0)).sample(0, None)[1][:4] != (0, 0, 20, 40)


def test_grey_images_have_three_channels(root: Path) -> None:
    data = load("cub", root=root, size=16)
    image = data.take(torch.tensor([0])).images
    assert image.shape == (1, 3, 16, 16)
    assert (image == 100).all()


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("image_class_labels.txt", "3 2\n", "", r"image_class_labels\.txt must list the images of images\.txt, got 3"),
        ("bounding_boxes.txt", "\n3 ", "\n4 ", r"bounding_boxes\.txt must list the images of images\.txt, got 3 in"),
        ("train_test_split.txt", "2 1", "1 1", r"train_test_split\.txt, line 2, must hold 2 columns and a new key"),
        ("train_test_split.txt", "2 1", "2 x", r"must hold one of 0 to 1 for 2, got 'x'"),
        ("image_class_labels.txt", "3 2", "3 7", r"must hold one of 1 to 2 for 3, got '7'"),
        ("image_class_labels.txt", "2 1", "2 2", r"must agree with images\.txt, got class 002\.Wren for 001.*/b\.jpg"),
        ("bounding_boxes.txt", "30.7", "nan", r"must hold numbers for 3, got 'nan -2\.0 15\.0 40\.0'"),
        ("bounding_boxes.txt", "30.7", "3O.7", r"must hold numbers for 3"),
        ("bounding_boxes.txt", "30.7", "40.0", r"box of 002\.Wren/c\.jpg must overlap its image \(20, 40\), got"),
        ("bounding_boxes.txt", " 40.0\n", "\n", r"bounding_boxes\.txt, line 3, must hold 5 columns and a new key"),
        ("images.txt", "c.jpg", "d.jpg", r"image file .*d\.jpg is missing"),
    ],
)
def test_inconsistent_files_are_named(root: Path, file: str, old: str, new: str, words: str) -> None:
    change(root, file, old, new)
    with pytest.raises(ValueError, match=words):
        cub(root=root)


def test_the_official_name_of_the_set_is_known(root: Path) -> None:
    assert load("cub200", root=root).files[0] == load("cub", root=root).files[0]


def test_an_empty_line_is_no_row(root: Path) -> None:
    change(root, "classes.txt", "\n2", "\n\n2")
    with pytest.raises(ValueError, match=r"classes\.txt, line 2, must hold 2 columns and a new key, got ''"):
        cub(root=root)


@pytest.mark.parametrize("file", FILES)
def test_missing_empty_and_damaged_files_are_named(root: Path, file: str) -> None:
    for content in (b"", b"1 \xff\xfe\n"):
        (root / file).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{file} is damaged"):
            cub(root=root)
    (root / file).unlink()
    with pytest.raises(FileNotFoundError, match=file.replace(".", r"\.")):
        cub(root=root)


def test_a_missing_root_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"CUB-200-2011 must be in .*; unpack CUB_200_2011\.tgz of data"):
        cub(root=tmp_path)
