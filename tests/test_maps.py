"""Statistics of saliency maps that mask and label share."""

import math

import pytest
import torch

from saligraft.maps import scale_maps, usable_maps


def test_maps_are_divided_by_their_peaks_and_norms() -> None:
    maps = scale_maps(torch.tensor([[[3.0, 4.0]], [[0.0, 2.0]]]))
    torch.testing.assert_close(maps.values, torch.tensor([[[0.75, 1.0]], [[0.0, 1.0]]]))
    torch.testing.assert_close(maps.unit(), torch.tensor([[[0.6, 0.8]], [[0.0, 1.0]]]))
    torch.testing.assert_close(maps.unit(1.0), torch.tensor([[[3 / 7, 4 / 7]], [[0.0, 1.0]]]))
    assert maps.peak.flatten().tolist() == [4.0, 2.0]
    assert maps.lowest.flatten().tolist() == [3.0, 0.0]


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 3e38])
def test_squares_of_extreme_maps_neither_over_nor_underflow(scale: float) -> None:
    torch.testing.assert_close(scale_maps(torch.tensor([[[0.5, 1.0]]]) * scale).norm.item(), math.sqrt(1.25))


def test_an_all_zero_map_has_no_scale_but_is_usable() -> None:
    maps = scale_maps(torch.zeros(1, 2, 2))
    assert maps.values.isnan().all()
    assert maps.unit().isnan().all()
    assert maps.usable.all()


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, -1e-3])
def test_maps_that_are_not_finite_or_negative_are_not_usable(broken: float) -> None:
    saliency = torch.ones(2, 3, 3)
    saliency[1, 0, 2] = broken
    assert usable_maps(saliency).tolist() == [True, False]
    assert scale_maps(saliency).usable.flatten().tolist() == [True, False]


def test_half_precision_is_widened() -> None:
    maps = scale_maps(torch.full((1, 2, 2), 6e4, dtype=torch.float16))
    assert maps.values.dtype == torch.float32
    assert maps.norm.item() == 2.0
