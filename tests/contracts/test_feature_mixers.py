"""What every feature mixer must hold; one that is added to the registry is in this suite by itself."""

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saligraft as sg
from saligraft.methods import Cutout, FeatureMixer
from saligraft.methods.manifold_mixup import ManifoldMixup
from saligraft.methods.registry import methods_of
from saligraft.steps import FeatureMixingStep

K = 5
VARIANTS: dict[str, FeatureMixer] = {
    "manifold mixup per batch": ManifoldMixup(per="batch"),
    "manifold mixup half the time": ManifoldMixup(probability=0.5, alpha=1.0),
    "manifold mixup in the middle": ManifoldMixup(layers=("middle",)),
}
MIXERS = {**{name: mixer() for name, mixer in methods_of(FeatureMixer).items()}, **VARIANTS}

mixers = pytest.mark.parametrize("method", MIXERS.values(), ids=MIXERS.keys())


class Network(nn.Module):
    """Three stages of two convolutions each, and a head."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = (channels, 6, 8, 10)
        self.early, self.middle, self.late = (
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU())
            for a, b in pairwise(widths)
        )
        self.head = nn.Linear(10, K)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.late(self.middle(self.early(images))).mean(dim=(2, 3)))


def make_batch(
    batch: int = 6, channels: int = 3, size: tuple[int, int] = (16, 16), labels: str = "index"
) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    images = torch.randn(batch, channels, *size, generator=stream)
    if labels == "index":
        return images, torch.randint(K, (batch,), generator=stream)
    rows = torch.rand(batch, K, generator=stream)
    return images, rows.softmax(dim=1) if labels == "probability" else (rows > 0.5).long()


def run(method: FeatureMixer, model: nn.Module, batch: tuple[Tensor, Tensor], seed: int) -> tuple[Tensor, Any]:
    with method.mixing(model, *batch, generator=torch.Generator().manual_seed(seed)) as mixed:
        return model(mixed.images), mixed


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@mixers
@pytest.mark.parametrize("labels", ["index", "probability", "multi-hot"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("size", [(16, 16), (33, 20)])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result(
    method: FeatureMixer, labels: str, batch: int, size: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    images, truth = make_batch(batch, channels, size, labels)
    images = images.to(dtype)
    model = Network(channels).to(dtype)
    logits, mixed = run(method, model, (images, truth), seed=1)

    assert logits.shape == (batch, K)
    assert logits.dtype == dtype
    assert logits.isfinite().all()
    assert mixed.images.shape == images.shape
    assert mixed.source_labels is truth
    assert torch.equal(mixed.destination_labels, truth[mixed.partner])
    assert mixed.source_weight.dtype == torch.float32
    assert ((mixed.source_weight >= 0) & (mixed.source_weight <= 1)).all()
    assert torch.equal(mixed.mask, mixed.source_weight[:, None, None])
    rows = mixed.targets(K)
    assert rows.shape == (batch, K)
    if labels != "multi-hot":
        torch.testing.assert_close(rows.sum(dim=1), torch.ones(batch))


@mixers
def test_same_seed_same_pass_another_seed_another(method: FeatureMixer) -> None:
    model, batch = Network(), make_batch(32)
    (first, _), (again, _), (other, _) = (run(method, model, batch, seed) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@mixers
def test_leaves_no_trace(method: FeatureMixer) -> None:
    """Neither in the inputs, nor in the network, also after an error inside."""
    model, batch = Network(), make_batch()
    copies = [tensor.clone() for tensor in batch]
    plain = model(batch[0])
    for seed in range(6):
        run(method, model, batch, seed)
        with (
            pytest.raises(ZeroDivisionError),
            method.mixing(model, *batch, generator=torch.Generator().manual_seed(seed)) as mixed,
        ):
            _ = model(mixed.images).shape[0] / 0
        assert hooks(model) == 0
    with pytest.raises(ValueError, match="labels must have one entry per image"):
        run(method, model, (batch[0], batch[1][:-1]), seed=0)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(batch, copies, strict=True))
    assert torch.equal(model(batch[0]), plain)


@mixers
def test_probability_0_changes_nothing(method: FeatureMixer) -> None:
    model, (images, labels) = Network(), make_batch(9)
    for seed in range(4):
        logits, mixed = run(dataclasses.replace(method, probability=0.0), model, (images, labels), seed)
        torch.testing.assert_close(logits, model(images))
        torch.testing.assert_close(mixed.targets(K), nn.functional.one_hot(labels, K).float())


@mixers
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": torch.rand(6, 3, 16)}, ValueError, r"images must have shape \(B, C, H, W\), got \(6, 3, 16\)"),
        ({"images": torch.ones(6, 3, 16, 16, dtype=torch.uint8)}, TypeError, "images must be floating point"),
        ({"images": torch.rand(0, 3, 16, 16)}, ValueError, "images must not be empty"),
        ({"labels": torch.zeros(6)}, TypeError, "must be integer class indices, got torch.float32"),
        ({"labels": torch.full((6,), -1)}, ValueError, "labels must be class indices >= 0, got -1"),
        ({"labels": torch.zeros(6, dtype=torch.long, device="meta")}, ValueError, "labels must be on the device"),
    ],
)
def test_bad_input_is_named(method: FeatureMixer, change: dict, error: type[Exception], message: str) -> None:
    batch = {**dict(zip(("images", "labels"), make_batch(), strict=True)), **change}
    with pytest.raises(error, match=message):
        run(method, Network(), (batch["images"], batch["labels"]), seed=0)
    with (
        pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"),
        method.mixing(Network(), *make_batch(), generator=5),
    ):
        pass


@mixers
def test_bad_parameters_are_named(method: FeatureMixer) -> None:
    with pytest.raises(ValueError, match=r"probability must be in \[0, 1\], got 1.5"):
        dataclasses.replace(method, probability=1.5)
    with pytest.raises(ValueError, match="per must be one of 'sample', 'batch'; got 'pixel'"):
        dataclasses.replace(method, per="pixel")


@mixers
@pytest.mark.parametrize("transforms", [(), (Cutout(size=4),)])
@pytest.mark.parametrize("labels", ["index", "probability", "multi-hot"])
def test_two_training_steps_lower_the_loss(method: FeatureMixer, transforms: Any, labels: str) -> None:
    images, truth = make_batch(16, labels=labels)
    model = Network()
    criterion = sg.mixed_binary_cross_entropy if labels == "multi-hot" else sg.mixed_cross_entropy
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        generator = torch.Generator().manual_seed(0)  # the same draws, so that the losses compare
        step = FeatureMixingStep(model, method, transforms=transforms, criterion=criterion, generator=generator)
        loss = step(images, truth).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
