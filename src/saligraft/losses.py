"""Step 5, the loss of a mixed batch: the losses of both label sets, weighted like the labels (§5).

Shapes: logits (B, K). Losses are computed in float32 at least, also under autocast.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saligraft import checks
from saligraft.batch import MixedBatch

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)
Criterion = Callable[[Tensor, Any], Tensor]
INDICES_ALONE = (nn.NLLLoss, nn.MultiMarginLoss)  # torch's losses that a mixed label cannot be passed to


def batch_loss(criterion: Criterion, logits: Tensor, mixed: MixedBatch) -> Tensor:
    """Call a criterion with what it takes: the `MixedBatch` if it is marked so, else dense rows of targets.

    The losses of this module are marked by an attribute, ``takes_mixed_batch = True``, which also counts on a class, a
    module or the function inside a `functools.partial`. Any other criterion is called as those of torch and timm are,
    with ``mixed.targets(num_classes)``, (B, K).

    Args:
        criterion: Function of logits and either of the two.
        logits: (B, K), of the mixed images; or (B,), for labels that are numbers (B,).
        mixed: Both label sets and their weight.

    Example:
        >>> import torch, saligraft as sg
        >>> mixed = sg.MixedBatch.unmixed(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]))
        >>> batch_loss(torch.nn.CrossEntropyLoss(), torch.zeros(2, 4), mixed)
        tensor(1.3863)
    """
    if _takes_mixed_batch(criterion):
        loss = criterion(logits, mixed)
    else:
        targets = mixed.targets(logits.shape[1]) if logits.ndim > 1 else mixed.targets(1)[:, 0]
        try:
            loss = criterion(logits, targets)
        except IndexError as error:
            shape = checks.shape_of(targets)
            raise IndexError(
                f"criterion must take dense rows (B, K), not class indices, got {shape}: {error}"
            ) from error
    if not isinstance(loss, Tensor):
        raise TypeError(f"criterion must return a scalar tensor, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise ValueError(f"criterion must return a scalar, as with reduction='mean', got {checks.shape_of(loss)}")
    return loss


def check_criterion(criterion: Any) -> None:
    """Refuse what is no criterion, with what to write instead.

    Args:
        criterion: What a user passed to a step.
    """
    expected = "criterion must be a function of logits and targets"
    if isinstance(criterion, type):
        raise TypeError(f"{expected}, got a class: pass an instance, {criterion.__name__}()")
    if not callable(criterion):
        raise TypeError(f"{expected}, got {type(criterion).__name__}")
    if type(criterion) in INDICES_ALONE:
        raise TypeError(
            f"{expected} that are dense rows (B, K), got {type(criterion).__name__}, which takes class indices: use "
            "torch.nn.CrossEntropyLoss()"
        )
    if isinstance(criterion, nn.CrossEntropyLoss) and criterion.ignore_index >= 0:
        raise ValueError(f"criterion must have no ignore_index, got {criterion.ignore_index}: targets are dense rows")


def _takes_mixed_batch(criterion: Any) -> bool:
    while isinstance(criterion, partial) and not hasattr(criterion, "takes_mixed_batch"):
        criterion = criterion.func
    return bool(getattr(criterion, "takes_mixed_batch", False))


def mixed_cross_entropy(
    logits: Tensor,
    mixed: MixedBatch,
    *,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy with the mixed label, for class indices (B,) or probability rows (B, K).

    Index and one-hot labels give the same loss: with `class_weight` the mean divides by the summed weights of the
    labels, as `torch.nn.functional.cross_entropy` does for indices (for rows it divides by B instead).

    Args:
        logits: (B, K), of the mixed images.
        mixed: Both label sets and their weight.
        class_weight: (K,), >= 0, a weight for each class; None weights all equally.
        label_smoothing: Share of the uniform distribution in each label, in [0, 1].
        reduction: "mean" or "sum" over the batch, or "none".

    Returns:
        A scalar, or (B,) with reduction "none"; float32 or wider.

    Example:
        >>> import torch, saligraft as sg
        >>> mixed = sg.MixedBatch.unmixed(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]))
        >>> sg.mixed_cross_entropy(torch.zeros(2, 4), mixed)
        tensor(1.3863)
    """
    _check(logits, mixed, reduction)
    if label_smoothing != 0:
        checks.probability("label_smoothing", label_smoothing)
    log_probability = F.log_softmax(checks.at_least_float32(logits), dim=1)
    if class_weight is not None:
        class_weight = _class_vector("class_weight", class_weight, log_probability)
    source, source_mass = _label_loss(log_probability, mixed.source_labels, class_weight)
    destination, destination_mass = _label_loss(log_probability, mixed.destination_labels, class_weight)
    weight = mixed.source_weight.to(log_probability.dtype)
    loss = torch.lerp(destination, source, weight)
    if label_smoothing > 0:
        uniform = log_probability if class_weight is None else log_probability * class_weight
        loss = torch.lerp(loss, -uniform.mean(dim=1), label_smoothing)
    if reduction == "mean":
        return loss.sum() / torch.lerp(destination_mass, source_mass, weight).sum()
    return loss.sum() if reduction == "sum" else loss


