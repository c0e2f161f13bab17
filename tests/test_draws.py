"""Draws: seeded, of the right distribution, independent of batch and device."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft import draws


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(batch=st.integers(1, 50), seed=st.integers(0, 999))
def test_partners_are_a_permutation(batch: int, seed: int) -> None:
    partner = draws.partners(batch, generator=seeded(seed))
    assert sorted(partner.tolist()) == list(range(batch))


def test_samples_that_are_not_mixed_are_paired_with_themselves() -> None:
    stayed = [
        (draws.partners(200, probability=0.3, per="sample", generator=seeded(s)) == torch.arange(200)).float().mean()
        for s in range(50)
    ]
    assert sum(stayed) / 50 == pytest.approx(0.7 + 0.3 / 200, abs=0.02)
    whole = [
        bool((draws.partners(200, probability=0.3, generator=seeded(s)) == torch.arange(200)).all()) for s in range(300)
    ]
    assert sum(whole) / 300 == pytest.approx(0.7, abs=0.1)
    assert torch.equal(draws.partners(9, probability=0.0, generator=seeded()), torch.arange(9))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_beta_has_its_moments(alpha: float) -> None:
    values = draws.beta(alpha, 20_000, generator=seeded())
    assert ((values >= 0) & (values <= 1)).all()
    assert float(values.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(values.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


def test_grid_is_uniform_and_a_plain_int() -> None:
    stream = seeded()
    drawn = [draws.grid((4, 7, 8), generator=stream) for _ in range(900)]
    assert all(type(grid) is int for grid in drawn)
    for grid in (4, 7, 8):
        assert drawn.count(grid) == pytest.approx(300, abs=60)


def test_cells_follow_their_probability() -> None:
    probability = torch.tensor([0.0, 0.2, 0.9, 1.0])
    share = draws.cells(4, 100, probability, generator=seeded()).float().mean(dim=(1, 2))
    torch.testing.assert_close(share, probability, atol=0.02, rtol=0)


@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 999))
def test_boxes_lie_inside_and_have_their_area(height: int, width: int, seed: int) -> None:
    ratio = torch.rand(20, generator=seeded(seed))
    top, left, bottom, right = draws.boxes(ratio, height, width, generator=seeded(seed)).unbind(1)
    assert ((top >= 0) & (left >= 0) & (bottom <= height) & (right <= width)).all()
    assert ((bottom >= top) & (right >= left)).all()
    assert ((bottom - top) * (right - left) <= ratio * height * width + 1e-3).all()  # clipping and rounding only shrink


def test_unclipped_boxes_have_the_drawn_area() -> None:
    ratio = torch.full((2000,), 0.25)
    top, left, bottom, right = draws.boxes(ratio, 64, 64, generator=seeded()).unbind(1)
    inside = (top > 0) & (left > 0) & (bottom < 64) & (right < 64)
    assert inside.any()
    assert ((bottom - top) * (right - left))[inside].eq(32 * 32).all()


def test_box_centres_are_uniform_over_the_pixels(generator: torch.Generator) -> None:
    """By brute force over all centres, independent of the box code: the mean sides after clipping."""
    height, width = 20, 32
    top, left, bottom, right = draws.boxes(torch.full((4000,), 0.25), height, width, generator=generator).unbind(dim=1)
    for seen, side in ((bottom - top, height), (right - left, width)):
        half = side // 4
        shown = [len([y for y in range(c - half, c + half) if 0 <= y < side]) for c in range(side)]
        assert float(seen.float().mean()) == pytest.approx(sum(shown) / side, abs=0.2)


def test_mean_area_of_boxes_is_the_authors() -> None:
    """0.299 of a 32 px image, by the rule of CutMix's `rand_bbox` over all centres and a fine grid of areas.

    Boxes whose odd sides keep their last pixel cover 0.311.
    """
    side, expected = 32, []
    for ratio in (np.arange(2000) + 0.5) / 2000:
        cut = int(side * np.sqrt(ratio))
        centre = np.arange(side)
        length = np.clip(centre + cut // 2, 0, side) - np.clip(centre - cut // 2, 0, side)
        expected.append((length.mean() / side) ** 2)
    assert np.mean(expected) == pytest.approx(0.299, abs=0.0005)
    ratio = (torch.arange(40_000) + 0.5) / 40_000
    top, left, bottom, right = draws.boxes(ratio, side, side, generator=seeded()).unbind(dim=1)
    area = ((bottom - top) * (right - left)).double().mean() / side**2
    assert float(area) == pytest.approx(np.mean(expected), abs=0.004)


def test_same_seed_same_draws_and_global_stream_without_generator() -> None:
    def all_draws(stream: torch.Generator | None) -> list[torch.Tensor]:
        beta = draws.beta(2.0, 3, generator=stream)
        cells = draws.cells(3, 4, beta, generator=stream)
        return [draws.partners(9, generator=stream), beta, cells, draws.boxes(beta, 9, 9, generator=stream)]

    for first, second in zip(all_draws(seeded(5)), all_draws(seeded(5)), strict=True):
        assert torch.equal(first, second)
    torch.manual_seed(7)
    first = all_draws(None)
    torch.manual_seed(7)
    assert all(torch.equal(a, b) for a, b in zip(first, all_draws(None), strict=True))


def test_choices_follow_their_probabilities(generator: torch.Generator) -> None:
    drawn = draws.choices((0.25, 0.75), 4000, probability=0.5, generator=generator)
    shares = torch.bincount(drawn, minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.125, 0.375, 0.5]), atol=0.03, rtol=0)


@pytest.mark.parametrize("alpha", [0.02, 0.5, 3.0])
def test_dirichlet_and_beta_have_their_moments_on_both_sides_of_the_small_alpha(alpha: float) -> None:
    """Var of a share of Dirichlet(α) among n is (n − 1) / n² / (nα + 1); Beta(α, α) is n = 2."""
    stream = torch.Generator().manual_seed(0)
    rows = draws.dirichlet(alpha, 3, 5000, generator=stream)
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(5000))
    for shares, n in ((rows, 3), (draws.beta(alpha, 5000, generator=stream), 2)):
        assert float(shares.mean()) == pytest.approx(1 / n, abs=0.02)
        assert float(shares.var()) == pytest.approx((n - 1) / n**2 / (n * alpha + 1), rel=0.06)
