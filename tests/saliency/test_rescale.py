"""Resizing equals average pooling and bilinear interpolation by their definitions, written here in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft import resize_saliency


def resized_line(values: np.ndarray, grid: int) -> np.ndarray:
    """One row or column of n cells, resized to g cells over the same length: cell i is [i n/g, (i + 1) n/g]."""
    size = len(values)
    if grid >= size:  # linear between the centres of the cells, constant beyond the outermost
        return np.interp((np.arange(grid) + 0.5) / grid, (np.arange(size) + 0.5) / size, values)
    overlapping = [
        [values[cell] for cell in range(size) if cell * grid < (i + 1) * size and (cell + 1) * grid > i * size]
        for i in range(grid)
    ]
    return np.array([np.mean(cells) for cells in overlapping])


def reference(saliency: torch.Tensor, grid: int) -> torch.Tensor:
    rows_resized = np.apply_along_axis(resized_line, 1, saliency.double().numpy(), grid)
    return torch.from_numpy(np.apply_along_axis(resized_line, 2, rows_resized, grid)).float()


@given(height=st.integers(1, 16), width=st.integers(1, 16), grid=st.integers(1, 16), seed=st.integers(0, 99))
def test_equals_pooling_down_and_bilinear_up(height: int, width: int, grid: int, seed: int) -> None:
    saliency = torch.rand(2, height, width, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(resize_saliency(saliency, grid), reference(saliency, grid))


def test_compiled_it_is_the_same() -> None:
    """Compiled code takes another way, by matrix products."""
    compiled = torch.compile(resize_saliency, backend="eager", fullgraph=True, dynamic=True)
    for height, width, grid in ((3, 5, 8), (7, 16, 4), (2, 9, 5), (6, 6, 6)):
        saliency = torch.rand(2, height, width, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(compiled(saliency, grid), reference(saliency, grid))


def test_same_size_changes_nothing(generator: torch.Generator) -> None:
    saliency = torch.rand(2, 8, 8, generator=generator)
    assert torch.equal(resize_saliency(saliency, 8), saliency)


def test_half_precision_is_widened() -> None:
    assert resize_saliency(torch.rand(2, 8, 8).bfloat16(), 4).dtype == torch.float32


@pytest.mark.parametrize("grid", [4.5, (4, 4.5), None])
def test_refuses_grid_that_is_no_int(grid: object) -> None:
    with pytest.raises(TypeError, match="grid must be an int"):
        resize_saliency(torch.rand(2, 8, 8), grid)


@pytest.mark.parametrize("grid", [0, -4])
def test_refuses_grid(grid: int) -> None:
    with pytest.raises(ValueError, match=f"grid must be >= 1, got {grid}"):
        resize_saliency(torch.rand(2, 8, 8), grid)
