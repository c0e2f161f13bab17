"""The box around a map's peak, against a plain loop, and where there is no peak."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft.masks.peak_box import peak_box


@given(
    seed=st.integers(0, 2**31),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    ratio=st.floats(0, 1, width=32),
)
def test_equals_a_plain_loop(seed: int, grid: tuple[int, int], size: tuple[int, int], ratio: float) -> None:
    maps = torch.rand(3, *grid, generator=torch.Generator().manual_seed(seed))
    boxes = peak_box(maps, torch.full((3,), ratio), *size)
    for each, box in zip(maps.numpy(), boxes.tolist(), strict=True):
        peak = np.unravel_index(each.argmax(), each.shape)
        for axis in (0, 1):
            side = int(np.sqrt(np.float32(ratio)) * np.float32(size[axis]))
            centre = math.floor((int(peak[axis]) + 0.5) * size[axis] / grid[axis] + 1e-9)
            assert box[axis] == max(centre - side // 2, 0)
            assert box[axis + 2] == min(centre + side // 2, size[axis])


def test_a_map_of_the_images_size_is_centred_at_the_very_pixel() -> None:
    maps = torch.zeros(1, 20, 30)
    maps[0, 12, 25] = 1
    assert peak_box(maps, torch.tensor([0.16]), 20, 30).tolist() == [[8, 19, 16, 30]]


def test_of_equal_peaks_the_first_counts() -> None:
    maps = torch.zeros(1, 4, 4)
    maps[0, 1, 2] = maps[0, 3, 0] = 1
    assert peak_box(maps, torch.tensor([1 / 4]), 4, 4).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_map_that_is_not_finite_has_an_empty_box(broken: float) -> None:
    maps = torch.rand(2, 4, 4)
    maps[1, 2, 2] = broken
    first, second = peak_box(maps, torch.tensor([0.5, 0.5]), 8, 8).tolist()
    assert second == [0, 0, 0, 0]
    assert first[2] > first[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    maps = torch.eye(4)[None].cumsum(dim=1)
    expected = peak_box(maps, torch.tensor([0.25]), 16, 16)
    assert torch.equal(peak_box(maps.to(dtype), torch.tensor([0.25], dtype=dtype), 16, 16), expected)


def test_bad_input_is_named() -> None:
    maps, ratio = torch.rand(2, 4, 4), torch.rand(2)
    with pytest.raises(ValueError, match=r"saliency must have shape \(B, h, w\), got \(4, 4\)"):
        peak_box(maps[0], ratio, 8, 8)
    with pytest.raises(ValueError, match="ratio must have one entry per map: expected 2, got 1"):
        peak_box(maps, ratio[:1], 8, 8)
    with pytest.raises(ValueError, match=r"ratio must have shape \(B\)"):
        peak_box(maps, ratio[:, None], 8, 8)
    with pytest.raises(ValueError, match="width must be >= 1, got 0"):
        peak_box(maps, ratio, 8, 0)
