"""Cutout blanks one square per image, clipped at the border, and nothing else."""

import dataclasses
from typing import Any

import pytest
import torch
from tests.batches import K, assert_steps_lower_the_loss, make_labels
from tests.pairwise import all_pairs
from torch import nn

import saligraft as sg
from saligraft.methods import Cutout, cutout


def test_the_box_is_blank_and_the_rest_stays() -> None:
    images = torch.rand(2, 3, 8, 10) + 1
    blank = cutout(images, box=torch.tensor([[2, 3, 6, 9], [0, 0, 0, 0]]), fill=-1.0)
    assert (blank[0, :, 2:6, 3:9] == -1).all()
    assert int((blank == -1).sum()) == 3 * 4 * 6
    assert torch.equal(blank[1], images[1])
    assert torch.equal(blank[0, :, :2], images[0, :, :2])


@pytest.mark.parametrize("size", [16, 5])
def test_sides_and_mean_area_are_those_of_clipped_squares(size: int, generator: torch.Generator) -> None:
    """By brute force over all centres, independent of the box code."""
    height, width = 20, 32
    holes = Cutout(size=size)(torch.ones(4000, 1, height, width), generator=generator)[:, 0] == 0
    tall, wide = holes.any(dim=2).sum(dim=1), holes.any(dim=1).sum(dim=1)
    assert torch.equal(tall * wide, holes.sum(dim=(1, 2)))  # each hole is one full rectangle
    assert int(tall.max()) == int(wide.max()) == size
    for seen, side in ((tall, height), (wide, width)):
        shown = [len([y for y in range(c - size // 2, c - size // 2 + size) if 0 <= y < side]) for c in range(side)]
        assert float(seen.float().mean()) == pytest.approx(sum(shown) / side, abs=0.2)


def test_one_square_per_batch_or_per_sample_and_how_often() -> None:
    images = torch.ones(200, 1, 32, 32)
    assert len(Cutout(per="batch")(images).unique(dim=0)) == 1
    assert len(Cutout()(images).unique(dim=0)) > 150
    cut = (Cutout(probability=0.3)(images) == 0).flatten(1).any(dim=1)
    assert 0.15 < float(cut.float().mean()) < 0.45
    whole = [bool((Cutout(probability=0.5, per="batch")(images) == 0).any()) for _ in range(30)]
    assert len(set(whole)) == 2


def test_a_square_larger_than_the_image_blanks_what_it_covers() -> None:
    assert (Cutout(size=64)(torch.ones(3, 3, 16, 16)) == 0).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be >= 1, got 0"),
        ({"size": 2.5}, TypeError, "size must be an int, got float"),
        ({"fill": "black"}, TypeError, "fill must be a number, got str"),
        ({"probability": 1.5}, ValueError, r"probability must be in \[0, 1\], got 1.5"),
        ({"per": "pixel"}, ValueError, "per must be one of 'sample', 'batch'; got 'pixel'"),
    ],
)
def test_refuses_bad_parameters(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Cutout(**change)


def test_refuses_boxes_that_do_not_fit_the_batch() -> None:
    with pytest.raises(ValueError, match="box must have one entry per image: expected 2, got 1"):
        cutout(torch.rand(2, 3, 8, 8), box=torch.zeros(1, 4, dtype=torch.long))


VARIANTS = {
    "plain": Cutout(),
    "per batch": Cutout(per="batch"),
    "half the time": Cutout(probability=0.5, size=5, fill=1.5),
}
METHODS = [pytest.param(method, id=name) for name, method in VARIANTS.items()]
variants = pytest.mark.parametrize("method", METHODS)


@all_pairs(
    method=METHODS,
    labels=["index", "probability", "multi-hot"],
    size=[1, 5],
    shape=[(16, 16), (33, 20)],
    channels=[1, 3, 4],
    dtype=[torch.float32, torch.bfloat16],
)
def test_any_batch(
    method: Cutout, labels: str, size: int, shape: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    images = torch.randn(size, channels, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    changed = method(images, generator=torch.Generator().manual_seed(1))
    assert changed.shape == images.shape
    assert changed.dtype == dtype
    kept = (changed == images).all(dim=1, keepdim=True)
    assert torch.equal(changed, torch.where(kept, images, torch.tensor(method.fill, dtype=dtype)))

    truth = make_labels(labels, size, torch.Generator().manual_seed(1))
    mixed = sg.Compose([method])(images, truth, generator=torch.Generator().manual_seed(1))
    assert torch.equal(mixed.images, changed)
    torch.testing.assert_close(mixed.targets(K), sg.MixedBatch.unmixed(images, truth).targets(K))  # labels unchanged


@variants
def test_seeds_decide_inputs_stay_and_probability_0_changes_nothing(method: Cutout) -> None:
    images = torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    first, again, other = (method(images, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)
    assert torch.equal(dataclasses.replace(method, probability=0.0)(images), before)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": torch.rand(6, 3, 16)}, ValueError, r"images must have shape \(B, C, H, W\), got \(6, 3, 16\)"),
        ({"images": torch.ones(6, 3, 16, 16, dtype=torch.uint8)}, TypeError, "images must be floating point"),
        ({"images": torch.rand(0, 3, 16, 16)}, ValueError, "images must not be empty"),
        ({"images": [1, 2]}, TypeError, "images must be a torch.Tensor, got list"),
        ({"generator": 5}, TypeError, r"generator must be a torch\.Generator or None, got int"),
    ],
)
def test_refuses_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Cutout()(**{"images": torch.rand(6, 3, 16, 16), **change})


@all_pairs(method=METHODS, mixer=[None, sg.Mixup()])
def test_two_training_steps_lower_the_loss(method: Cutout, mixer: sg.Mixup | None) -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(16, 3, 16, 16), torch.arange(16) % K
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, K))
    methods = [method] if mixer is None else [method, mixer]
    assert_steps_lower_the_loss(
        model, lambda generator: sg.training_step(model, methods, generator=generator)(images, labels).loss
    )
