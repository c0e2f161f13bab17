"""One split in memory refuses what does not fit together."""

from typing import Any

import pytest
import torch

from saligraft.data import ImageData


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
    ],
)
def test_misfits_are_named(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ImageData(**fields(**changes))
