"""Any torch Dataset as a split: labels, classes, normalisation, random transforms that repeat, and mistakes."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from saligraft.data import load, make_data_loader
from saligraft.data.own_data import as_split, as_splits, labels_of


class Pictures(Dataset[Any]):
    """`count` noise images; `kind` decides what `self[i]` is."""

    def __init__(self, kind: str = "pil", count: int = 12, split: str = "train", size: int = 8) -> None:
        self.kind, self.count, self.split, self.reads = kind, count, split, 0
        generator = torch.Generator().manual_seed(0 if split == "train" else 1)
        self.pixels = torch.randint(256, (count, 3, size, size), generator=generator, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.reads += 1
        pixels, label = self.pixels[index], index % 3
        if self.kind == "pil":
            return Image.fromarray(pixels.permute(1, 2, 0).numpy()), label
        if self.kind == "random":
            shift = torch.rand(1).item() + random.random() + np.random.rand()
            return pixels.float() / 255 + shift, label
        return (pixels if self.kind == "uint8" else pixels.float() / 255), label


class Named(Pictures):
    classes = ("ant", "bee", "cow", "dog")
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    targets = tuple(index % 3 for index in range(12))


def batches(data: Any, train: bool, epoch: int = 0, start: int = 0, workers: int = 0) -> list[torch.Tensor]:
    loader = make_data_loader(data, batch_size=4, train=train, flip=False, seed=5, workers=workers)
    loader.set_epoch(epoch)
    images = [batch.images for batch in loader.batches(start)]
    loader.close()
    return images


@pytest.mark.parametrize("kind", ["pil", "uint8"])
def test_pixels_are_normalised(kind: str) -> None:
    data = as_split(Named(kind), "named")
    assert (data.classes, data.image_shape) == (Named.classes, (3, 8, 8))
    mean, std = (torch.tensor(values)[:, None, None] for values in (Named.mean, Named.std))
    expected = (data.dataset.pixels[:4].float() / 255 - mean) / std
    torch.testing.assert_close(batches(data, train=False)[0], expected)
    torch.testing.assert_close(data[2][0], expected[2])
    assert as_split(Pictures(kind), "mine").mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize("source", [Pictures, Named])
def test_floats_are_trained_on_as_they_are(source: type[Pictures]) -> None:
    data = as_split(source("float"), "mine")
    expected = data.dataset.pixels[:4].float() / 255
    torch.testing.assert_close(batches(data, train=False)[0], expected, atol=1e-5, rtol=0)
    assert data.inputs.mean == ((0.0,) * 3 if source is Pictures else Named.mean)


def test_labels_come_from_the_list_or_from_reading() -> None:
    named, pictures = Named(), Pictures()
    assert labels_of(named, "named").tolist() == labels_of(pictures, "pictures").tolist() == [0, 1, 2] * 4
    assert (named.reads, pictures.reads) == (0, 12)
    part = Subset(Named(), [5, 1, 3])
    split = as_split(part, "part")
    assert (split.labels.tolist(), split.classes) == ([2, 1, 0], Named.classes)
    named.target_transform = None  # type: ignore[attr-defined]
    assert labels_of(named, "named").dtype == torch.int64


def test_classes_are_counted_over_both_data_sets() -> None:
    images = torch.rand(4, 1, 8, 8)
    train, test = as_splits(*(TensorDataset(images, torch.tensor(y)) for y in ([0, 1, 1, 0], [0, 1, 4, 0])), "mine")
    assert train.classes == test.classes == ("0", "1", "2", "3", "4")
    named = as_splits(Named(), Pictures(), "mine")
    assert named[0].classes == named[1].classes == Named.classes


def test_random_transforms_repeat_by_epoch_and_sample() -> None:
    data = as_split(Pictures("random"), "mine")
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    first = batches(data, train=True)
    assert (torch.rand(1), random.random(), np.random.rand()) == expected  # the caller's generators are untouched
    for again in (batches(data, train=True), batches(data, train=True, workers=1)):
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert torch.equal(batches(data, train=True, start=1)[0], first[1])
    assert not torch.equal(batches(data, train=True, epoch=1)[0], first[0])


def test_a_subset_reads_its_own_samples() -> None:
    data = as_split(Named("uint8"), "named").subset(torch.tensor([7, 2]))
    assert torch.equal(data.take(torch.tensor([1, 0])).images, data.dataset.pixels[[2, 7]])
    assert data.digest() != as_split(Named("uint8"), "named").digest()


def test_import_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_pictures.py").write_text(
        "import torch\n"
        "def by_train(train, root=None, size=8):\n"
        "    labels = torch.tensor([0, 1, 2] if train else [0, 1, 0])\n"
        "    return torch.utils.data.TensorDataset(torch.full((3, 1, size, size), float(train)), labels)\n"
        "def by_split(split, size=8):\n"
        "    return by_train(split == 'train', size=size)\n"
        "def neither(size):\n"
        "    return by_train(True)\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("by_train", "by_split"):
        data = load(f"own_pictures:{name}", split="test", size=4)
        assert (data.image_shape, data.num_classes, data.name) == ((1, 4, 4), 3, f"own_pictures:{name}")
        assert data[0][0].sum() == 0
    assert load("own_pictures:by_train", root="x").num_classes == 3
    with pytest.raises(ValueError, match="must take split='train' or 'test', or train=True or False"):
        load("own_pictures:neither")
    with pytest.raises(ValueError, match="has no option 'root'"):
        load("own_pictures:by_split", root="x")


class Bad(Pictures):
    def __init__(self, sample: Any, later: Any = None) -> None:
        super().__init__()
        self.answers = sample, sample if later is None else later

    def __getitem__(self, index: int) -> Any:
        return self.answers[index > 0]


IMAGE = torch.zeros(3, 8, 8)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Bad(IMAGE), r"sample 0 of mine must be \(image, label\), got Tensor"),
        (Bad((IMAGE, torch.zeros(5))), r"must be the number of a class, got Tensor of shape \(5,\)"),
        (Bad((IMAGE, torch.tensor(0.5))), r"sample 0 of mine must be the number of a class, got tensor\(0.5"),
        (Bad((IMAGE.numpy(), 1)), r"must be a Pillow image or a tensor \(C,H,W\), got ndarray"),
        (Bad((IMAGE[0], 1)), r"must be a Pillow image or a tensor \(C,H,W\), got shape \(8, 8\)"),
        (Bad((IMAGE.long(), 1)), "must be uint8 or floating point, got torch.int64"),
        (Bad((IMAGE, 1), (IMAGE[:, 1:], 1)), r"must all have the shape \(3, 8, 8\), got \(3, 7, 8\) for sample 1"),
        (iter([]), "must be a map-style torch Dataset"),
        (Pictures(count=0), "must hold images, got none"),
    ],
)
def test_mistakes_name_the_sample(dataset: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        batches(as_split(dataset, "mine"), train=False)


def test_a_loader_in_place_of_a_data_set_is_named() -> None:
    loader = DataLoader(Pictures("uint8"))
    with pytest.raises(TypeError, match=r"must be a map-style torch Dataset .* got <class '.*DataLoader'>"):
        as_splits(loader, loader, "mine")


def test_a_label_that_contradicts_the_list_is_refused() -> None:
    data = Named()
    data.targets = [2] * 12  # type: ignore[assignment]
    with pytest.raises(ValueError, match="sample 0 of mine has label 0, but its labels list 2"):
        batches(as_split(data, "mine"), train=False)
