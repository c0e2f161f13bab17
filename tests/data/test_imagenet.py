"""ImageNet's layouts, names and counts, on files of the same form."""

from pathlib import Path

import pytest
from PIL import Image
from timm.data import ImageNetInfo

from saligraft.data import load
from saligraft.data.imagenet import imagenet

WNIDS = ImageNetInfo("imagenet-1k").label_names()


def make_images(root: Path, wnids: list[str], splits: tuple[str, ...] = ("train", "val")) -> None:
    for split in splits:
        for number, wnid in enumerate(wnids):
            (root / split / wnid).mkdir(parents=True)
            path = root / split / wnid / f"{wnid}_{number}.JPEG"
            if number < 3:
                Image.new("L", (30, 20), 60 * number).save(path)
            else:
                path.touch()


@pytest.mark.parametrize("inner", [".", "ILSVRC/Data/CLS-LOC"])
def test_some_classes_are_named_as_their_folders(tmp_path: Path, inner: str) -> None:
    make_images(tmp_path / inner, ["n02", "n01", "n03"])
    train, test = (load("imagenet", root=tmp_path, split=split, size=16) for split in ("train", "test"))
    assert train.classes == test.classes == ("n01", "n02", "n03")
    assert train.labels.tolist() == [0, 1, 2]
    assert test.take(test.labels[:1]).images.unique().tolist() == [60]  # n01 was written second
    assert test.image_shape == (3, 16, 16)


def test_all_classes_get_their_names_and_must_be_complete(tmp_path: Path) -> None:
    make_images(tmp_path, WNIDS)
    with pytest.raises(ValueError, match=r"train must hold 1,281,167 images, got 1,000; the option partial = true"):
        imagenet(root=tmp_path)
    data = imagenet(root=tmp_path, split="test", partial=True)
    assert data.labels.tolist() == list(range(1000))
    described = ImageNetInfo("imagenet-1k").label_descriptions()
    differ = [name for name, words in zip(data.classes, described, strict=True) if name.lower() not in words.lower()]
    assert differ == ["crane bird", "maillot tank suit"]  # which torchvision tells apart from classes of the same name


def test_only_val_is_enough_for_testing(tmp_path: Path) -> None:
    make_images(tmp_path, ["n01", "n02"], ("val",))
    for split in ("val", "test"):
        assert imagenet(root=tmp_path, split=split).classes == ("n01", "n02")
    with pytest.raises(ValueError, match=r"ImageNet must be in .* as train and val, .*got no train"):
        imagenet(root=tmp_path, split="train")


def test_an_unsorted_val_says_what_to_do(tmp_path: Path) -> None:
    make_images(tmp_path, ["n01"], ("train",))
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG").touch()
    with pytest.raises(ValueError, match=r"got ILSVRC2012_val_00000001\.JPEG in none; torchvision\.datasets\.ImageNet"):
        imagenet(root=tmp_path, split="test")


def test_a_missing_root_and_a_strange_class_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ImageNet must be in .*nowhere as train and val"):
        imagenet(root=tmp_path / "nowhere")
    make_images(tmp_path, ["n01"], ("train",))
    make_images(tmp_path, ["n02"], ("val",))
    with pytest.raises(ValueError, match=r"n02 must be one of the 1 classes of train"):
        imagenet(root=tmp_path, split="test")