def mixed_binary_cross_entropy(
    logits: Tensor,
    mixed: MixedBatch,
    *,
    positive_weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross-entropy with the mixed rows, for multi-hot labels (B, K): one binary decision per class.

    Args:
        logits: (B, K), of the mixed images.
        mixed: Both label sets, as rows in [0, 1], and their weight.
        positive_weight: (K,), >= 0, the weight of each class's positive labels; None weights all equally.
        reduction: "mean" or "sum" over batch and classes, or "none".

    Returns:
        A scalar, or (B, K) with reduction "none"; float32 or wider.

    Example:
        >>> import torch, saligraft as sg
        >>> mixed = sg.MixedBatch.unmixed(torch.zeros(1, 3, 8, 8), torch.tensor([[1.0, 0.0, 1.0]]))
        >>> sg.mixed_binary_cross_entropy(torch.zeros(1, 3), mixed)
        tensor(0.6931)
    """
    _check(logits, mixed, reduction)
    if mixed.source_labels.ndim != 2:
        raise ValueError(f"labels must be multi-hot rows (B, K), got {checks.shape_of(mixed.source_labels)}")
    if positive_weight is not None:
        positive_weight = _class_vector("positive_weight", positive_weight, checks.at_least_float32(logits))
    targets = mixed.targets(logits.shape[1])
    if checks.may_look(targets) and not bool(((targets >= 0) & (targets <= 1)).all()):
        raise ValueError(f"labels must lie in [0, 1], got {float(targets.min()):.4g} to {float(targets.max()):.4g}")
    logits = checks.at_least_float32(logits)
    return F.binary_cross_entropy_with_logits(
        logits, targets.to(logits.dtype), pos_weight=positive_weight, reduction=reduction
    )


def mixed_softmax_binary_cross_entropy(logits: Tensor, mixed: MixedBatch, *, reduction: Reduction = "mean") -> Tensor:
    """Binary cross-entropy of the softmax with the mixed label, averaged over classes.

    −mean_k [y_k log p_k + (1 − y_k) log(1 − p_k)], p = softmax(logits): the loss of Verma et al. (Manifold Mixup) and
    Kim et al. (PuzzleMix), whose WRN-28-10 and Tiny-ImageNet protocols the paper follows. Its gradient is 1/K to 2/K of
    cross-entropy's, so learning rates do not transfer between the two.

    Args:
        logits: (B, K), of the mixed images; K >= 2.
        mixed: Both label sets, as class indices (B,) or probability rows (B, K), and their weight.
        reduction: "mean" or "sum" over batch and classes, or "none".

    Returns:
        A scalar, or (B, K) with reduction "none"; float32 or wider.

    Example:
        >>> import torch, saligraft as sg
        >>> mixed = sg.MixedBatch.unmixed(torch.zeros(1, 3, 8, 8), torch.tensor([0]))
        >>> sg.mixed_softmax_binary_cross_entropy(torch.zeros(1, 2), mixed)
        tensor(0.6931)
    """
    _check(logits, mixed, reduction)
    if logits.shape[1] < 2:
        raise ValueError("logits must have at least 2 classes, got 1, whose softmax is always 1")
    log_probability = F.log_softmax(checks.at_least_float32(logits), dim=1)
    targets = mixed.targets(logits.shape[1]).to(log_probability.dtype)
    _check_row_sums(targets)
    # 1 − p is exact enough except for a p near 1, which only the largest can be: there, log Σ of all others' p.
    largest = torch.zeros_like(targets, dtype=torch.bool).scatter(1, log_probability.argmax(1, keepdim=True), True)
    others = log_probability.masked_fill(largest, -torch.inf)
    log_complement = torch.where(largest, others.logsumexp(dim=1, keepdim=True), (-others.exp()).log1p())
    loss = -(targets * log_probability + (1 - targets) * log_complement)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


for _loss in (mixed_cross_entropy, mixed_binary_cross_entropy, mixed_softmax_binary_cross_entropy):
    vars(_loss)["takes_mixed_batch"] = True


def _label_loss(log_probability: Tensor, labels: Tensor, class_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """−Σ_k w_k y_k log p_k for one label set, and its mass Σ_k w_k y_k, both (B,)."""
    if labels.ndim == 1:
        labels = labels.long()
        loss = -log_probability.gather(1, labels[:, None])[:, 0]
        if class_weight is None:
            return loss, torch.ones_like(loss)
        mass = class_weight[labels]
        return loss * mass, mass
    rows = labels.to(log_probability.dtype)
    _check_row_sums(rows)
    if class_weight is not None:
        rows = rows * class_weight
    return -(rows * log_probability).sum(dim=1), rows.sum(dim=1)


def _check_row_sums(rows: Tensor) -> None:
    if checks.may_look(rows) and bool(((rows.sum(dim=1) - 1).abs() > 0.01).any()):
        raise ValueError(
            "labels given as rows must sum to 1; for multi-hot rows use mixed_binary_cross_entropy, for regression a "
            "criterion such as torch.nn.MSELoss()"
        )


def _check(logits: Tensor, mixed: MixedBatch, reduction: str) -> None:
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        checks.rank("logits", logits, "(B, K)")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating point, got {logits.dtype}")
    if reduction not in REDUCTIONS:
        checks.one_of("reduction", reduction, REDUCTIONS)
    source, destination = mixed.source_labels, mixed.destination_labels
    for labels in (source,) if destination is source else (source, destination):
        checks.labels(labels, len(logits), logits, "logits", classes=True)
        if labels.ndim == 2 and labels.shape[1] != logits.shape[1]:
            raise ValueError(f"labels must have {logits.shape[1]} columns as the logits do, got {labels.shape[1]}")
        checks.label_values(labels, logits.shape[1])


def _class_vector(name: str, value: Tensor, logits: Tensor) -> Tensor:
    """One weight >= 0 per class, in the dtype of the loss."""
    checks.tensor(name, value)
    if value.shape != logits.shape[1:]:
        raise ValueError(f"{name} must have shape ({logits.shape[1]},), got {checks.shape_of(value)}")
    checks.same_device(name, value, logits, "logits")
    if checks.may_look(value) and not (bool((value >= 0).all()) and bool(value.sum() > 0)):
        raise ValueError(f"{name} must be >= 0 and not all 0, got {float(value.min()):.4g} to {float(value.max()):.4g}")
    return value.to(logits.dtype)
