"""Subsets of equal size per class: seeded, nested, in order."""

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from saligraft.data import ImageData, StreamedData
from saligraft.data.per_class_subset import first_classes, per_class_subset

LABELS = torch.randint(4, (200,), generator=torch.Generator().manual_seed(0))
COUNTS = LABELS.bincount()


def in_memory(labels: Tensor = LABELS) -> ImageData:
    """Image i is i in its two pixels."""
    numbers = torch.arange(len(labels))
    pixels = torch.stack([numbers // 256, numbers % 256], dim=1).to(torch.uint8)
    return ImageData(
        name="numbers",
        images=pixels[:, None, None],
        labels=labels,
        classes=("a", "b", "c", "d"),
        mean=(0.5,),
        std=(1.0,),
    )


def numbers(data: ImageData) -> list[int]:
    return (data.images[:, 0, 0].long() @ torch.tensor([256, 1])).tolist()


@dataclass(frozen=True, kw_only=True, eq=False)
class Numbers(StreamedData):
    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 1, 1, 2

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        raise AssertionError(f"a subset must read no sample, but {index} was asked for with {draws}")


@given(st.integers(1, int(COUNTS.min())), st.integers(0, 2**31))
def test_counts_are_exact_order_is_kept_and_labels_stay(count: int, seed: int) -> None:
    subset = per_class_subset(in_memory(), count, seed)
    assert subset.labels.bincount().tolist() == [count] * 4
    chosen = numbers(subset)
    assert chosen == sorted(set(chosen))
    assert torch.equal(subset.labels, LABELS[chosen])
    assert subset.classes == ("a", "b", "c", "d")


@given(st.lists(st.integers(1, int(COUNTS.min())), min_size=2, max_size=2), st.integers(0, 100))
def test_smaller_subsets_lie_within_larger_ones(sizes: list[int], seed: int) -> None:
    small, large = (numbers(per_class_subset(in_memory(), size, seed)) for size in sorted(sizes))
    assert set(small) <= set(large)


def test_a_seed_decides() -> None:
    first, same, other = (numbers(per_class_subset(in_memory(), 20, seed)) for seed in (1, 1, 2))
    assert first == same != other


def test_every_sample_is_chosen_equally_often() -> None:
    times = torch.zeros(200)
    for seed in range(400):
        times[numbers(per_class_subset(in_memory(), 10, seed))] += 1
    expected = 400 * 10 / COUNTS[LABELS]
    deviation = (times - expected) / (expected * (1 - 10 / COUNTS[LABELS])).sqrt()
    assert deviation.abs().max() < 5


def test_a_class_does_not_depend_on_the_others() -> None:
    """Of samples 0, 1, 2, ... of a class the same are chosen whatever lies between them."""
    alone = in_memory(torch.arange(4).repeat(30))
    moved = in_memory(torch.arange(4).repeat_interleave(30))
    first = [number // 4 for number in numbers(per_class_subset(alone, 7)) if number % 4 == 2]
    second = [number % 30 for number in numbers(per_class_subset(moved, 7)) if number // 30 == 2]
    assert first == second


def test_streamed_data_gives_the_same_choice_without_reading() -> None:
    streamed = Numbers(name="numbers", labels=LABELS, classes=("a", "b", "c", "d"), mean=(0.5,), std=(1.0,),
                       boxes=torch.arange(200)[:, None].expand(-1, 4))  # fmt: skip
    subset = per_class_subset(streamed, 15, 3)
    assert isinstance(subset, Numbers)
    assert subset.boxes is not None
    assert subset.boxes[:, 0].tolist() == numbers(per_class_subset(in_memory(), 15, 3))


@given(st.integers(1, 20), st.integers(0, 100))
def test_skipped_samples_are_those_of_the_smaller_subset(skip: int, seed: int) -> None:
    trained = numbers(per_class_subset(in_memory(), skip, seed))
    next_ten = numbers(per_class_subset(in_memory(), 10, seed, skip=skip))
    rest = numbers(per_class_subset(in_memory(), None, seed, skip=skip))
    assert sorted(trained + rest) == list(range(200))
    assert set(next_ten) <= set(rest)
    assert sorted(trained + next_ten) == numbers(per_class_subset(in_memory(), skip + 10, seed))


def test_too_few_samples_beside_the_skipped_ones_are_named() -> None:
    least = int(COUNTS.min())
    with pytest.raises(ValueError, match=rf"got 5 beside {least - 4} to train on, but numbers has {least} of"):
        per_class_subset(in_memory(), 5, skip=least - 4)


def test_the_first_classes_are_kept_whole() -> None:
    some = first_classes(in_memory(), 3)
    assert some.classes == ("a", "b", "c")
    assert numbers(some) == [number for number, label in enumerate(LABELS.tolist()) if label < 3]
    with pytest.raises(ValueError, match=r"classes must be <= the classes of numbers \(4\), got 5"):
        first_classes(in_memory(), 5)


def test_a_class_with_fewer_samples_is_named() -> None:
    least = int(COUNTS.min())
    with pytest.raises(
        ValueError, match=rf"per_class_subset must be <= .*, got {least + 1}, but numbers has {least} of"
    ):
        per_class_subset(in_memory(), least + 1)


@pytest.mark.parametrize("count", [0, -1, 2.5])
def test_counts_must_be_positive_integers(count: int) -> None:
    with pytest.raises((ValueError, TypeError), match="per_class_subset must"):
        per_class_subset(in_memory(), count)
