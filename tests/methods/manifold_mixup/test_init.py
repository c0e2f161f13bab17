"""Manifold Mixup is λ h(x_i) + (1−λ) h(x_j) at the drawn layer, for whatever a layer gives."""

import copy
import dataclasses
from collections import namedtuple
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.batches import K, assert_steps_lower_the_loss, make_labels
from tests.pairwise import all_pairs
from tests.processes import run_in_two
from torch import Tensor, nn

import saligraft as sg
from saligraft.methods import ManifoldMixup, mix_features
from saligraft.steps import FeatureMixingStep


def batch(size: int = 6) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.randn(size, 3, 8, 8, generator=stream), torch.randint(K, (size,), generator=stream)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, K)
    )


def test_equals_the_formula_at_every_layer() -> None:
    images, labels = batch()
    model = network()
    for layer in ("input", "0", "1", "4"):
        with ManifoldMixup(layers=(layer,)).mixing(model, images, labels) as mixed:
            logits = model(mixed.images)
        cut = 0 if layer == "input" else int(layer) + 1
        features = model[:cut](images)
        share = mixed.source_weight.view(-1, *[1] * (features.ndim - 1))
        expected = model[cut:](share * features + (1 - share) * features[mixed.partner])
        torch.testing.assert_close(logits, expected)
        assert mixed.mask.shape == (6, 1, 1)
        assert torch.equal(mixed.mask[:, 0, 0], mixed.source_weight)
        assert torch.equal(mixed.destination_labels, labels[mixed.partner])
        assert (mixed.images is images) == (layer != "input")


def test_input_alone_is_mixup() -> None:
    images, labels = batch()
    with ManifoldMixup(layers=("input",)).mixing(network(), images, labels) as mixed:
        pass
    expected = sg.mixup(images, labels, partner=mixed.partner, source_weight=mixed.source_weight)
    assert all(torch.equal(a, b) for a, b in zip(mixed, expected, strict=True))


def test_layers_ratios_and_coins_are_drawn_as_asked(generator: torch.Generator) -> None:
    images = torch.rand(2000, 1, 1, 1)
    layers = ("input", "a", "b")
    drawn = [ManifoldMixup(per="batch").draw(images[:4], layers, generator=generator) for _ in range(600)]
    for layer in layers:
        assert sum(draw.layer == layer for draw in drawn) == pytest.approx(200, abs=50)
    assert all(len(draw.source_weight.unique()) == 1 for draw in drawn)
    ratio = ManifoldMixup(probability=0.25).draw(images, layers, generator=generator)
    assert float(ratio.source_weight.std()) == pytest.approx((1 / 20) ** 0.5, abs=0.01)  # of Beta(2, 2)
    assert float((ratio.partner != torch.arange(2000)).float().mean()) == pytest.approx(0.25, abs=0.04)


class Gives(nn.Module):
    """A layer that wraps its features as some networks do."""

    def __init__(self, wrap: Any, unwrap: Any) -> None:
        super().__init__()
        self.wrap, self.unwrap = wrap, unwrap
        self.layer = nn.Identity()
        self.head = nn.Linear(3, K)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.unwrap(self.layer(self.wrap(images))))


Pair = namedtuple("Pair", ["features", "size"])
WRAPS: dict[str, tuple[Any, Any]] = {
    "tokens": (lambda x: x.flatten(2).transpose(1, 2), lambda t: t.mean(dim=1)),
    "channels last": (lambda x: x.permute(0, 2, 3, 1), lambda t: t.mean(dim=(1, 2))),
    "tuple": (lambda x: (x, (8, 8), torch.arange(6)), lambda t: t[0].mean(dim=(2, 3)) + 0 * t[2].sum()),
    "named tuple": (lambda x: Pair(x, 8), lambda t: t.features.mean(dim=(2, 3))),
    "dict": (lambda x: {"x": [x, None], "table": torch.ones(9)}, lambda t: t["x"][0].mean(dim=(2, 3))),
}


@pytest.mark.parametrize("kind", WRAPS)
def test_layers_may_return_nested_outputs(kind: str) -> None:
    images, labels = batch()
    model = Gives(*WRAPS[kind])
    with ManifoldMixup(layers=("layer",)).mixing(model, images, labels) as mixed:
        logits = model(mixed.images)
    share = mixed.source_weight[:, None, None, None]
    torch.testing.assert_close(logits, model(share * images + (1 - share) * images[mixed.partner]))


