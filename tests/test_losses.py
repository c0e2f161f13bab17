"""Losses against torch's own, applied to each label set or to the dense rows."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from saligraft import (
    CutMix,
    MixedBatch,
    mixed_binary_cross_entropy,
    mixed_cross_entropy,
    mixed_softmax_binary_cross_entropy,
)
from saligraft.losses import batch_loss

K = 5
reductions = st.sampled_from(["mean", "sum", "none"])


def mixed_indices(seed: int, batch: int = 6) -> tuple[torch.Tensor, MixedBatch]:
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(K, (batch,), generator=stream)
    mixed = CutMix()(torch.rand(batch, 1, 6, 6, generator=stream), labels, generator=stream)
    return torch.randn(batch, K, generator=stream), mixed


def as_rows(mixed: MixedBatch) -> MixedBatch:
    return mixed._replace(
        source_labels=F.one_hot(mixed.source_labels, K).float(),
        destination_labels=F.one_hot(mixed.destination_labels, K).float(),
    )


@given(seed=st.integers(0, 999), smoothing=st.sampled_from([0.0, 0.1, 1.0]), reduction=reductions)
def test_equals_cross_entropy_with_dense_rows(seed: int, smoothing: float, reduction: str) -> None:
    logits, mixed = mixed_indices(seed)
    expected = F.cross_entropy(logits, mixed.targets(K), label_smoothing=smoothing, reduction=reduction)
    for batch in (mixed, as_rows(mixed)):
        loss = mixed_cross_entropy(logits, batch, label_smoothing=smoothing, reduction=reduction)
        torch.testing.assert_close(loss, expected)


@given(seed=st.integers(0, 999), smoothing=st.sampled_from([0.0, 0.2]), reduction=reductions)
def test_class_weights_equal_torch_for_indices_and_for_rows(seed: int, smoothing: float, reduction: str) -> None:
    logits, mixed = mixed_indices(seed)
    class_weight = torch.rand(K, generator=torch.Generator().manual_seed(seed)) + 0.1
    options = {"label_smoothing": smoothing, "reduction": reduction}
    unmixed = MixedBatch.unmixed(mixed.images, mixed.source_labels)
    torch.testing.assert_close(
        mixed_cross_entropy(logits, unmixed, class_weight=class_weight, **options),
        F.cross_entropy(logits, mixed.source_labels, weight=class_weight, **options),
    )
    torch.testing.assert_close(
        mixed_cross_entropy(logits, mixed, class_weight=class_weight, **options),
        mixed_cross_entropy(logits, as_rows(mixed), class_weight=class_weight, **options),
    )


def test_gradient_equals_that_of_dense_rows() -> None:
    logits, mixed = mixed_indices(1)
    gradients = []
    for loss in (lambda z: mixed_cross_entropy(z, mixed), lambda z: F.cross_entropy(z, mixed.targets(K))):
        leaf = logits.clone().requires_grad_()
        loss(leaf).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_give_a_float32_loss(dtype: torch.dtype) -> None:
    logits, mixed = mixed_indices(2)
    assert mixed_cross_entropy(logits.to(dtype), mixed).dtype == torch.float32
    assert mixed_softmax_binary_cross_entropy(logits.to(dtype), mixed).dtype == torch.float32
    multi_hot = as_rows(mixed)
    assert mixed_binary_cross_entropy(logits.to(dtype), multi_hot).dtype == torch.float32


@given(seed=st.integers(0, 999), reduction=reductions)
def test_binary_equals_torch(seed: int, reduction: str) -> None:
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (6, K), generator=stream)
    mixed = CutMix()(torch.rand(6, 1, 6, 6, generator=stream), labels, generator=stream)
    logits, positive = torch.randn(6, K, generator=stream), torch.rand(K, generator=stream)
    loss = mixed_binary_cross_entropy(logits, mixed, positive_weight=positive, reduction=reduction)
    weight = mixed.source_weight[:, None]
    target = weight * mixed.source_labels + (1 - weight) * mixed.destination_labels
    torch.testing.assert_close(
        loss, F.binary_cross_entropy_with_logits(logits, target, pos_weight=positive, reduction=reduction)
    )


@given(seed=st.integers(0, 999), reduction=reductions, scale=st.sampled_from([0.1, 1.0, 3.0]))
def test_softmax_bce_and_its_gradient_equal_torch_on_the_softmax(seed: int, reduction: str, scale: float) -> None:
    """The authors call torch's loss of probabilities, here in float64; it clips gradients from p = 1e-12 down."""
    logits, mixed = mixed_indices(seed)
    for batch in (mixed, as_rows(mixed)):
        ours, reference = (scale * logits).requires_grad_(), (scale * logits.double()).requires_grad_()
        loss = mixed_softmax_binary_cross_entropy(ours, batch, reduction=reduction)
        expected = F.binary_cross_entropy(reference.softmax(1), mixed.targets(K).double(), reduction=reduction)
        torch.testing.assert_close(loss.double(), expected, atol=1e-5, rtol=1e-5)
        loss.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(ours.grad.double(), reference.grad, atol=1e-5, rtol=1e-4)


