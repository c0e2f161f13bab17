"""Transport against the authors' dense procedure in NumPy, and against the best assignment there is."""

import numpy as np
import pytest
import torch
from torch import Tensor

from saligraft.methods.puzzlemix import move_blocks, transport_plan


def case(batch: int, grid: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    shares = torch.rand(batch, grid, grid, generator=stream) ** 6  # peaked, so that many blocks move
    return shares / shares.sum(dim=(1, 2), keepdim=True), torch.rand(batch, grid, grid, generator=stream) < 0.4


def distances(grid: int) -> np.ndarray:
    row, column = np.divmod(np.arange(grid**2), grid)
    return ((row[:, None] - row) ** 2 + (column[:, None] - column) ** 2) / (grid - 1) ** 2


def dense_plan(share: np.ndarray, visible: np.ndarray, cost: float, rounds: int) -> np.ndarray:
    """Of one sample, rows blocks and columns places: all bid for their cheapest, losers pay one more there."""
    grid = len(share)
    price = cost * distances(grid) - share.reshape(-1, 1) * visible.reshape(1, -1)
    for _ in range(rounds):
        bids = np.zeros_like(price)
        bids[np.arange(grid**2), price.argmin(axis=1)] = 1
        wins = np.zeros_like(price)
        wins[(bids * price).argmin(axis=0), np.arange(grid**2)] = 1
        wins *= bids
        price += bids - wins
    return wins


@pytest.mark.parametrize(("grid", "cost"), [(2, 0.1), (4, 0.8), (8, 0.8), (8, 0.1), (16, 0.8), (5, 0.01)])
def test_equals_the_dense_procedure_where_it_shows(grid: int, cost: float) -> None:
    shares, visible = case(12, grid)
    plan = transport_plan(shares, visible, cost).flatten(1).numpy()
    moved = 0
    for sample in range(12):
        wins = dense_plan(shares[sample].double().numpy(), visible[sample].numpy(), cost, grid)
        shown = visible[sample].flatten().numpy()
        assert (wins[:, shown].sum(axis=0) == 1).all()
        np.testing.assert_array_equal(plan[sample, shown], wins.argmax(axis=0)[shown])
        moved += (plan[sample] != np.arange(grid**2)).sum()
    assert moved > 4


@pytest.mark.parametrize("grid", [4, 8])
def test_near_the_best_assignment_and_never_better(grid: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    shares, visible = case(30, grid, seed=3)
    plan = transport_plan(shares, visible, 0.8, rounds=grid**2).flatten(1).numpy()
    gained = possible = 0.0
    for sample in range(30):
        share, shown = shares[sample].double().numpy().reshape(-1, 1), visible[sample].numpy().reshape(1, -1)
        gain = share * shown - 0.8 * distances(grid)
        ours = gain[plan[sample], np.arange(grid**2)][shown[0]].sum()
        best = gain[:, shown[0]][optimize.linear_sum_assignment(gain[:, shown[0]], maximize=True)].sum()
        stay = np.diag(gain)[shown[0]].sum()
        assert stay - 1e-9 <= ours <= best + 1e-9
        gained, possible = gained + ours - stay, possible + best - stay
    assert 0.9 * possible < gained < possible


def test_each_block_shows_once_and_hidden_places_keep_theirs() -> None:
    shares, visible = case(20, 8)
    plan = transport_plan(shares, visible, 0.1)
    own = torch.arange(64).view(8, 8).expand_as(plan)
    assert torch.equal(plan[~visible], own[~visible])
    for sample in range(20):
        shown = plan[sample][visible[sample]]
        assert len(shown.unique()) == len(shown)


def test_a_place_without_bids_keeps_its_own() -> None:
    shares = torch.zeros(1, 4, 4)
    shares[0, 0, 0] = 1.0
    visible = torch.zeros(1, 4, 4, dtype=torch.bool)
    visible[0, 1:] = True
    plan = transport_plan(shares, visible)
    expected = torch.arange(16).view(1, 4, 4).clone()
    expected[0, 1, 0] = 0  # the peak moves to the nearest place that shows; the rest has nothing to bid
    assert torch.equal(plan, expected)


def test_nothing_visible_or_one_block_moves_nothing() -> None:
    shares, visible = case(3, 8)
    assert torch.equal(transport_plan(shares, visible & False), torch.arange(64).view(8, 8).expand(3, 8, 8))
    assert (transport_plan(torch.ones(2, 1, 1), torch.ones(2, 1, 1, dtype=torch.bool)) == 0).all()


def test_bad_input_is_named() -> None:
    shares, visible = case(2, 4)
    with pytest.raises(ValueError, match="visible must be bool of shape"):
        transport_plan(shares, visible.float())
    with pytest.raises(ValueError, match="cost must be a finite number > 0, got 0"):
        transport_plan(shares, visible, 0)


@pytest.mark.parametrize(("height", "width", "grid"), [(16, 16, 4), (12, 20, 4), (33, 20, 4), (7, 9, 7)])
def test_blocks_move_as_the_plan_says(height: int, width: int, grid: int) -> None:
    stream = torch.Generator().manual_seed(0)
    images = torch.randn(3, 2, height, width, generator=stream)
    plan = torch.stack([torch.randperm(grid**2, generator=stream) for _ in range(3)]).view(3, grid, grid)
    moved = move_blocks(images, plan)
    top = [next(y for y in range(height + 1) if y * grid // height == k or y == height) for k in range(grid + 1)]
    left = [next(x for x in range(width + 1) if x * grid // width == k or x == width) for k in range(grid + 1)]
    for sample in range(3):
        for row in range(grid):
            for column in range(grid):
                from_row, from_column = divmod(int(plan[sample, row, column]), grid)
                for y in range(top[row], top[row + 1]):
                    for x in range(left[column], left[column + 1]):
                        source_y = min(top[from_row] + y - top[row], top[from_row + 1] - 1)
                        source_x = min(left[from_column] + x - left[column], left[from_column + 1] - 1)
                        assert torch.equal(moved[sample, :, y, x], images[sample, :, source_y, source_x])


def test_staying_is_exact_and_runs_on_meta() -> None:
    images = torch.randn(2, 3, 33, 20, dtype=torch.bfloat16)
    plan = torch.arange(64).view(1, 8, 8).repeat(2, 1, 1)
    assert torch.equal(move_blocks(images, plan), images)
    assert move_blocks(images.to("meta"), plan.to("meta")).shape == images.shape


def test_the_memory_order_of_images_stays() -> None:
    images = torch.randn(2, 3, 16, 16)
    plan = torch.stack([torch.randperm(16) for _ in range(2)]).view(2, 4, 4)
    moved = move_blocks(images.to(memory_format=torch.channels_last), plan)
    assert moved.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(moved, move_blocks(images, plan))
