"""AugMix: convex blends of chains of operations, and the Jensen-Shannon divergence of three answers."""

import dataclasses
import math
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.batches import K, assert_steps_lower_the_loss, make_labels
from tests.pairwise import all_pairs
from torch import Tensor, nn

pytest.importorskip("torchvision", reason="AugMix's operations are torchvision's, an extra")

import saligraft as sg
from saligraft.methods import AugMix, augmix, jensen_shannon_loss
from saligraft.methods.augmix.operations import OPERATIONS


def pictures(size: int = 8) -> Tensor:
    return torch.rand(size, 3, 16, 20, generator=torch.Generator().manual_seed(0))


def entropy(rows: Tensor) -> Tensor:
    return -(rows * rows.clamp(min=1e-30).log()).sum(dim=1)


@given(seed=st.integers(0, 999), scale=st.floats(0.01, 20))
def test_divergence_is_the_entropy_of_the_mean_less_the_mean_entropy(seed: int, scale: float) -> None:
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(seed)) * scale
    shares = logits.double().softmax(dim=2)
    expected = (entropy(shares.mean(dim=0)) - sum(map(entropy, shares)) / 3).mean()
    loss = jensen_shannon_loss(*logits)
    torch.testing.assert_close(loss, expected.float(), atol=1e-5, rtol=1e-4)
    assert -1e-6 < float(loss) <= math.log(3) + 1e-6


def test_divergence_is_0_for_like_answers_and_finite_for_certain_ones() -> None:
    logits = torch.randn(4, 5)
    assert float(jensen_shannon_loss(logits, logits, logits).abs()) < 1e-6
    certain = [torch.eye(5)[[place] * 4].mul(1e4).requires_grad_() for place in (0, 1, 2)]
    loss = jensen_shannon_loss(*certain)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(3), rel=1e-4)
    assert all(one.grad.isfinite().all() for one in certain)


def test_view_is_the_written_out_blend_of_its_chains() -> None:
    """The grouped, batched view against one image at a time, one operation at a time."""
    images = pictures()
    method = AugMix(width=2, depth=3, severity=8)
    drawn = method.draw(images, generator=torch.Generator().manual_seed(1))
    view = augmix(images, drawn)
    for sample in range(len(images)):
        mixture = torch.zeros(3, 16, 20)
        for chain in range(2):
            image = images[sample : sample + 1]
            for groups in drawn.rounds:
                for group in groups:
                    at = group.places == 2 * sample + chain
                    if at.any():
                        image = OPERATIONS[group.operation](image, group.level[at], group.sign[at])
            mixture += drawn.chain_weight[sample, chain] * image[0]
        expected = (1 - drawn.blend[sample]) * images[sample] + drawn.blend[sample] * mixture
        torch.testing.assert_close(view[sample], expected, atol=1e-5, rtol=1e-5)


def test_draws_are_those_of_the_authors(generator: torch.Generator) -> None:
    images = torch.rand(3000, 3, 1, 1)
    drawn = AugMix().draw(images, generator=generator)
    lengths = [sum(len(group.places) for group in groups) / 9000 for groups in drawn.rounds]
    assert lengths == pytest.approx([1, 2 / 3, 1 / 3], abs=0.02)  # 1 to 3 operations, uniformly
    for group in drawn.rounds[0]:
        assert len(group.places) / 9000 == pytest.approx(1 / len(OPERATIONS), abs=0.015)
        assert 0.1 <= float(group.level.min()) < 0.2
        assert 2.9 < float(group.level.max()) <= 3.0
    torch.testing.assert_close(drawn.chain_weight.sum(dim=1), torch.ones(3000))
    assert float(drawn.chain_weight.std()) == pytest.approx((1 / 18) ** 0.5, abs=0.01)  # of Dirichlet(1, 1, 1)
    assert float(drawn.blend.std()) == pytest.approx((1 / 12) ** 0.5, abs=0.01)  # of Beta(1, 1)


