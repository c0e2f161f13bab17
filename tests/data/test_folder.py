"""A user's own folder: both layouts, the split by hash, and mistakes."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from saligraft.data import ImageFiles, load
from saligraft.data.folder import folder
from saligraft.data.image_files import IMAGENET_MEAN


def make_images(root: Path, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (20, 10), (i, 0, 0)).save(root / name / f"{name.rpartition('/')[2]} {i}.PNG")


def names(data: ImageFiles) -> set[str]:
    return {data.files[i] for i in range(len(data))}


def both(root: Path, **options: Any) -> tuple[ImageFiles, ImageFiles]:
    return folder(root=root, split="train", **options), folder(root=root, split="test", **options)


def test_classes_alone_are_split_class_by_class(tmp_path: Path) -> None:
    root = tmp_path / "my pets"
    make_images(root, {"cat": 10, "dog": 21, "emu": 2})
    train, test = both(root)
    assert train.classes == test.classes == ("cat", "dog", "emu")
    assert train.labels.bincount().tolist() == [8, 17, 1]
    assert test.labels.bincount().tolist() == [2, 4, 1]
    assert names(train).isdisjoint(names(test))
    assert len(names(train) | names(test)) == 33
    for data in (train, test):
        assert all(data.files[i].startswith(data.classes[label]) for i, label in enumerate(data.labels))
    image, geometry = test.resized(8).sample(0, None)
    assert image.shape == (3, 8, 8)
    assert len(geometry) == 6


def test_the_split_depends_on_seed_and_names_alone(tmp_path: Path) -> None:
    make_images(tmp_path / "one", {"cat": 40, "dog": 40})
    make_images(tmp_path / "two", {"ant": 5})
    for name in ("dog", "cat"):
        shutil.copytree(tmp_path / "one" / name, tmp_path / "two" / name)
    first, second = (names(folder(root=tmp_path / root, split="test")) for root in ("one", "two"))
    assert first == {name for name in second if not name.startswith("ant")}
    other = names(folder(root=tmp_path / "one", split="test", split_seed=1))
    assert len(other) == len(first)
    assert other != first
    assert len(folder(root=tmp_path / "one", split="test", test_share=0.5)) == 40


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_a_split_of_the_users_own_is_kept(tmp_path: Path, held_out: str) -> None:
    make_images(tmp_path, {"train/a": 3, "train/b": 2, f"{held_out}/b": 4})
    train, test = both(tmp_path, size=(8, 12), mean=(0.1, 0.2, 0.3))
    assert (len(train), len(test)) == (5, 4)
    assert test.labels.tolist() == [1] * 4
    assert test.folder / test.files[0] == tmp_path / held_out / "b" / "b 0.PNG"
    assert test.image_shape == (3, 8, 12)
    assert test.mean == (0.1, 0.2, 0.3)


def test_a_class_of_trains_is_a_class(tmp_path: Path) -> None:
    make_images(tmp_path, {"train": 3, "bus": 3})
    assert folder(root=tmp_path).classes == ("bus", "train")


def test_the_name_holds_the_path(tmp_path: Path) -> None:
    make_images(tmp_path / "my pets", {"cat": 2, "dog": 2})
    data = load(f"folder:{tmp_path / 'my pets'}", size=8)
    assert isinstance(data, ImageFiles)
    assert (data.name, data.mean) == ("folder:my pets", IMAGENET_MEAN)
    assert torch.equal(data.labels, load("folder", root=tmp_path / "my pets").labels)
    with pytest.raises(ValueError, match="root must be None for folder:pets, whose name contains it, got 'x'"):
        load("folder:pets", root="x")
    with pytest.raises(ValueError, match="must name a path, as in folder:PATH, got none"):
        load("folder:")


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"cat": 2}, "must hold at least 2 class folders, got 1"),
        ({"cat": 2, "dog": 1}, "dog must hold at least 2 images to be split, got 1"),
        ({"train/a": 2, "train/b": 2}, "must hold test or val beside train"),
        ({"train/a": 1, "train/b": 1, "test/c": 1}, "c must be one of the 2 classes of train"),
        ({"cat": 2, "dog": 2, ".": 1}, r"image .*\. 0\.PNG must be in the folder of its class"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, counts: dict[str, int], words: str) -> None:
    root = tmp_path / "root"
    make_images(root, {name: count for name, count in counts.items() if name != "."})
    if "." in counts:
        Image.new("RGB", (4, 4)).save(root / "_. 0.PNG")
    with pytest.raises(ValueError, match=words):
        folder(root=root, split="test")


def test_missing_folders_and_bad_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"folder .*nowhere does not exist; put one folder of images per class"):
        load(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(ValueError, match="root must be the folder that holds the class folders, as in folder:PATH"):
        load("folder")
    make_images(tmp_path, {"cat": 2, "dog": 2})
    with pytest.raises(ValueError, match=r"test_share must lie in \(0, 1\), got 1.0"):
        folder(root=tmp_path, test_share=1.0)
    with pytest.raises(TypeError, match="test_share must be a number, got str"):
        load(f"folder:{tmp_path}", test_share="a")
    with pytest.raises(TypeError, match="split_seed must be an int, got float"):
        load(f"folder:{tmp_path}", split_seed=1.5)
    with pytest.raises(ValueError, match="split must be one of 'train', 'test'; got 'val'"):
        folder(root=tmp_path, split="val")
