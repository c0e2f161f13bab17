"""Splits in memory and streamed: fields that do not fit together, subsets, digests, and torch's DataLoader."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small_sets import write_small_sets
from torch import Tensor
from torch.utils.data import DataLoader

from saligraft.data import ImageData, Split, StreamedData, load, make_data_loader
from saligraft.data.dataset import normalisation
from saligraft.data.files import FileNames


def fields(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": "tiny",
        "images": torch.zeros(4, 3, 8, 6, dtype=torch.uint8),
        "labels": torch.tensor([0, 1, 1, 0]),
        "classes": ("a", "b"),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.2, 0.2, 0.2),
        "masks": torch.ones(4, 8, 6, dtype=torch.bool),
        "boxes": torch.tensor([[0, 0, 6, 8]] * 4),
    }
    return plain | changes


def test_length_and_classes() -> None:
    data = ImageData(**fields())
    assert len(data) == 4
    assert data.num_classes == 2
    assert ImageData(**fields(masks=None, boxes=None)).masks is None


def test_subset_and_take_cut_every_field_in_the_order_asked_for() -> None:
    masks = torch.arange(4)[:, None, None] > torch.ones(8, 6)
    images = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 8, 6)
    data = ImageData(**fields(images=images, masks=masks, boxes=torch.arange(16).view(4, 4)))
    for some in (data.subset(torch.tensor([2, 1])), data.take(torch.tensor([2, 1]))):
        assert some.images[:, 0, 0, 0].tolist() == [2, 1]
        assert some.labels.tolist() == [1, 1]
        assert some.classes == ("a", "b")
        assert some.masks is not None
        assert some.boxes is not None
        assert some.masks.any(dim=2).any(dim=1).tolist() == [True, False]
        assert some.boxes[:, 0].tolist() == [8, 4]
    assert ImageData(**fields(masks=None, boxes=None)).subset(torch.tensor([0])).boxes is None


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"images": torch.zeros(4, 8, 6, dtype=torch.uint8)},
            ValueError,
            r"images must have shape \(N,C,H,W\), got \(4, 8, 6\)",
        ),
        ({"images": torch.zeros(4, 3, 8, 6)}, TypeError, "images must be torch.uint8, got torch.float32"),
        ({"labels": torch.tensor([0, 1])}, ValueError, r"labels must have shape \(4,\), got \(2,\)"),
        ({"labels": torch.tensor([0, 1, 2, 0])}, ValueError, r"labels must lie in \[0, 2\), got 0 to 2"),
        ({"masks": torch.ones(4, 6, 8, dtype=torch.bool)}, ValueError, r"masks must have shape \(4, 8, 6\)"),
        ({"boxes": torch.zeros(4, 4)}, TypeError, "boxes must be torch.int64"),
        ({"mean": (0.5,)}, ValueError, r"mean must hold one value per channel \(3\), got 1"),
        ({"std": (0.2, 0.0, 0.2)}, ValueError, "std must be > 0"),
        ({"std": (0.2, float("nan"), 0.2)}, ValueError, "std must be"),
        ({"mean": 0.5}, TypeError, "mean must be a sequence of numbers, got 0.5"),
        ({"mean": ("a", "b", "c")}, TypeError, "each of mean must be a number, got str"),
    ],
)
def test_misfits_are_named(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ImageData(**fields(**changes))


def test_the_digest_in_memory_is_of_samples_labels_and_order() -> None:
    images = torch.arange(576, dtype=torch.int64).to(torch.uint8).view(4, 3, 8, 6)
    data = ImageData(**fields(images=images))
    one_pixel = images.clone()
    one_pixel[3, 2, 7, 5] += 1
    others = [
        ImageData(**fields(images=one_pixel)),
        ImageData(**fields(images=images, labels=torch.tensor([0, 1, 1, 1]))),
        data.subset(torch.tensor([3, 1, 2, 0])),
        data.subset(torch.tensor([0, 1, 2])),
    ]
    assert len({data.digest(), *(other.digest() for other in others)}) == 5
    strided = torch.cat([images.flatten(1)[:, :2], images.flatten(1)], dim=1)[:, 2:].view(4, 3, 8, 6)  # as of CIFAR
    labels = torch.tensor([[0, 5], [1, 5], [1, 5], [0, 5]])[:, 0]
    assert ImageData(**fields(images=strided, labels=labels)).digest() == data.digest()


@dataclass(frozen=True, kw_only=True, eq=False)
class Grey(StreamedData):
    """Sample i is grey of its own level; a training view is one brighter."""

    levels: Tensor

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 1, 2, 3

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        return torch.full((1, 2, 3), int(self.levels[index]) + (draws is not None), dtype=torch.uint8), ()

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        return super()._rows(indices) | {"levels": self.levels[indices]}


def make_data(**changes: Any) -> Grey:
    fields: dict[str, Any] = {
        "labels": torch.tensor([0, 1, 0, 2]),
        "boxes": torch.arange(16).view(4, 4),
        "levels": torch.tensor([10, 20, 30, 40]),
    }
    return Grey(**{"name": "grey", "classes": ("a", "b", "c"), "mean": (0.5,), "std": (0.5,), **fields, **changes})


def test_a_subset_cuts_every_field_of_the_samples_and_keeps_the_classes() -> None:
    some = make_data().subset(torch.tensor([3, 0]))
    assert isinstance(some, Grey)
    assert some.boxes is not None
    assert (len(some), some.num_classes) == (2, 3)
    assert (some.labels.tolist(), some.levels.tolist()) == ([2, 0], [40, 10])
    assert some.boxes[:, 0].tolist() == [12, 0]
    assert make_data(boxes=None).subset(torch.tensor([1])).boxes is None


def test_take_holds_test_views_in_memory_without_boxes() -> None:
    subset = make_data().take(torch.tensor([2, 1]))
    assert type(subset) is ImageData
    assert subset.images[:, 0, 0, 0].tolist() == [30, 20]
    assert subset.labels.tolist() == [0, 1]
    assert subset.boxes is None
    assert make_data().take(torch.tensor([], dtype=torch.int64)).images.shape == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": torch.zeros(4, 1, dtype=torch.int64)}, r"labels must have shape \(4,\), got \(4, 1\)"),
        ({"boxes": torch.zeros(3, 4, dtype=torch.int64)}, r"boxes must have shape \(4, 4\), got \(3, 4\)"),
        ({"mean": (0.5, 0.5)}, r"mean must hold one value per channel \(1\), got 2"),
        ({"std": (0.0,)}, "std must be > 0"),
        ({"classes": ()}, "classes must hold the name of each class, got none"),
        ({"classes": ("a", "b")}, r"labels must lie in \[0, 2\), got 0 to 2"),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_data(**changes)


def test_the_digest_is_of_labels_names_and_sizes(tmp_path: Path) -> None:
    def digest(**changes: Any) -> str:
        files = FileNames(path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*.*")))
        return make_data(folder=tmp_path, files=files, **changes).digest()

    (tmp_path / "caf\udce9").mkdir()
    file = tmp_path / "caf\udce9" / "a.png"
    file.write_bytes(b"123")
    first = digest()
    file.write_bytes(b"123")
    assert digest() == first
    digests = {first, digest(labels=torch.tensor([0, 1, 0, 1]))}
    file.write_bytes(b"1234")
    digests.add(digest())
    file.rename(tmp_path / "b.png")
    digests.add(digest())
    (tmp_path / "c.png").touch()
    digests.add(digest())
    assert len(digests) == 5


def test_normalisation_takes_bytes_to_mean_zero_and_deviation_one() -> None:
    mean, std = (0.2, 0.4, 0.6), (0.1, 0.2, 0.5)
    scale, shift = normalisation(mean, std)
    images = torch.randint(256, (2, 3, 4, 5), dtype=torch.uint8)
    expected = (images.double() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    torch.testing.assert_close((images.float() * scale + shift).double(), expected, atol=1e-5, rtol=0)


def check_with_data_loader(data: Split, workers: int = 0) -> None:
    """Shuffled batches hold each sample once: the test view, normalised as the laboratory's own loader does."""
    expected = next(iter(make_data_loader(data, batch_size=len(data), train=False)))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=workers)
    batches = list(loader)
    images, labels = (torch.cat(part) for part in zip(*batches, strict=True))
    assert images.dtype == torch.float32
    assert tuple(images.shape) == (len(data), *data.image_shape)
    assert (labels.dtype, labels.bincount().tolist()) == (torch.int64, data.labels.bincount().tolist())
    place = [int((expected.images == image).flatten(1).all(1).nonzero()[0]) for image in images]
    assert len(set(place)) == len(expected.images.unique(dim=0))
    assert torch.equal(images, expected.images[place])
    assert torch.equal(labels, expected.labels[place])


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_data_loader_takes_both_kinds_of_split(workers: int) -> None:
    check_with_data_loader(load("shapes", split="test", per_class=3), workers)
    check_with_data_loader(make_data(), workers)


@pytest.mark.filterwarnings("ignore:.* holds .* of the 64,721 clips:UserWarning")
def test_torchs_data_loader_takes_every_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, root in write_small_sets(tmp_path, monkeypatch).items():
        for split in ("train", "test"):
            data = load(name, root=root, split=split)
            check_with_data_loader(data if name != "cifar100" else data.subset(torch.arange(30)))


def test_a_sample_is_found_by_its_place_from_either_end() -> None:
    data = make_data()
    image, label = data[-1]
    assert torch.equal(image, data[3][0])
    assert image.unique().tolist() == pytest.approx([(40 / 255 - 0.5) / 0.5])
    assert (label, type(label)) == (2, int)
    assert [label for _, label in data] == [0, 1, 0, 2]
    for place in (4, -5):
        with pytest.raises(IndexError):
            data[place]
