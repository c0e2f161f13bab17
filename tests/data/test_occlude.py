"""Occlusion against a slow twin in NumPy: exact counts, ties in row order, nothing else changed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from saligraft.data.occlude import GRID, hidden_cells, occlude


def slow_twin(images: Tensor, saliency: Tensor, count: int, fill: float) -> np.ndarray:  # type: ignore[type-arg]
    """Pixel by pixel: hidden where fewer than `count` cells come before its own."""
    out = images.numpy().copy()
    height, width = images.shape[2:]
    for sample, cells in enumerate(saliency.tolist()):
        flat = [value for row in cells for value in row]
        ranked = sorted(range(len(flat)), key=lambda place: (-flat[place], place))[:count]
        for y in range(height):
            for x in range(width):
                if (y * len(cells) // height) * len(cells[0]) + x * len(cells[0]) // width in ranked:
                    out[sample, :, y, x] = fill
    return out


@given(
    seed=st.integers(0, 2**31),
    size=st.tuples(st.integers(4, 11), st.integers(3, 9)),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    share=st.floats(0, 1),
    levels=st.integers(1, 5),
    fill=st.sampled_from([0.0, -1.5]),
)
def test_equals_a_slow_reference(
    seed: int, size: tuple[int, int], grid: tuple[int, int], share: float, levels: int, fill: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(3, 2, *size, generator=generator)
    saliency = torch.randint(levels, (3, *grid), generator=generator).float()  # few levels: many ties
    before = images.clone()
    hidden = occlude(images, saliency, share, fill)
    assert np.array_equal(hidden.numpy(), slow_twin(images, saliency, round(share * grid[0] * grid[1]), fill))
    assert torch.equal(images, before)


@pytest.mark.parametrize(("share", "cells"), [(0, 0), (0.125, 8), (0.25, 16), (1, 64)])
def test_the_paper_s_shares_are_exact_counts_of_cells(share: float, cells: int, generator: torch.Generator) -> None:
    saliency = torch.rand(5, GRID, GRID, generator=generator)
    hidden = occlude(torch.ones(5, 3, 64, 64), saliency, share)
    assert hidden_cells(share) == cells
    assert (hidden == 0).sum(dim=(1, 2, 3)).tolist() == [cells * 3 * 8 * 8] * 5


def test_equally_salient_cells_go_in_row_order() -> None:
    hidden = occlude(torch.ones(1, 1, 8, 8), torch.ones(1, GRID, GRID), 0.125)
    assert hidden[0, 0, 0].eq(0).all()
    assert hidden[0, 0, 1:].eq(1).all()


def test_a_fill_per_channel() -> None:
    fill = torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    assert torch.equal(occlude(torch.zeros(2, 3, 8, 8), torch.ones(2, 4, 4), 1, fill), fill.expand(2, 3, 8, 8))


def test_nothing_is_read_back_from_the_device() -> None:
    out = occlude(torch.ones(2, 3, 16, 16, device="meta"), torch.ones(2, GRID, GRID, device="meta"), 0.25)
    assert out.shape == (2, 3, 16, 16)


@pytest.mark.parametrize(
    ("saliency", "share", "words"),
    [
        (torch.ones(2, 8, 8), 1.5, r"share must be in \[0, 1\], got 1.5"),
        (torch.ones(3, 8, 8), 0.5, "saliency must"),
        (torch.ones(2, 20, 20), 0.5, "mask must not be finer than the image"),
    ],
)
def test_bad_input_is_named(saliency: Tensor, share: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        occlude(torch.ones(2, 3, 16, 16), saliency, share)
