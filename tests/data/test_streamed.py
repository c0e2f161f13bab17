"""Streamed splits: subsets, samples in memory, and wrong fields."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from saligraft.data import ImageData, StreamedData


@dataclass(frozen=True, kw_only=True, eq=False)
class Grey(StreamedData):
    """Sample i is grey of its own level; a training view is one brighter."""

    levels: Tensor
    folder: Path = Path("nowhere")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 1, 2, 3

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        return torch.full((1, 2, 3), int(self.levels[index]) + (draws is not None), dtype=torch.uint8), ()

    def source_files(self) -> Iterator[tuple[str, str]]:
        return ((str(path.relative_to(self.folder)), str(path)) for path in sorted(self.folder.rglob("*.*")))

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
    taken = make_data().take(torch.tensor([2, 1]))
    assert type(taken) is ImageData
    assert taken.images[:, 0, 0, 0].tolist() == [30, 20]
    assert taken.labels.tolist() == [0, 1]
    assert taken.boxes is None
    assert make_data().take(torch.tensor([], dtype=torch.int64)).images.shape == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": torch.zeros(4, 1, dtype=torch.int64)}, r"labels must have shape \(4,\), got \(4, 1\)"),
        ({"boxes": torch.zeros(3, 4, dtype=torch.int64)}, r"boxes must have shape \(4, 4\), got \(3, 4\)"),
        ({"mean": (0.5, 0.5)}, r"mean must hold one value per channel \(1\), got 2"),
        ({"std": (0.0,)}, "std must be > 0"),
        ({"classes": ("a", "b")}, r"labels must lie in \[0, 2\), got 0 to 2"),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_data(**changes)


def test_the_digest_is_of_labels_names_and_sizes(tmp_path: Path) -> None:
    def digest(**changes: Any) -> str:
        return make_data(folder=tmp_path, **changes).digest()

    (tmp_path / "caf\udce9").mkdir()
    file = tmp_path / "caf\udce9" / "a.png"
    file.write_bytes(b"123")
    first = digest()
    file.write_bytes(b"123")
    assert digest() == first
    found = {first, digest(labels=torch.tensor([0, 1, 0, 1]))}
    file.write_bytes(b"1234")
    found.add(digest())
    file.rename(tmp_path / "b.png")
    found.add(digest())
    (tmp_path / "c.png").touch()
    found.add(digest())
    assert len(found) == 5
