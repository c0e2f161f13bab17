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


def test_the_digest_is_of_samples_labels_and_order() -> None:
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
