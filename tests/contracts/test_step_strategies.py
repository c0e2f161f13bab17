"""What every step strategy must hold; one that is added to the registry is in this suite by itself."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torchvision", reason="AugMix's operations are torchvision's, an extra")

import saligraft as sg
from saligraft.methods import AugMix, StepStrategy
from saligraft.methods.registry import methods_of
from saligraft.steps import ViewsStep

K = 5
VARIANTS: dict[str, StepStrategy] = {
    "augmix per batch": AugMix(per="batch"),
    "augmix half the time": AugMix(probability=0.5, severity=8, width=2, depth=1),
    "augmix of normalised images": AugMix(normalized=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25)),
}
STRATEGIES = {**{name: strategy() for name, strategy in methods_of(StepStrategy).items()}, **VARIANTS}

strategies = pytest.mark.parametrize("method", STRATEGIES.values(), ids=STRATEGIES.keys())


def make_batch(
    method: StepStrategy, batch: int = 6, size: tuple[int, int] = (16, 16), labels: str = "index"
) -> tuple[Tensor, Tensor]:
    """Images in the method's domain: [0, 1], or what normalising that gives."""
    stream = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 3, *size, generator=stream)
    if getattr(method, "normalized", False):
        images = (images - torch.tensor(method.mean)[:, None, None]) / torch.tensor(method.std)[:, None, None]
    if labels == "index":
        return images, torch.randint(K, (batch,), generator=stream)
    rows = torch.rand(batch, K, generator=stream)
    return images, rows.softmax(dim=1) if labels == "probability" else (rows > 0.5).long()


@strategies
@pytest.mark.parametrize("labels", ["index", "probability", "multi-hot"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("size", [(16, 16), (33, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result(method: StepStrategy, labels: str, batch: int, size: tuple[int, int], dtype: torch.dtype) -> None:
    images, truth = make_batch(method, batch, size, labels)
    images = images.to(dtype)
    views = method.views(images, generator=torch.Generator().manual_seed(1))
    assert len(views) > 1
    for view in views:
        assert view.shape == images.shape
        assert view.dtype == dtype
        assert view.isfinite().all()
    assert torch.equal(views[0], method.prepare(images))

    logits = [torch.randn(batch, K, requires_grad=True) for _ in views]
    criterion = sg.mixed_binary_cross_entropy if labels == "multi-hot" else sg.mixed_cross_entropy
    loss = method.loss(logits, sg.MixedBatch.unmixed(images, truth), criterion)
    assert loss.shape == ()
    loss.backward()
    assert all(one.grad.isfinite().all() and one.grad.abs().sum() > 0 for one in logits)


@strategies
def test_same_seed_same_views_another_seed_others(method: StepStrategy) -> None:
    images, _ = make_batch(method, 16)
    first, again, other = (method.views(images, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])


@strategies
def test_inputs_stay_untouched_and_probability_0_changes_nothing(method: StepStrategy) -> None:
    images, _ = make_batch(method)
    before = images.clone()
    method.views(images)
    assert torch.equal(images, before)
    for view in dataclasses.replace(method, probability=0.0).views(images):
        torch.testing.assert_close(view, method.prepare(images), atol=1e-5, rtol=1e-5)


@strategies
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
def test_bad_input_is_named(method: StepStrategy, images: Any, error: type[Exception], message: str) -> None:
    for call in (method.views, method.prepare):
        with pytest.raises(error, match=message):
            call(images)


@strategies
def test_a_bad_generator_is_named(method: StepStrategy) -> None:
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
        method.views(make_batch(method)[0], generator=5)


@strategies
def test_bad_parameters_are_named(method: StepStrategy) -> None:
    with pytest.raises(ValueError, match=r"probability must be in \[0, 1\], got 1.5"):
        dataclasses.replace(method, probability=1.5)
    with pytest.raises(ValueError, match="per must be one of 'sample', 'batch'; got 'pixel'"):
        dataclasses.replace(method, per="pixel")


@strategies
def test_two_training_steps_lower_the_loss(method: StepStrategy) -> None:
    torch.manual_seed(0)
    images, labels = make_batch(method, 16)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, K))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        generator = torch.Generator().manual_seed(0)  # the same draws, so that the losses compare
        loss = ViewsStep(model, method, generator=generator)(images, labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