def test_softmax_bce_stays_exact_where_the_softmax_saturates() -> None:
    """The complement of a p that rounds to 1: log(1 − p) = −40 here, where 1 − p is 0 in float32."""
    logits = torch.tensor([[40.0, 0.0], [2000.0, 0.0]], requires_grad=True)
    mixed = MixedBatch.unmixed(torch.zeros(2, 1, 2, 2), torch.tensor([1, 1]))
    loss = mixed_softmax_binary_cross_entropy(logits, mixed, reduction="none")
    torch.testing.assert_close(loss, torch.tensor([[40.0, 40.0], [2000.0, 2000.0]]))
    loss.mean().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, -0.5], [0.5, -0.5]]))


def test_gradient_of_softmax_bce_is_one_to_two_kths_of_cross_entropys() -> None:
    """On the true class, for one-hot labels, from uniform answers to nearly certain ones."""
    for sure in (0.0, 2.0, 9.0):
        slopes = []
        for loss in (mixed_softmax_binary_cross_entropy, mixed_cross_entropy):
            logits = torch.tensor([[sure, *(0.0,) * 9]], requires_grad=True)
            loss(logits, MixedBatch.unmixed(torch.zeros(1, 1, 2, 2), torch.tensor([0]))).backward()
            slopes.append(float(logits.grad[0, 0]))
        assert 1 / 10 <= slopes[0] / slopes[1] <= 2 / 10


def test_class_weights_of_another_dtype() -> None:
    logits, mixed = mixed_indices(3)
    weight = torch.rand(K) + 0.1
    for batch in (mixed, as_rows(mixed)):
        wide = mixed_cross_entropy(logits, batch, class_weight=weight.double(), label_smoothing=0.1)
        torch.testing.assert_close(wide, mixed_cross_entropy(logits, batch, class_weight=weight, label_smoothing=0.1))


def test_refuses_bad_input() -> None:
    logits, mixed = mixed_indices(0)
    with pytest.raises(ValueError, match="class_weight must be >= 0 and not all 0, got 0 to 0"):
        mixed_cross_entropy(logits, mixed, class_weight=torch.zeros(K))
    with pytest.raises(ValueError, match="class_weight must be on the device of logits"):
        mixed_cross_entropy(logits, mixed, class_weight=torch.ones(K, device="meta"))
    with pytest.raises(ValueError, match=r"logits must have shape \(B, K\), got \(6\)"):
        mixed_cross_entropy(logits[:, 0], mixed)
    with pytest.raises(ValueError, match="labels must have one entry per image: expected 5, got 6"):
        mixed_cross_entropy(logits[:5], mixed)
    with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum', 'none'; got 'average'"):
        mixed_cross_entropy(logits, mixed, reduction="average")
    with pytest.raises(ValueError, match=r"labels must be class indices in \[0, 2\)"):
        mixed_cross_entropy(logits[:, :2], mixed._replace(source_labels=torch.full((6,), 4)))
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\], got 2"):
        mixed_cross_entropy(logits, mixed, label_smoothing=2)
    with pytest.raises(ValueError, match=r"class_weight must have shape \(5,\), got \(4\)"):
        mixed_cross_entropy(logits, mixed, class_weight=torch.ones(4))
    with pytest.raises(ValueError, match="for multi-hot rows use mixed_binary_cross_entropy"):
        mixed_cross_entropy(logits, as_rows(mixed)._replace(source_labels=torch.ones(6, K)))
    with pytest.raises(ValueError, match="for multi-hot rows use mixed_binary_cross_entropy"):
        mixed_softmax_binary_cross_entropy(logits, as_rows(mixed)._replace(source_labels=torch.ones(6, K)))
    with pytest.raises(ValueError, match="logits must have at least 2 classes, got 1"):
        mixed_softmax_binary_cross_entropy(torch.zeros(6, 1), MixedBatch.unmixed(mixed.images, torch.zeros(6).long()))
    with pytest.raises(ValueError, match=r"labels must be multi-hot rows \(B, K\), got \(6\)"):
        mixed_binary_cross_entropy(logits, mixed)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 1\]"):
        mixed_binary_cross_entropy(logits, as_rows(mixed)._replace(source_labels=torch.full((6, K), 3.0)))


