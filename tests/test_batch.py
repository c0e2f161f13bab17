"""MixedBatch: one weight, one meaning; dense rows sum to one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft import MixedBatch


def batch_of(labels: torch.Tensor, partner: torch.Tensor, weight: torch.Tensor) -> MixedBatch:
    images = torch.zeros(len(labels), 1, 2, 2)
    return MixedBatch(images, labels, labels[partner], weight, torch.zeros(len(labels), 1, 1), partner)


@given(seed=st.integers(0, 999), batch=st.integers(1, 9), classes=st.integers(1, 7))
def test_rows_sum_to_one_and_weight_the_source(seed: int, batch: int, classes: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (batch,), generator=stream)
    weight = torch.rand(batch, generator=stream)
    mixed = batch_of(labels, torch.randperm(batch, generator=stream), weight)
    rows = mixed.targets(classes)
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(batch))
    for i in range(batch):
        expected = torch.zeros(classes)
        expected[mixed.source_labels[i]] += weight[i]
        expected[mixed.destination_labels[i]] += 1 - weight[i]
        torch.testing.assert_close(rows[i], expected)


def test_index_and_one_hot_labels_give_the_same_rows() -> None:
    labels, partner, weight = torch.tensor([0, 2, 1]), torch.tensor([1, 0, 2]), torch.tensor([0.25, 0.5, 1.0])
    rows = torch.nn.functional.one_hot(labels, 3)
    assert torch.equal(batch_of(labels, partner, weight).targets(3), batch_of(rows, partner, weight).targets())


def test_unmixed_is_the_unchanged_batch() -> None:
    images, labels = torch.rand(3, 1, 4, 4), torch.tensor([2, 0, 1])
    original = MixedBatch.unmixed(images, labels)
    assert original.images is images
    assert torch.equal(original.targets(3), torch.nn.functional.one_hot(labels, 3).float())


def test_refuses_missing_or_wrong_class_counts() -> None:
    mixed = batch_of(torch.tensor([0, 5]), torch.tensor([1, 0]), torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="num_classes must be given"):
        mixed.targets()
    with pytest.raises(ValueError, match=r"labels must be class indices in \[0, 3\), got 5"):
        mixed.targets(3)
    rows = batch_of(torch.rand(2, 4), torch.tensor([1, 0]), torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="labels must have num_classes=3 columns, got 4"):
        rows.targets(3)
