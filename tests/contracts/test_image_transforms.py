"""What every image transform must hold; one that is added to the registry is in this suite by itself."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saligraft as sg
from saligraft.methods import Compose, Cutout, ImageTransform
from saligraft.methods.registry import methods_of

K = 5
VARIANTS: dict[str, ImageTransform[Any]] = {
    "cutout per batch": Cutout(per="batch"),
    "cutout half the time": Cutout(probability=0.5, size=5, fill=1.5),
}
TRANSFORMS = {**{name: transform() for name, transform in methods_of(ImageTransform).items()}, **VARIANTS}

transforms = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())


def make_images(batch: int = 6, channels: int = 3, size: tuple[int, int] = (16, 16)) -> Tensor:
    return torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(0))


def make_labels(kind: str, batch: int) -> Tensor:
    if kind == "index":
        return torch.arange(batch) % K
    rows = torch.rand(batch, K, generator=torch.Generator().manual_seed(1))
    return rows.softmax(dim=1) if kind == "probability" else (rows > 0.5).long()


@transforms
@pytest.mark.parametrize("labels", ["index", "probability", "multi-hot"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("size", [(16, 16), (33, 20)])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result(
    transform: ImageTransform[Any],
    labels: str,
    batch: int,
    size: tuple[int, int],
    channels: int,
    dtype: torch.dtype,
) -> None:
    images = make_images(batch, channels, size).to(dtype)
    changed = transform(images, generator=torch.Generator().manual_seed(1))
    assert changed.shape == images.shape
    assert changed.dtype == dtype
    assert changed.isfinite().all()

    truth = make_labels(labels, batch)
    mixed = Compose([transform])(images, truth, generator=torch.Generator().manual_seed(1))
    assert torch.equal(mixed.images, changed)
    torch.testing.assert_close(mixed.targets(K), sg.MixedBatch.unmixed(images, truth).targets(K))  # labels unchanged


@transforms
def test_same_seed_same_images_another_seed_others(transform: ImageTransform[Any]) -> None:
    images = make_images(32)
    first, again, other = (transform(images, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@transforms
def test_inputs_stay_untouched_and_probability_0_changes_nothing(transform: ImageTransform[Any]) -> None:
    images = make_images()
    before = images.clone()
    transform(images)
    assert torch.equal(images, before)
    assert torch.equal(dataclasses.replace(transform, probability=0.0)(images), before)


@transforms
@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (torch.rand(6, 3, 16), ValueError, r"images must have shape \(B, C, H, W\), got \(6, 3, 16\)"),
        (torch.ones(6, 3, 16, 16, dtype=torch.uint8), TypeError, "images must be floating point"),
        (torch.rand(0, 3, 16, 16), ValueError, "images must not be empty"),
        ([1, 2], TypeError, "images must be a torch.Tensor, got list"),
    ],
)
def test_bad_input_is_named(transform: ImageTransform[Any], images: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        transform(images)


@transforms
def test_a_bad_generator_is_named(transform: ImageTransform[Any]) -> None:
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
        transform(make_images(), generator=5)


@transforms
def test_bad_parameters_are_named(transform: ImageTransform[Any]) -> None:
    with pytest.raises(ValueError, match=r"probability must be in \[0, 1\], got 1.5"):
        dataclasses.replace(transform, probability=1.5)
    with pytest.raises(ValueError, match="per must be one of 'sample', 'batch'; got 'pixel'"):
        dataclasses.replace(transform, per="pixel")


@transforms
@pytest.mark.parametrize("mixer", [None, sg.Mixup()])
def test_two_training_steps_lower_the_loss(transform: ImageTransform[Any], mixer: sg.Mixup | None) -> None:
    torch.manual_seed(0)
    images, labels = make_images(16), make_labels("index", 16)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, K))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = Compose([transform] if mixer is None else [transform, mixer])
    losses = []
    for _ in range(3):
        generator = torch.Generator().manual_seed(0)  # the same draws, so that the losses compare
        loss = sg.MixingStep(model, method, generator=generator)(images, labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
