"""The k most salient cells, exactly k, also with ties."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft import top_k_regions


@given(k=st.integers(1, 16), levels=st.integers(1, 5), seed=st.integers(0, 999))
def test_takes_exactly_the_k_largest(k: int, levels: int, seed: int) -> None:
    saliency = torch.randint(levels, (3, 4, 4), generator=torch.Generator().manual_seed(seed)).float()
    mask = top_k_regions(saliency, k)
    assert (mask.sum(dim=(1, 2)) == k).all()
    for values, selected in zip(saliency, mask, strict=True):
        assert k == 16 or values[selected].min() >= values[~selected].max()


def test_broken_map_selects_nothing() -> None:
    saliency = torch.rand(2, 4, 4)
    saliency[1, 0, 0] = float("nan")
    mask = top_k_regions(saliency, 3)
    assert mask[0].sum() == 3
    assert not mask[1].any()


@pytest.mark.parametrize(("k", "bound"), [(0, ">= 1"), (17, "<= 16")])
def test_refuses_k(k: int, bound: str) -> None:
    with pytest.raises(ValueError, match=f"k must be {bound}, got {k}"):
        top_k_regions(torch.rand(1, 4, 4), k)


@pytest.mark.parametrize("k", [2.5, True, "3"])
def test_refuses_other_types_than_int(k: Any) -> None:
    with pytest.raises(TypeError, match=f"k must be an int, got {type(k).__name__}"):
        top_k_regions(torch.rand(1, 4, 4), k)