def test_per_batch_and_probability() -> None:
    images = pictures(1).repeat(6, 1, 1, 1)
    view = augmix(images, AugMix(per="batch").draw(images, generator=torch.Generator().manual_seed(3)))
    assert len(view.unique(dim=0)) == 1
    assert len(augmix(images, AugMix().draw(images)).unique(dim=0)) == 6
    assert torch.equal(augmix(images, AugMix(probability=0).draw(images)), images)


@pytest.mark.parametrize("normalized", [False, True])
def test_views_are_normalised_after_the_augmentation(normalized: bool) -> None:
    images = pictures()
    mean, std = (0.1, 0.5, 0.3), (0.2, 0.5, 0.4)
    scale, shift = (torch.tensor(values)[:, None, None] for values in (std, mean))
    batch = (images - shift) / scale if normalized else images
    method = AugMix(mean=mean, std=std, normalized=normalized)
    clean, first, second = method.views(batch, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(clean, (images - shift) / scale)
    stream = torch.Generator().manual_seed(2)
    for view in (first, second):
        augmented = augmix(images, AugMix().draw(images, generator=stream))
        torch.testing.assert_close(view * scale + shift, augmented, atol=0.05, rtol=0)  # equalize may tip by a level
        assert float(augmented.min()) >= 0
        assert float(augmented.max()) <= 1
    assert not torch.equal(first, second)


def test_loss_is_that_of_the_clean_view_and_the_consistency() -> None:
    images, labels = pictures(), torch.arange(8) % 4
    logits = torch.randn(3, 8, 4)
    loss = AugMix().loss(logits, sg.MixedBatch.unmixed(images, labels), sg.mixed_cross_entropy)
    expected = nn.functional.cross_entropy(logits[0], labels) + 12 * jensen_shannon_loss(*logits)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"width": 0}, ValueError, "width must be >= 1, got 0"),
        ({"depth": 0}, ValueError, "depth must be >= 1, got 0"),
        ({"severity": 11}, ValueError, r"severity must be in \[0.1, 10\], got 11"),
        ({"consistency": -1}, ValueError, "consistency must be a finite number >= 0, got -1"),
        ({"std": (1, 1)}, ValueError, r"std must have 3 entries \(red, green, blue\), got 2"),
        ({"std": (1, 1, 0)}, ValueError, "each of std must be a finite number > 0, got 0"),
        ({"mean": 0.5}, TypeError, r"mean must be a sequence of numbers, got 0\.5"),
        ({"mean": ("a", "b", "c")}, TypeError, "each of mean must be a number, got str"),
        ({"mean": (float("nan"),) * 3}, ValueError, r"each of mean must be between .*, got nan"),
        ({"probability": 1.5}, ValueError, r"probability must be in \[0, 1\], got 1.5"),
        ({"per": "pixel"}, ValueError, "per must be one of 'sample', 'batch'; got 'pixel'"),
    ],
)
def test_refuses_bad_parameters(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AugMix(**change)


def test_names_the_extra_where_torchvision_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    with pytest.raises(ImportError, match=r"AugMix needs torchvision .*: `pip install 'saligraft\[lab\]'`"):
        OPERATIONS["equalize"](pictures(), torch.ones(8), torch.ones(8))


@pytest.mark.parametrize("alpha", [1e-320, 1e-300, 1e-3, 0.099])
def test_a_tiny_alpha_gives_one_hot_weights(alpha: float, generator: torch.Generator) -> None:
    drawn = AugMix(alpha=alpha).draw(torch.rand(400, 3, 8, 8), generator=generator)
    torch.testing.assert_close(drawn.chain_weight.sum(dim=1), torch.ones(400))
    # Towards 0 all weight falls on one chain, each as often, and the blend is one or the other.
    assert drawn.chain_weight.mean(dim=0).tolist() == pytest.approx([1 / 3] * 3, abs=0.08)
    assert float(drawn.blend.mean()) == pytest.approx(0.5, abs=0.08)


VARIANTS = {
    "plain": AugMix(),
    "per batch": AugMix(per="batch"),
    "half the time": AugMix(probability=0.5, severity=8, width=2, depth=1),
    "of normalised images": AugMix(normalized=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25)),
}
METHODS = [pytest.param(method, id=name) for name, method in VARIANTS.items()]
variants = pytest.mark.parametrize("method", METHODS)


