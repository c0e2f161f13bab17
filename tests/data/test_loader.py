"""Batches: the ranks' shares, crops and flips against a slow reference, and keyed draws."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from saligraft.data import Batch, ImageData, InMemoryLoader, crop_and_flip

counts, sizes, ranks = st.integers(1, 60), st.integers(1, 12), st.integers(1, 4)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def make_data(count: int = 23, height: int = 8, width: int = 6) -> ImageData:
    generator = torch.Generator().manual_seed(count)
    return ImageData(
        name="noise",
        images=torch.randint(256, (count, 3, height, width), dtype=torch.uint8, generator=generator),
        labels=torch.arange(count) % 5,
        classes=tuple("abcde"),
        mean=MEAN,
        std=STD,
    )


def loaders(count: int, batch_size: int, world_size: int, *, epoch: int = 0, **options: Any) -> list[InMemoryLoader]:
    """One loader per rank, at an epoch."""
    data, options = make_data(count, 1, 1), {"batch_size": batch_size, "world_size": world_size, "pad": 0, **options}
    parts = [InMemoryLoader(data, rank=rank, **options) for rank in range(world_size)]
    for loader in parts:
        loader.set_epoch(epoch)
    return parts


@given(count=counts, batch_size=sizes, world_size=ranks, epoch=st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_training_ranks_step_together_on_full_batches_of_different_samples(
    count: int, batch_size: int, world_size: int, epoch: int
) -> None:
    count = max(count, world_size)
    parts = loaders(count, batch_size, world_size, epoch=epoch, train=True)
    assert len({len(loader.order) for loader in parts}) == 1
    seen = torch.cat([loader.order for loader in parts])
    assert len(seen.unique()) == len(seen)
    joint = batch_size * world_size
    assert len(seen) == (count // joint * joint or count // world_size * world_size)
    assert {len(loader) for loader in parts} == {max(1, count // joint)}


@given(count=counts, batch_size=sizes, world_size=ranks)
@settings(max_examples=100, deadline=None)
def test_the_last_partial_batch_can_be_kept_after_the_same_full_ones(
    count: int, batch_size: int, world_size: int
) -> None:
    count = max(count, world_size)
    kept = loaders(count, batch_size, world_size, epoch=2, train=True, keep_last=True)
    seen = torch.cat([loader.order for loader in kept])
    assert len(seen.unique()) == len(seen) == count // world_size * world_size  # ranks stay in step
    assert {len(loader) for loader in kept} == {-(-(count // world_size) // batch_size)}
    for loader, other in zip(kept, loaders(count, batch_size, world_size, epoch=2, train=True), strict=True):
        assert torch.equal(loader.order[: len(other.order)], other.order)


@given(count=st.integers(0, 60), batch_size=sizes, world_size=ranks)
@settings(max_examples=100, deadline=None)
def test_testing_meets_every_sample_once_in_order(count: int, batch_size: int, world_size: int) -> None:
    parts = loaders(count, batch_size, world_size, epoch=3, train=False)
    assert sorted(torch.cat([loader.order for loader in parts]).tolist()) == list(range(count))
    for loader in parts:
        share = loader.order
        assert share.tolist() == sorted(share.tolist())
        assert len(loader) == (len(share.split(batch_size)) if len(share) else 0)


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_step_of_all_ranks_is_a_step_of_one_large_rank(world_size: int) -> None:
    (whole,) = loaders(50, 2 * world_size, 1, epoch=1, train=True, seed=4)
    shares = [loader.order for loader in loaders(50, 2, world_size, epoch=1, train=True, seed=4)]
    assert torch.equal(torch.stack(shares, dim=1).flatten(), whole.order)


def test_seed_and_epoch_decide_order_and_augmentation_apart() -> None:
    several = [loaders(50, 5, 1, epoch=epoch, train=True, seed=seed)[0] for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(loader.order.tolist()) for loader in several}) == 4
    assert len({loader.augmentation for loader in several}) == 4
    larger, smaller = loaders(50, 10, 1, train=True)[0], loaders(9, 2, 1, train=False)[0]
    assert torch.equal(several[0].order, larger.order)
    assert several[0].augmentation == smaller.augmentation


def test_torchs_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    list(loaders(50, 5, 1, epoch=2, train=True)[0])
    assert torch.equal(state, torch.get_rng_state())


def epoch(data: ImageData, number: int = 0, **options: Any) -> list[Batch]:
    loader = InMemoryLoader(data, **options)
    loader.set_epoch(number)
    batches = list(loader)
    assert len(batches) == len(loader)
    return batches


def indices(batches: list[Batch]) -> list[int]:
    return [int(i) for batch in batches for i in batch.index]


def slow_crop(image: Tensor, top: int, left: int, flipped: int) -> Tensor:
    """One sample and one pixel at a time."""
    channels, height, width = image.shape
    out = torch.zeros_like(image)
    for c, y, x in itertools.product(range(channels), range(height), range(width)):
        row, column = y + top, (width - 1 - x if flipped else x) + left
        if 0 <= row < height and 0 <= column < width:
            out[c, y, x] = image[c, row, column]
    return out


@given(
    geometry=st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4), st.integers(0, 1)), min_size=1, max_size=4),
    height=st.integers(5, 8),
    width=st.integers(5, 8),
)
@settings(max_examples=25, deadline=None)
def test_crop_equals_the_slow_reference(geometry: list[tuple[int, int, int]], height: int, width: int) -> None:
    images = torch.rand(len(geometry), 2, height, width)
    cropped = crop_and_flip(images, torch.tensor(geometry))
    for image, crop, (top, left, flipped) in zip(images, cropped, geometry, strict=True):
        assert torch.equal(crop, slow_crop(image, top, left, flipped))


def test_batches_are_the_normalised_images_cropped_by_their_geometry() -> None:
    data = make_data()
    for batch in epoch(data, batch_size=5, train=True, pad=3):
        assert batch.images.dtype == torch.float32
        for image, label, index, geometry in zip(*batch, strict=True):
            stored = data.images[index].double() / 255
            normal = (stored - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
            torch.testing.assert_close(image.double(), slow_crop(normal, *geometry.tolist()), atol=1e-5, rtol=0)
            assert label == data.labels[index]


def test_every_offset_and_both_flips_occur_and_flip_can_be_off() -> None:
    data = make_data(600)
    geometry = torch.cat([batch.geometry for batch in epoch(data, batch_size=100, train=True, pad=2)])
    for column, values in enumerate((range(-2, 3), range(-2, 3), range(2))):
        counts = [int((geometry[:, column] == value).sum()) for value in values]
        assert sum(counts) == 600
        assert min(counts) > 0.7 * 600 / len(counts)
    still = torch.cat([b.geometry for b in epoch(data, batch_size=100, train=True, pad=0, flip=False)])
    assert not still.any()


def test_draws_are_keyed_by_seed_epoch_and_sample_alone() -> None:
    data = make_data(40)

    def crops(number: int, **options: Any) -> dict[int, list[int]]:
        batches = epoch(data, number, train=True, **options)
        return {int(i): g.tolist() for b in batches for i, g in zip(b.index, b.geometry, strict=True)}

    plain = crops(1, batch_size=8)
    assert plain == crops(1, batch_size=5)
    assert plain == crops(1, batch_size=4, rank=0, world_size=2) | crops(1, batch_size=4, rank=1, world_size=2)
    assert plain != crops(2, batch_size=8)
    assert plain != crops(1, batch_size=8, seed=1)


@pytest.mark.parametrize("world_size", [1, 2, 3, 30])
def test_testing_counts_every_image_once_unchanged(world_size: int) -> None:
    data = make_data(23)
    ranks = [epoch(data, batch_size=4, train=False, rank=r, world_size=world_size) for r in range(world_size)]
    assert sorted(i for rank in ranks for i in indices(rank)) == list(range(23))
    assert indices(ranks[0]) == list(range(0, 23, world_size))
    first = ranks[0][0]
    assert not first.geometry.any()
    stored = data.images[first.index].float() / 255
    restored = first.images * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    torch.testing.assert_close(restored, stored, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"world_size": 0}, "world_size must be >= 1, got 0"),
        ({"rank": 2, "world_size": 2}, r"rank must lie in \[0, 2\), got 2"),
        ({"pad": 6}, r"pad must lie in \[0, 6\) for images of this size, got 6"),
        ({"pad": -1}, "got -1"),
        ({"world_size": 30}, "data must contain an image for each of 30 ranks, got 23 images"),
    ],
)
def test_bad_layouts_are_named(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        InMemoryLoader(make_data(), **{"batch_size": 4, "train": True, **options})  # type: ignore[arg-type]


def test_a_negative_epoch_is_named() -> None:
    with pytest.raises(ValueError, match="epoch must be >= 0, got -1"):
        InMemoryLoader(make_data(), batch_size=4, train=True).set_epoch(-1)
