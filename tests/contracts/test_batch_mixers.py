"""The contract of batch mixers; each one in the registry is held to it."""

import dataclasses
import importlib.util
import pkgutil
from typing import Any

import pytest
import torch
from tests.batches import K, assert_steps_lower_the_loss, make_labels
from tests.pairwise import all_pairs
from torch import Tensor, nn

import saligraft as sg
from saligraft import methods
from saligraft.grafting import spread
from saligraft.methods import REGISTRY, AttentiveCutMix, BatchMixer, RandomChoice
from saligraft.methods.registry import methods_of

# Modules that hold what methods share, or combine methods.
NOT_METHODS = {"base", "kinds", "registry", "compose", "choice"}
# Variants whose behaviour differs in kind; each method's plain form is added below from the registry.
VARIANTS: dict[str, BatchMixer[Any]] = {
    "mixup per batch": sg.Mixup(per="batch"),
    "cutmix per batch": sg.CutMix(per="batch"),
    "cutmix half the time": sg.CutMix(probability=0.5),
    "top-k": sg.SaliencyGrafting(selection="top-k"),
    "area labels": sg.SaliencyGrafting(label_mixing="area"),
    "per sample": sg.SaliencyGrafting(per="sample", probability=0.7),
    "every cell": sg.SaliencyGrafting(threshold=0, grids=(7,)),
    "attentive cutmix at the map's own grid": AttentiveCutMix(grid=None, k=3, probability=0.5),
    "choice per batch": RandomChoice([sg.Mixup(), sg.CutMix(), sg.SaliencyGrafting(label_mixing="area")]),
    "choice per sample": RandomChoice([sg.Mixup(), sg.CutMix(), AttentiveCutMix()], per="sample", probability=0.9),
    "puzzlemix in place": sg.PuzzleMix(transport_cost=None, per="sample"),
    "puzzlemix far and fine": sg.PuzzleMix(transport_cost=0.01, transport_grid=8, grids=(3, 4)),
}
MIXERS = {**{name: method() for name, method in methods_of(BatchMixer).items()}, **VARIANTS}
# The solver of PuzzleMix is an extra: the others must be tested without it too.
needs_scipy = pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="needs the extra puzzle")

PARAMS = {name: pytest.param(m, id=name, marks=[needs_scipy] * hasattr(m, "solver")) for name, m in MIXERS.items()}
mixers = pytest.mark.parametrize("method", PARAMS.values())
# Variants check their input by the same code: the plain forms suffice, and a choice, which passes on parts of a batch.
plain_mixers = pytest.mark.parametrize(
    "method", [PARAMS[name] for name in (*methods_of(BatchMixer), "choice per sample")]
)


pure_mixers = pytest.mark.parametrize("method", [PARAMS[name] for name in methods_of(BatchMixer)])


def make_batch(
    batch: int = 6, channels: int = 3, size: tuple[int, int] = (16, 16), labels: str = "index", seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, channels, *size, generator=stream)
    return images, make_labels(labels, batch, stream), torch.rand(batch, 8, 8, generator=stream)


def calibrated(method: BatchMixer[Any]) -> bool:
    return getattr(method, "label_mixing", "area") == "saliency"


def test_every_file_of_the_folder_is_in_the_registry() -> None:
    files = {module.name for module in pkgutil.iter_modules(methods.__path__)} - NOT_METHODS
    assert sorted(name.replace("-", "_") for name in REGISTRY) == sorted(files)