def any_batch(
    method: AugMix, size: int = 6, shape: tuple[int, int] = (16, 16), labels: str = "index"
) -> tuple[Tensor, Tensor]:
    """Images in the method's domain: [0, 1], or what normalising that gives."""
    stream = torch.Generator().manual_seed(0)
    images = torch.rand(size, 3, *shape, generator=stream)
    if method.normalized:
        images = (images - torch.tensor(method.mean)[:, None, None]) / torch.tensor(method.std)[:, None, None]
    return images, make_labels(labels, size, stream)


@all_pairs(
    method=METHODS,
    labels=["index", "probability", "multi-hot"],
    size=[1, 5],
    shape=[(16, 16), (33, 20)],
    dtype=[torch.float32, torch.bfloat16],
)
def test_any_batch(method: AugMix, labels: str, size: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    images, truth = any_batch(method, size, shape, labels)
    images = images.to(dtype)
    views = method.views(images, generator=torch.Generator().manual_seed(1))
    assert len(views) == 3
    for view in views:
        assert view.shape == images.shape
        assert view.dtype == dtype
        assert view.isfinite().all()
    assert torch.equal(views[0], method.prepare(images))

    logits = [torch.randn(size, K, requires_grad=True) for _ in views]
    criterion = sg.mixed_binary_cross_entropy if labels == "multi-hot" else sg.mixed_cross_entropy
    loss = method.loss(logits, sg.MixedBatch.unmixed(images, truth), criterion)
    assert loss.shape == ()
    loss.backward()
    assert all(one.grad.isfinite().all() and one.grad.abs().sum() > 0 for one in logits)


@variants
def test_seeds_decide_inputs_stay_and_probability_0_changes_nothing(method: AugMix) -> None:
    images, _ = any_batch(method, 16)
    before = images.clone()
    first, again, other = (method.views(images, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])
    assert torch.equal(images, before)
    for view in dataclasses.replace(method, probability=0.0).views(images):
        torch.testing.assert_close(view, method.prepare(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (torch.rand(6, 3, 16), ValueError, r"images must have shape \(B, C, H, W\), got \(6, 3, 16\)"),
        (torch.ones(6, 3, 16, 16, dtype=torch.uint8), TypeError, "images must be floating point"),
        (torch.rand(0, 3, 16, 16), ValueError, "images must not be empty"),
        (torch.rand(6, 1, 16, 16), ValueError, r"images must have 3 channels \(RGB\) for AugMix, got 1"),
        (torch.rand(6, 4, 16, 16), ValueError, r"images must have 3 channels \(RGB\) for AugMix, got 4"),
        (torch.rand(6, 3, 16, 16) * 9, ValueError, r"images must lie in \[0, 1\] for AugMix, .*got .* to "),
        (torch.full((6, 3, 16, 16), torch.nan), ValueError, r"images must lie in \[0, 1\] for AugMix, .*got nan"),
    ],
)
def test_refuses_bad_input(images: Any, error: type[Exception], message: str) -> None:
    for method in (VARIANTS["plain"], VARIANTS["of normalised images"]):
        for call in (method.views, method.prepare):
            with pytest.raises(error, match=message):
                call(images)


def test_refuses_a_bad_generator() -> None:
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
        AugMix().views(pictures(), generator=5)


@variants
def test_two_training_steps_lower_the_loss(method: AugMix) -> None:
    torch.manual_seed(0)
    images, labels = any_batch(method, 16)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, K))
    assert_steps_lower_the_loss(
        model, lambda generator: sg.training_step(model, method, generator=generator)(images, labels).loss, lr=0.05
    )
