"""Puzzle Mix as a whole: an independent composition, what a mask means, and what is left unchanged."""

import sys

import pytest
import torch
from tests.methods.puzzlemix.instances import pictures
from torch import Tensor
from torch.nn.functional import avg_pool2d

from saligraft.grafting import spread
from saligraft.methods.puzzlemix import EnergyTerms, PuzzleMix, puzzlemix

pytest.importorskip("scipy", reason="the default solver needs the extra puzzle")

B = 24


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    images, saliency = pictures(B, seed)
    return images, torch.arange(B) % 7, saliency


def given(ratio: float = 0.5) -> dict[str, Tensor]:
    return {"partner": torch.arange(B).roll(1), "ratio": torch.full((B,), ratio)}


def test_the_mask_has_its_levels_and_its_mean_is_the_weight() -> None:
    mixed = puzzlemix(*batch(), **given(), grid=8)
    assert mixed.mask.shape == (B, 8, 8)
    assert set(mixed.mask.unique().tolist()) == {0.0, 0.5, 1.0}
    torch.testing.assert_close(mixed.source_weight, mixed.mask.mean(dim=(1, 2)))
    assert torch.equal(mixed.destination_labels, mixed.source_labels.roll(1))


def test_in_place_it_is_the_blend_of_the_mask() -> None:
    images, labels, saliency = batch()
    mixed = puzzlemix(images, labels, saliency, **given(), grid=4, transport_cost=None)
    shown = spread(mixed.mask, 32, 32)[:, None]
    torch.testing.assert_close(mixed.images, shown * images + (1 - shown) * images.roll(1, 0))


def test_a_place_never_shows_less_saliency_for_the_transport() -> None:
    """What the transport is for; the saliency itself is mixed here, as an image of one channel."""
    _, labels, saliency = batch()
    moved, still = (
        puzzlemix(saliency[:, None], labels, saliency, **given(), grid=16, transport_cost=cost) for cost in (0.05, None)
    )
    assert torch.equal(moved.mask, still.mask)
    source = still.mask == 1
    after, before = (avg_pool2d(mixed.images, 2)[:, 0][source] for mixed in (moved, still))
    assert (after >= before - 1e-6).all()
    assert (after > before + 1e-2).sum() > 5


def test_beats_a_random_mask_of_the_same_size_in_saliency_kept() -> None:
    images, labels, saliency = batch()
    mixed = puzzlemix(images, labels, saliency, **given(), grid=8, transport_cost=None)
    blocks = avg_pool2d(saliency[:, None], 4)[:, 0]
    blocks = blocks / blocks.sum(dim=(1, 2), keepdim=True)
    kept = (mixed.mask * blocks + (1 - mixed.mask) * blocks.roll(1, 0)).sum(dim=(1, 2))
    assert (kept > 1.0).all()  # a mask that knows nothing keeps 1 of 2 in expectation
    assert kept.mean() > 1.3


def test_the_ratio_moves_the_mean_of_the_mask() -> None:
    means = [float(puzzlemix(*batch(), **given(ratio), grid=8).source_weight.mean()) for ratio in (0.1, 0.5, 0.9)]
    assert means[0] < 0.35 < means[1] < 0.65 < means[2]


def test_smaller_blocks_for_the_transport() -> None:
    coarse, fine = (puzzlemix(*batch(), **given(), grid=4, transport_grid=grid) for grid in (None, 16))
    assert (coarse.mask.shape, fine.mask.shape) == ((B, 4, 4), (B, 16, 16))
    assert torch.equal(spread(coarse.mask, 16, 16), fine.mask)
    torch.testing.assert_close(coarse.source_weight, fine.source_weight)
    assert not torch.equal(coarse.images, fine.images)


def test_a_sample_paired_with_itself_is_left_unchanged() -> None:
    images, labels, saliency = batch()
    itself = torch.arange(B)
    mixed = puzzlemix(images, labels, saliency, partner=itself, ratio=torch.rand(B), grid=16, transport_cost=0.01)
    assert torch.equal(mixed.images, images)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_map_leaves_the_destination_alone(bad: float) -> None:
    images, labels, saliency = batch()
    saliency = saliency.clone()
    saliency[3, 0, 0] = bad
    whole = puzzlemix(*batch(), **given(), grid=8)
    mixed = puzzlemix(images, labels, saliency, **given(), grid=8)
    hurt = torch.tensor([3, 4])  # 3 as a source, and 4, whose destination is 3
    assert (mixed.source_weight[hurt] == 0).all()
    assert torch.equal(mixed.images[hurt], images[hurt - 1])
    others = torch.tensor([i for i in range(B) if i not in (3, 4)])
    assert torch.equal(mixed.images[others], whole.images[others])


def test_an_empty_map_loses_to_the_other() -> None:
    images, labels, saliency = batch()
    saliency = saliency.clone()
    saliency[3] = 0
    mixed = puzzlemix(images, labels, saliency, **given(), grid=8)
    assert mixed.images.isfinite().all()
    assert mixed.source_weight[3] < 0.25
    assert mixed.source_weight[4] > 0.75


