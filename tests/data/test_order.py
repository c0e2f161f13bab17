"""Orders: what ranks share, what is dropped, and that (seed, epoch) decide alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saligraft.data.order import Order

counts, sizes, ranks = st.integers(1, 60), st.integers(1, 12), st.integers(1, 4)


def orders(count: int, batch_size: int, world_size: int, train: bool, seed: int = 0) -> list[Order]:
    return [
        Order(count=count, batch_size=batch_size, train=train, seed=seed, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]


@given(count=counts, batch_size=sizes, world_size=ranks, epoch=st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_training_ranks_step_together_on_whole_batches_of_different_samples(
    count: int, batch_size: int, world_size: int, epoch: int
) -> None:
    if count < world_size:
        count = world_size
    shares = [order.epoch(epoch) for order in orders(count, batch_size, world_size, train=True)]
    lengths = {len(share) for share in shares}
    assert len(lengths) == 1
    seen = torch.cat(shares)
    assert len(seen.unique()) == len(seen)
    joint = batch_size * world_size
    assert len(seen) == (count // joint * joint or count // world_size * world_size)
    batches = {order.batches for order in orders(count, batch_size, world_size, train=True)}
    assert batches == {max(1, count // joint)}


@given(count=st.integers(0, 60), batch_size=sizes, world_size=ranks)
@settings(max_examples=100, deadline=None)
def test_testing_meets_every_sample_once_in_order(count: int, batch_size: int, world_size: int) -> None:
    parts = orders(count, batch_size, world_size, train=False)
    shares = [order.epoch(3) for order in parts]
    assert sorted(torch.cat(shares).tolist()) == list(range(count))
    for order, share in zip(parts, shares, strict=True):
        assert share.tolist() == sorted(share.tolist())
        assert order.batches == len(share.split(batch_size)) if len(share) else order.batches == 0


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_step_of_all_ranks_is_a_step_of_one_large_rank(world_size: int) -> None:
    (whole,) = orders(50, 2 * world_size, 1, train=True, seed=4)
    shares = [order.epoch(1) for order in orders(50, 2, world_size, train=True, seed=4)]
    joint = torch.stack(shares, dim=1).flatten()
    assert torch.equal(joint, whole.epoch(1))


def test_seed_and_epoch_decide_order_and_augmentation_apart() -> None:
    order, other = (Order(count=50, batch_size=5, train=True, seed=seed) for seed in (0, 1))
    orders_of = {tuple(each.epoch(epoch).tolist()) for each in (order, other) for epoch in (0, 1)}
    assert len(orders_of) == 4
    assert len({each.augmentation(epoch) for each in (order, other) for epoch in (0, 1)}) == 4
    assert torch.equal(order.epoch(7), Order(count=50, batch_size=10, train=True).epoch(7))
    assert order.augmentation(3) == Order(count=9, batch_size=2, train=False).augmentation(3)


def test_torchs_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    Order(count=50, batch_size=5, train=True).epoch(2)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"world_size": 0}, "world_size must be >= 1, got 0"),
        ({"rank": 1}, r"rank must lie in \[0, 1\), got 1"),
        ({"rank": 0, "world_size": 5}, "data must hold an image for each of 5 ranks, got 4 images"),
    ],
)
def test_bad_layouts_are_named(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Order(**{"count": 4, "batch_size": 2, "train": True, **options})  # type: ignore[arg-type]