@mixers
@all_pairs(
    labels=["index", "probability", "multi-hot"],
    batch=[1, 5],
    size=[(16, 16), (33, 20)],
    channels=[1, 3, 4],
    dtype=[torch.float32, torch.bfloat16],
)
def test_result(
    method: BatchMixer[Any], labels: str, batch: int, size: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    images, truth, saliency = make_batch(batch, channels, size, labels)
    images = images.to(dtype)
    mixed = method(images, truth, saliency, generator=torch.Generator().manual_seed(1))

    assert mixed.images.shape == images.shape
    assert mixed.images.dtype == dtype
    assert mixed.source_labels is truth
    assert torch.equal(mixed.destination_labels, truth[mixed.partner])
    assert mixed.source_weight.shape == (batch,)
    assert mixed.source_weight.dtype == torch.float32
    assert ((mixed.source_weight >= 0) & (mixed.source_weight <= 1)).all()

    assert len(mixed.mask) == batch
    assert all(cells <= pixels for cells, pixels in zip(mixed.mask.shape[1:], size, strict=True))
    shown = spread(mixed.mask, *size).float().expand(batch, *size)
    if not calibrated(method):
        torch.testing.assert_close(mixed.source_weight, shown.mean(dim=(1, 2)))
    if not method.moves_pixels:
        source, destination = shown[:, None] == 1, shown[:, None] == 0
        assert torch.equal(mixed.images * source, images * source)
        assert torch.equal(mixed.images * destination, images[mixed.partner] * destination)
        assert torch.equal(mixed.carry(images), mixed.images)
    else:
        with pytest.raises(ValueError, match="carry cannot repeat this mixing"):
            mixed.carry(images)

    rows = mixed.targets(K)
    assert rows.shape == (batch, K)
    if labels != "multi-hot":
        torch.testing.assert_close(rows.sum(dim=1), torch.ones(batch))


@mixers
def test_same_seed_same_batch_another_seed_another(method: BatchMixer[Any]) -> None:
    batch = make_batch(batch=32)
    first, again, other = (method(*batch, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.images, other.images)


@mixers
def test_inputs_stay_untouched(method: BatchMixer[Any]) -> None:
    batch = make_batch()
    copies = [tensor.clone() for tensor in batch]
    method(*batch)
    with pytest.raises(ValueError, match="labels must have one entry per image"):
        method(batch[0], batch[1][:-1], batch[2])
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(batch, copies, strict=True))


@mixers
def test_probability_0_changes_nothing(method: BatchMixer[Any]) -> None:
    images, labels, saliency = make_batch(batch=9)
    mixed = dataclasses.replace(method, probability=0.0)(images, labels, saliency)
    torch.testing.assert_close(mixed.images, images, rtol=0, atol=0)
    torch.testing.assert_close(mixed.targets(K), nn.functional.one_hot(labels, K).float())


@plain_mixers
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": torch.rand(6, 3)}, ValueError, r"images must have shape \(B, C, H, W\).*, got \(6, 3\)"),
        ({"images": torch.ones(6, 3, 16, 16, dtype=torch.uint8)}, TypeError, "images must be floating point"),
        ({"images": torch.rand(0, 3, 16, 16)}, ValueError, "images must not be empty"),
        ({"images": [1, 2]}, TypeError, "images must be a torch.Tensor, got list"),
        ({"labels": torch.zeros(5, dtype=torch.long)}, ValueError, "labels must have one entry per image: expected 6"),
        ({"labels": torch.zeros(6, dtype=torch.bool)}, TypeError, "must be integer class indices, got torch.bool"),
        ({"labels": torch.full((6,), -1)}, ValueError, "labels must be class indices >= 0, got -1"),
        ({"labels": torch.zeros(6, 2, 2)}, ValueError, r"labels must have shape \(B,\) or \(B, K\)"),
        ({"labels": torch.full((6, 2), float("nan"))}, ValueError, "labels must be finite, got NaN or infinity"),
        ({"labels": torch.zeros(6, dtype=torch.long, device="meta")}, ValueError, "labels must be on the device"),
        ({"saliency": torch.rand(6, 8)}, ValueError, r"saliency must have shape \(B, h, w\)"),
        ({"saliency": torch.rand(5, 8, 8)}, ValueError, "saliency must have one map per image: expected 6, got 5"),
        ({"saliency": torch.full((6, 8, 8), float("nan"))}, ValueError, "saliency must be finite, .* in sample 0"),
        ({"saliency": torch.full((6, 8, 8), float("inf"))}, ValueError, "saliency must be finite"),
        ({"saliency": torch.rand(6, 8, 8, device="meta")}, ValueError, "saliency must be on the device of images"),
        ({"generator": 7}, TypeError, r"generator must be a torch\.Generator or None, got int"),
        ({"saliency": -torch.ones(6, 8, 8)}, ValueError, "saliency must be >= 0, got -1"),
    ],
)
def test_refuses_bad_input(method: BatchMixer[Any], change: dict, error: type[Exception], message: str) -> None:
    batch = dict(zip(("images", "labels", "saliency"), make_batch(), strict=True))
    with pytest.raises(error, match=message):
        method(**{**batch, **change})


@mixers
def test_refuses_bad_parameters(method: BatchMixer[Any]) -> None:
    with pytest.raises(ValueError, match=r"probability must be in \[0, 1\], got 1.5"):
        dataclasses.replace(method, probability=1.5)
    with pytest.raises(ValueError, match="per must be one of 'sample', 'batch'; got 'pixel'"):
        dataclasses.replace(method, per="pixel")
    if hasattr(method, "alpha"):
        with pytest.raises(ValueError, match="alpha must be a finite number > 0, got 0"):
            dataclasses.replace(method, alpha=0)


@mixers
def test_two_training_steps_lower_the_loss(method: BatchMixer[Any]) -> None:
    torch.manual_seed(0)
    images, labels, _ = make_batch(batch=16)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, K)
    )

    def loss_of(generator: torch.Generator) -> Tensor:
        step = sg.GraftingStep(model, method, saliency_source="feature-map", layer="1", generator=generator)
        return step(images, labels).loss

    assert_steps_lower_the_loss(model, loss_of)


@pure_mixers
def test_missing_partners_are_refused_in_one_line(method: BatchMixer[Any]) -> None:
    images, labels, saliency = make_batch()
    without = method.draw(images)._replace(partner=None)
    with pytest.raises(TypeError, match=r"^partner must be a torch\.Tensor, got NoneType$"):
        method.apply(images, labels, saliency, without)