def test_other_pixels_may_be_shown() -> None:
    """Adversarial noise: the mask comes from the originals, the pixels from what is given."""
    images, labels, saliency = batch()
    noise = 0.1 * torch.randn(images.shape, generator=torch.Generator().manual_seed(5))
    plain = puzzlemix(images, labels, saliency, **given(), grid=8)
    noisy = puzzlemix(images, labels, saliency, **given(), grid=8, shown=(images + noise, images.roll(1, 0)))
    assert torch.equal(noisy.mask, plain.mask)
    destination = spread(plain.mask == 0, 32, 32)[:, None].expand_as(images)
    assert torch.equal(noisy.images[destination], plain.images[destination])
    assert not torch.equal(noisy.images, plain.images)


def test_draws_one_block_count_and_one_ratio_per_batch() -> None:
    images = torch.rand(200, 3, 16, 16)
    generator = torch.Generator().manual_seed(0)
    drawn = [PuzzleMix().draw(images[:4], generator=generator) for _ in range(100)]
    assert {draw.grid for draw in drawn} == {2, 4, 8, 16}
    assert all((draw.ratio == draw.ratio[0]).all() for draw in drawn)
    assert len(PuzzleMix(per="sample").draw(images, generator=generator).ratio.unique()) > 150


def test_the_class_forwards_its_parameters() -> None:
    images, labels, saliency = batch()
    method = PuzzleMix(
        grids=(8,), beta=3.0, gamma=0.1, eta=1.0, levels=5, pixel_std=(0.2, 0.3, 0.4), neighbourhood=2,
        transport_cost=0.1, transport_grid=16,
    )  # fmt: skip
    drawn = method.draw(images, generator=torch.Generator().manual_seed(0))
    expected = puzzlemix(
        images, labels, saliency, partner=drawn.partner, ratio=drawn.ratio, grid=8,
        terms=EnergyTerms(3.0, 0.1, 1.0, 5, (0.2, 0.3, 0.4), 2), transport_cost=0.1, transport_grid=16,
    )  # fmt: skip
    mixed = method(images, labels, saliency, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(one, other) for one, other in zip(mixed, expected, strict=True))


def test_both_solvers_mix_alike() -> None:
    pytest.importorskip("maxflow")
    first, second = (puzzlemix(*batch(), **given(), grid=8, solver=solver) for solver in ("scipy", "pymaxflow"))
    assert torch.equal(first.images, second.images)


def test_a_missing_solver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ImportError, match=r"needs scipy: `pip install 'saligraft\[puzzle\]'`"):
        puzzlemix(*batch(), **given(), grid=8, solver="scipy")


def test_bad_parameters_are_named() -> None:
    with pytest.raises(ValueError, match="solver must be one of 'auto', 'scipy', 'pymaxflow'; got 'gco'"):
        PuzzleMix(solver="gco")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="transport_cost must be a finite number > 0, got 0"):
        PuzzleMix(transport_cost=0)
    with pytest.raises(ValueError, match="transport_grid must be >= 1, got 0"):
        PuzzleMix(transport_grid=0)
    with pytest.raises(ValueError, match="eta must be a finite number >= 0, got -1"):
        PuzzleMix(eta=-1)
    with pytest.raises(ValueError, match=r"must not exceed the image \(8, 8\), got 16"):
        PuzzleMix(grids=(16,)).draw(torch.rand(2, 3, 8, 8))
    with pytest.raises(ValueError, match="saliency must be given to PuzzleMix, got None"):
        PuzzleMix()(*batch()[:2])
    with pytest.raises(ValueError, match=r"adversarial_probability must be in \[0, 1\], got 1.5"):
        PuzzleMix(adversarial_probability=1.5)
    with pytest.raises(ValueError, match="adversarial_radius must be a finite number > 0, got 0"):
        PuzzleMix(adversarial_radius=0)
    with pytest.raises(ValueError, match=r"pixel_mean must be in \[0, 1\], got 127"):
        PuzzleMix(pixel_mean=(0.5, 127, 0.5))


def test_noise_is_refused_where_no_gradient_is_at_hand() -> None:
    method = PuzzleMix(adversarial_probability=0.1)
    with pytest.raises(ValueError, match=r"must be 0 where .* no gradient, got 0.1: training_step\(model, method\)"):
        method(*batch())
    assert method.without_noise() == PuzzleMix()


@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        (torch.full((3,), 0.5), "ratio must have one entry per image: expected 4, got 3"),
        (torch.full((4,), 1.5), r"ratio must lie in \[0, 1\], got 1.5 to 1.5"),
        (torch.full((4,), torch.nan), r"ratio must lie in \[0, 1\], got nan"),
        (torch.tensor(0.5), r"ratio must have shape \(B\), got \(\)"),
    ],
)
def test_a_bad_ratio_is_named(ratio: torch.Tensor, message: str) -> None:
    images, labels = torch.rand(4, 3, 16, 16), torch.arange(4)
    with pytest.raises(ValueError, match=message):
        puzzlemix(images, labels, torch.rand(4, 4, 4), partner=torch.arange(4), ratio=ratio, grid=4)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_broken_pixels_are_named(broken: float) -> None:
    images, labels = torch.rand(4, 3, 16, 16), torch.arange(4)
    images[2, 1, 5, 5] = broken
    with pytest.raises(ValueError, match="images must be finite for PuzzleMix, got NaN or infinity in sample 2"):
        PuzzleMix()(images, labels, torch.rand(4, 4, 4))
