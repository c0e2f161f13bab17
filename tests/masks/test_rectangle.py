"""Boxes against slicing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft.masks import rectangle_mask


@given(st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(0, 7), st.integers(0, 9)))
def test_equals_slicing(box: tuple[int, int, int, int]) -> None:
    top, left, bottom, right = box
    expected = torch.zeros(7, 9, dtype=torch.bool)
    expected[top:bottom, left:right] = True
    assert torch.equal(rectangle_mask(torch.tensor([box]), 7, 9)[0], expected)


def test_refuses_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"box must have shape \(B, 4\), got \(2, 3\)"):
        rectangle_mask(torch.zeros(2, 3), 4, 4)


def test_refuses_parts_of_pixels() -> None:
    with pytest.raises(TypeError, match=r"box must hold whole pixels, got torch\.float32"):
        rectangle_mask(torch.zeros(2, 4), 4, 4)
