"""Eq. 3-4: softmax with temperature, thresholded at the mean, against a NumPy twin that follows the paper's letters."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft import salient_regions
from saligraft.masks.salient import NORMALIZATIONS, Normalize

SCALES = {
    "l2": lambda saliency: saliency / np.sqrt((saliency**2).sum()),
    "max": lambda saliency: saliency / saliency.max(),
    "sum": lambda saliency: saliency / saliency.sum(),
    "minmax": lambda saliency: (saliency - saliency.min()) / (saliency.max() - saliency.min()),
    "none": lambda saliency: saliency,
}


def twin(saliency: np.ndarray, temperature: float, threshold: float, normalize: str = "l2") -> np.ndarray:
    """S'' of one map, written as printed."""
    scaled = SCALES[normalize](saliency) / temperature
    share = np.exp(scaled - scaled.max())
    share = share / share.sum()  # Eq. 3
    return share > threshold * share.mean()  # Eq. 4


maps = st.integers(0, 2**31).map(
    lambda seed: torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
)


@given(
    saliency=maps,
    temperature=st.floats(0.01, 5),
    threshold=st.floats(0.1, 3),
    normalize=st.sampled_from(NORMALIZATIONS),
)
def test_equals_the_paper(saliency: torch.Tensor, temperature: float, threshold: float, normalize: Normalize) -> None:
    expected = np.stack([twin(one, temperature, threshold, normalize) for one in saliency.numpy()])
    assert np.array_equal(salient_regions(saliency, temperature, threshold, normalize).numpy(), expected)


@given(saliency=maps, scale=st.floats(1e-30, 1e30))
def test_l2_does_not_depend_on_the_scale_of_the_map(saliency: torch.Tensor, scale: float) -> None:
    maps = saliency.float()
    assert torch.equal(salient_regions(maps), salient_regions((maps.double() * scale).float()))


@given(saliency=maps)
def test_lower_temperature_and_higher_threshold_select_fewer(saliency: torch.Tensor) -> None:
    assert salient_regions(saliency, 0.05).sum() <= salient_regions(saliency, 0.5).sum()
    assert not (salient_regions(saliency, threshold=1.5) & ~salient_regions(saliency, threshold=1.0)).any()


def test_limits_of_temperature(generator: torch.Generator) -> None:
    saliency = torch.rand(64, 8, 8, generator=generator)
    assert salient_regions(saliency, temperature=0.001).float().sum(dim=(1, 2)).mean() < 6  # a few cells (§A)
    share = salient_regions(saliency, temperature=100.0).float().mean()
    assert 0.4 < share < 0.6  # "nearly half the numbers are above the threshold" (§A)


@pytest.mark.parametrize("temperature", [1e-40, 1e-9, 1e-6, 1e6, 1e9, 1e30])
def test_extreme_temperatures_reach_their_limits(temperature: float, generator: torch.Generator) -> None:
    """The peak alone when cold, the cells above the plain mean when hot."""
    saliency = torch.rand(16, 8, 8, generator=generator)
    above_mean = saliency > saliency.mean(dim=(1, 2), keepdim=True)
    peak = saliency == saliency.amax(dim=(1, 2), keepdim=True)
    assert torch.equal(salient_regions(saliency, temperature), above_mean if temperature > 1 else peak)
    assert salient_regions(saliency, temperature, threshold=0).all()
    assert (salient_regions(saliency * 1e6, temperature, normalize="none") & peak).any(dim=(1, 2)).all()


@pytest.mark.parametrize("value", [0.0, 1e-20, 0.1, 1 / 3, 7.7, 1e20])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_flat_map_selects_nothing_and_below_the_mean_all(value: float, normalize: Normalize) -> None:
    flat = torch.full((2, 7, 5), value)
    assert not salient_regions(flat, normalize=normalize).any()
    assert salient_regions(flat, threshold=0.9, normalize=normalize).all()


def test_threshold_zero_selects_every_cell(generator: torch.Generator) -> None:
    assert salient_regions(torch.rand(2, 8, 8, generator=generator), temperature=0.001, threshold=0).all()


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf"), -0.1])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_broken_map_selects_nothing_and_spares_its_neighbour(broken: float, normalize: Normalize) -> None:
    saliency = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(1))
    saliency[0, 1, 2] = broken
    regions = salient_regions(saliency, threshold=0.5, normalize=normalize)
    assert not regions[0].any()
    assert regions[1].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0}, "temperature must be a finite number > 0, got 0"),
        ({"temperature": float("nan")}, "temperature must be a finite number > 0, got nan"),
        ({"threshold": -1.0}, "threshold must be a finite number >= 0, got -1.0"),
        ({"normalize": "l3"}, "normalize must be one of 'l2', 'max', 'sum', 'minmax', 'none'; got 'l3'"),
    ],
)
def test_refuses_bad_parameters(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        salient_regions(torch.rand(2, 4, 4), **arguments)