def test_refuses_layers_that_do_not_hold_the_batch() -> None:
    images, labels = batch()
    windows = Gives(lambda x: x.reshape(12, 3, 4, 8), lambda t: t.reshape(6, 3, 8, 8).mean(dim=(2, 3)))
    with (
        pytest.raises(ValueError, match=r"layer 'layer' must return features with the 6 images .* got \(12, 3, 4, 8\)"),
        ManifoldMixup(layers=("layer",)).mixing(windows, images, labels) as mixed,
    ):
        windows(mixed.images)
    assert not windows.layer._forward_hooks
    model = network()
    with pytest.raises(ValueError, match=r"layer must name a module of model, such as 'input', .*; got 'layer7'"):
        ManifoldMixup(layers=("input", "layer7")).layers_of(model, images)
    with pytest.raises(RuntimeError, match="model is compiled, where hooks are not reliable"):
        ManifoldMixup().layers_of(torch.compile(model, backend="eager"), images)
    with pytest.raises(ValueError, match=r"features must be floating point .* expected 6, got torch.int64 \(6\)"):
        mix_features(labels, partner=torch.arange(6), source_weight=torch.rand(6))
    with pytest.raises(TypeError, match=r"partner must be a torch\.Tensor, got NoneType"):
        mix_features(images, partner=None, source_weight=torch.rand(6))
    with pytest.raises(ValueError, match="source_weight must have one entry per image: expected 6, got 5"):
        mix_features(images, partner=torch.arange(6), source_weight=torch.rand(5))


def test_the_input_may_be_mixed_before_compiled_code() -> None:
    images, labels = batch()
    model = torch.compile(network(), backend="eager")
    with ManifoldMixup(layers=("input",)).mixing(model, images, labels) as mixed:
        assert model(mixed.images).shape == (6, K)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"alpha": 0}, ValueError, "alpha must be a finite number > 0, got 0"),
        ({"layers": "layer1"}, TypeError, r"layers must be a sequence of names such as .*, got 'layer1'"),
        ({"layers": (1,)}, TypeError, r"layers must be a sequence of names such as .*, got \(1,\)"),
        ({"layers": ()}, ValueError, "layers must name at least one layer"),
        ({"probability": 1.5}, ValueError, r"probability must be in \[0, 1\], got 1.5"),
        ({"per": "pixel"}, ValueError, "per must be one of 'sample', 'batch'; got 'pixel'"),
    ],
)
def test_refuses_bad_parameters(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ManifoldMixup(**change)


def two_processes(rank: int, folder: Path) -> None:
    """One step under DDP on half the batch each; rank 0 writes the averaged gradient."""
    wrapped = nn.parallel.DistributedDataParallel(network())
    images, labels = batch()
    half = slice(3 * rank, 3 * rank + 3)
    method = ManifoldMixup(layers=("1",))
    step = FeatureMixingStep(wrapped, method, generator=torch.Generator().manual_seed(rank))
    step(images[half], labels[half]).loss.backward()
    if rank == 0:
        torch.save([parameter.grad for parameter in wrapped.parameters()], folder / "gradients.pt")


@pytest.mark.slow
def test_two_processes_average_what_each_would_compute_alone(tmp_path: Path) -> None:
    run_in_two(two_processes, tmp_path)
    images, labels = batch()
    alone = []
    for rank in (0, 1):
        model = copy.deepcopy(network())
        half = slice(3 * rank, 3 * rank + 3)
        method = ManifoldMixup(layers=("1",))
        step = FeatureMixingStep(model, method, generator=torch.Generator().manual_seed(rank))
        step(images[half], labels[half]).loss.backward()
        alone.append([parameter.grad for parameter in model.parameters()])
    together = torch.load(tmp_path / "gradients.pt", weights_only=True)
    for mean, one, other in zip(together, *alone, strict=True):
        torch.testing.assert_close(mean, (one + other) / 2)


VARIANTS = {
    "plain": ManifoldMixup(),
    "per batch": ManifoldMixup(per="batch"),
    "half the time": ManifoldMixup(probability=0.5, alpha=1.0),
    "in the middle": ManifoldMixup(layers=("1",)),
}
METHODS = [pytest.param(method, id=name) for name, method in VARIANTS.items()]
variants = pytest.mark.parametrize("method", METHODS)


def any_batch(
    size: int = 6, channels: int = 3, shape: tuple[int, int] = (16, 16), labels: str = "index"
) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    images = torch.randn(size, channels, *shape, generator=stream)
    return images, make_labels(labels, size, stream)


def any_network(channels: int = 3) -> nn.Sequential:
    """Three stages, so that layers are found by default, and a head."""
    torch.manual_seed(0)
    stages = (
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU())
        for a, b in pairwise((channels, 6, 8, 10))
    )
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, K))


