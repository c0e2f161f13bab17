"""E[ΣM] = k at the temperature found, measured by real draws; a clear word where none can."""

import pytest
import torch

import saligraft as sg
from saligraft.masks import expected_cells, matched_temperature


def maps(count: int = 400) -> torch.Tensor:
    stream = torch.Generator().manual_seed(0)
    return torch.rand(count, 8, 8, generator=stream) ** 2


@pytest.mark.parametrize("k", [2, 6, 10])
def test_grafts_take_k_cells_on_average(k: int) -> None:
    saliency = maps()
    method = sg.SaliencyGrafting(temperature=matched_temperature(saliency, k), grids=(8,), per="sample")
    images, labels = torch.zeros(400, 1, 8, 8), torch.zeros(400, dtype=torch.long)
    cells = [
        method(images, labels, saliency, generator=torch.Generator().manual_seed(seed)).mask.sum() / 400
        for seed in range(40)
    ]
    assert float(torch.stack(cells).mean()) == pytest.approx(k, rel=0.05)


def test_expected_cells_are_those_that_real_draws_graft() -> None:
    saliency = maps()
    method = sg.SaliencyGrafting(temperature=0.1, grids=(8,), per="sample")
    images, labels = torch.zeros(400, 1, 8, 8), torch.zeros(400, dtype=torch.long)
    cells = [
        method(images, labels, saliency, generator=torch.Generator().manual_seed(seed)).mask.sum() / 400
        for seed in range(40)
    ]
    assert expected_cells(saliency, 0.1) == pytest.approx(float(torch.stack(cells).mean()), rel=0.03)
    assert expected_cells(saliency, matched_temperature(saliency, 6)) == pytest.approx(6, abs=0.02)
    assert expected_cells(saliency, 0.1, threshold=0.0, sampling=1.0) == 64


def test_more_cells_need_a_higher_temperature() -> None:
    found = [matched_temperature(maps(), k) for k in (1, 4, 8, 12)]
    assert found == sorted(found)


@pytest.mark.parametrize("k", [17, 64])
def test_no_matching_temperature_is_an_error(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k must be between .* got {k}"):
        matched_temperature(maps(), k)


def test_refuses_bad_input() -> None:
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        matched_temperature(maps(), 0)
    with pytest.raises(ValueError, match=r"sampling must be in \[0, 1\], got 2"):
        matched_temperature(maps(), 3, sampling=2)