class RowsAlone(nn.Module):
    """As timm's SoftTargetCrossEntropy."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.BCEWithLogitsLoss(),
        RowsAlone(),
        F.cross_entropy,
        partial(F.cross_entropy, label_smoothing=0.2),
    ],
)
def test_any_other_criterion_gets_dense_targets(criterion: nn.Module) -> None:
    logits, mixed = mixed_indices(0)
    rows = torch.stack(
        [
            weight * F.one_hot(source, K) + (1 - weight) * F.one_hot(destination, K)
            for weight, source, destination in zip(
                mixed.source_weight, mixed.source_labels, mixed.destination_labels, strict=True
            )
        ]
    )
    torch.testing.assert_close(batch_loss(criterion, logits, mixed), criterion(logits, rows))


class MarkedModule(nn.Module):
    takes_mixed_batch = True

    def forward(self, logits: torch.Tensor, mixed: MixedBatch) -> torch.Tensor:
        return logits.sum() * mixed.source_weight.sum()


def marked(logits: torch.Tensor, mixed: MixedBatch, scale: float = 1.0) -> torch.Tensor:
    return scale * logits.sum() * mixed.source_weight.sum()


marked.takes_mixed_batch = True


@pytest.mark.parametrize(
    "criterion",
    [
        mixed_cross_entropy,
        partial(partial(mixed_cross_entropy, label_smoothing=0.1), reduction="sum"),
        mixed_softmax_binary_cross_entropy,
        MarkedModule(),
        marked,
        partial(marked, scale=2.0),
    ],
)
def test_a_marked_criterion_gets_the_mixed_batch(criterion: nn.Module) -> None:
    logits, mixed = mixed_indices(0)
    assert torch.equal(batch_loss(criterion, logits, mixed), criterion(logits, mixed))


@pytest.mark.parametrize(
    ("criterion", "error", "message"),
    [
        (nn.CrossEntropyLoss(reduction="none"), ValueError, r"must return a scalar, .*reduction='mean', got \(6\)"),
        (partial(mixed_cross_entropy, reduction="none"), ValueError, r"criterion must return a scalar, .*got \(6\)"),
        (lambda *_: 0.5, TypeError, "criterion must return a scalar tensor, got float"),
    ],
)
def test_a_loss_is_one_number(criterion: nn.Module, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        batch_loss(criterion, *mixed_indices(0))


@pytest.mark.parametrize("rows", [torch.tensor([[-1.0, 2.0]]), torch.tensor([[1.0, 2.0]])])
def test_regression_without_a_criterion_is_told_to_name_one(rows: torch.Tensor) -> None:
    mixed = MixedBatch.unmixed(torch.zeros(1, 1, 6, 6), rows)
    with pytest.raises(ValueError, match=r"regression .*criterion .*torch\.nn\.MSELoss\(\)"):
        mixed_cross_entropy(torch.zeros(1, 2), mixed)
    assert batch_loss(nn.MSELoss(), torch.zeros(1, 2), mixed) == (rows**2).mean()


def test_a_criterion_that_indexes_with_targets_is_told_what_they_are() -> None:
    def indexing(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -logits[torch.arange(1), targets].mean()

    mixed = MixedBatch.unmixed(torch.zeros(1, 3, 2, 2), torch.tensor([1]))
    with pytest.raises(IndexError, match=r"criterion must take dense rows \(B, K\), not class indices, got \(1, 2\)"):
        batch_loss(indexing, torch.zeros(1, 2), mixed)