def run(method: ManifoldMixup, model: nn.Module, batch: tuple[Tensor, Tensor], seed: int) -> tuple[Tensor, Any]:
    with method.mixing(model, *batch, generator=torch.Generator().manual_seed(seed)) as mixed:
        return model(mixed.images), mixed


@all_pairs(
    method=METHODS,
    labels=["index", "probability", "multi-hot"],
    size=[1, 5],
    shape=[(16, 16), (33, 20)],
    channels=[1, 3, 4],
    dtype=[torch.float32, torch.bfloat16],
)
def test_any_batch(
    method: ManifoldMixup, labels: str, size: int, shape: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    images, truth = any_batch(size, channels, shape, labels)
    logits, mixed = run(method, any_network(channels).to(dtype), (images.to(dtype), truth), seed=1)
    assert logits.shape == (size, K)
    assert logits.dtype == mixed.images.dtype == dtype
    assert logits.isfinite().all()
    assert mixed.images.shape == images.shape
    assert mixed.source_labels is truth
    assert torch.equal(mixed.destination_labels, truth[mixed.partner])
    assert mixed.source_weight.dtype == torch.float32
    assert ((mixed.source_weight >= 0) & (mixed.source_weight <= 1)).all()
    assert torch.equal(mixed.mask, mixed.source_weight[:, None, None])
    rows = mixed.targets(K)
    assert rows.shape == (size, K)
    if labels != "multi-hot":
        torch.testing.assert_close(rows.sum(dim=1), torch.ones(size))


@variants
def test_seeds_decide_and_probability_0_changes_nothing(method: ManifoldMixup) -> None:
    model, (images, labels) = any_network(), any_batch(32)
    (first, _), (again, _), (other, _) = (run(method, model, (images, labels), seed) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for seed in range(4):
        logits, mixed = run(dataclasses.replace(method, probability=0.0), model, (images, labels), seed)
        torch.testing.assert_close(logits, model(images))
        torch.testing.assert_close(mixed.targets(K), nn.functional.one_hot(labels, K).float())


@variants
def test_leaves_no_trace_in_inputs_or_network_even_after_an_error(method: ManifoldMixup) -> None:
    model, batch = any_network(), any_batch()
    copies = [tensor.clone() for tensor in batch]
    plain = model(batch[0])
    for seed in range(6):
        run(method, model, batch, seed)
        with (
            pytest.raises(ZeroDivisionError),
            method.mixing(model, *batch, generator=torch.Generator().manual_seed(seed)) as mixed,
        ):
            _ = model(mixed.images).shape[0] / 0
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(tensor, copied) for tensor, copied in zip(batch, copies, strict=True))
    assert torch.equal(model(batch[0]), plain)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": torch.rand(6, 3, 16)}, ValueError, r"images must have shape \(B, C, H, W\), got \(6, 3, 16\)"),
        ({"images": torch.ones(6, 3, 16, 16, dtype=torch.uint8)}, TypeError, "images must be floating point"),
        ({"images": torch.rand(0, 3, 16, 16)}, ValueError, "images must not be empty"),
        ({"labels": torch.zeros(5, dtype=torch.long)}, ValueError, "labels must have one entry per image"),
        ({"labels": torch.zeros(6, dtype=torch.bool)}, TypeError, "labels"),
        ({"labels": torch.full((6,), -1)}, ValueError, "labels must be class indices >= 0, got -1"),
        ({"labels": torch.zeros(6, dtype=torch.long, device="meta")}, ValueError, "labels must be on the device"),
        ({"generator": 5}, TypeError, r"generator must be a torch\.Generator or None, got int"),
    ],
)
def test_refuses_bad_input(change: dict, error: type[Exception], message: str) -> None:
    inputs = {**dict(zip(("images", "labels"), any_batch(), strict=True)), **change}
    with pytest.raises(error, match=message), ManifoldMixup().mixing(any_network(), **inputs):
        pass


@all_pairs(
    method=METHODS,
    transforms=[(), pytest.param((sg.Cutout(size=4),), id="cutout")],
    labels=["index", "probability", "multi-hot"],
)
def test_two_training_steps_lower_the_loss(method: ManifoldMixup, transforms: Any, labels: str) -> None:
    images, truth = any_batch(16, labels=labels)
    model = any_network()
    criterion = sg.mixed_binary_cross_entropy if labels == "multi-hot" else sg.mixed_cross_entropy

    def loss_of(generator: torch.Generator) -> Tensor:
        step = sg.training_step(model, [*transforms, method], criterion=criterion, generator=generator)
        return step(images, truth).loss

    assert_steps_lower_the_loss(model, loss_of)
