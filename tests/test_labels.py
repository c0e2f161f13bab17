"""Eq. 5: importance and calibrated weight against a NumPy twin, and where the equation is 0/0."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft import calibrated_weight, importance

seeds = st.integers(0, 2**31)
norms = st.sampled_from([1.0, 2.0, 3.0, math.inf])


def maps_and_mask(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    source, destination = torch.rand(2, 4, 3, 5, generator=stream) + 0.01
    return source, destination, torch.rand(4, 3, 5, generator=stream) < torch.rand((), generator=stream)


def twin_importance(saliency: np.ndarray, visible: np.ndarray, norm: float) -> float:
    return np.linalg.norm((saliency * visible).ravel(), norm) / np.linalg.norm(saliency.ravel(), norm)


@given(seed=seeds, norm=norms)
def test_equals_equation_5(seed: int, norm: float) -> None:
    source, destination, mask = maps_and_mask(seed)
    weight = calibrated_weight(source, destination, mask, norm=norm)
    for i in range(4):
        given_part = twin_importance(source[i].numpy(), mask[i].numpy(), norm)
        kept_part = twin_importance(destination[i].numpy(), 1 - mask[i].numpy(), norm)
        assert float(weight[i]) == pytest.approx(given_part / (given_part + kept_part), rel=1e-5, abs=1e-7)


@given(seed=seeds, norm=norms, scale=st.floats(1e-25, 1e25))
def test_lies_between_0_and_1_and_ignores_the_scale(seed: int, norm: float, scale: float) -> None:
    source, destination, mask = maps_and_mask(seed)
    weight = calibrated_weight(source, destination, mask, norm=norm)
    assert ((weight >= 0) & (weight <= 1)).all()
    rescaled = calibrated_weight((source.double() * scale).float(), destination, mask, norm=norm)
    torch.testing.assert_close(rescaled, weight, rtol=1e-4, atol=1e-6)


@given(seed=seeds)
def test_swapping_roles_gives_the_rest(seed: int) -> None:
    source, destination, mask = maps_and_mask(seed)
    torch.testing.assert_close(
        calibrated_weight(source, destination, mask), 1 - calibrated_weight(destination, source, ~mask)
    )


def test_the_case_of_section_4_2() -> None:
    """A small salient part grafted onto the other's small salient part: area says destination, Eq. 5 says source."""
    saliency = torch.full((1, 8, 8), 1e-3)
    saliency[0, 2:4, 2:4] = 1.0
    mask = torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[0, 2:4, 2:4] = True
    assert float(calibrated_weight(saliency, saliency, mask)) > 0.99
    assert float(mask.float().mean()) < 0.07


def test_empty_and_full_masks(generator: torch.Generator) -> None:
    source, destination = torch.rand(2, 3, 4, 4, generator=generator)
    none = torch.zeros(3, 4, 4, dtype=torch.bool)
    assert torch.equal(calibrated_weight(source, destination, none), torch.zeros(3))
    assert torch.equal(calibrated_weight(source, destination, ~none), torch.ones(3))


@pytest.mark.parametrize("image_size", [None, (4, 4), (33, 6)])
def test_zero_over_zero_falls_back_on_the_area(image_size: tuple[int, int] | None) -> None:
    mask = torch.zeros(1, 4, 4, dtype=torch.bool)
    mask[0, 0] = True
    height = (image_size or (4, 4))[0]
    area = math.ceil(height / 4) / height
    zero, some = torch.zeros(1, 4, 4), torch.rand(1, 4, 4)
    seen_nowhere = (~mask).float()  # the source's saliency lies outside the mask ...
    hidden = mask.float()  # ... and the destination's inside it
    for source, destination in ((zero, some), (some, zero), (zero, zero), (seen_nowhere, hidden)):
        assert float(calibrated_weight(source, destination, mask, image_size=image_size)) == pytest.approx(area)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -1.0])
def test_broken_map_has_weight_0(broken: float) -> None:
    good, bad = torch.rand(1, 4, 4) + 0.1, torch.full((1, 4, 4), broken)
    mask = torch.ones(1, 4, 4, dtype=torch.bool)
    assert float(calibrated_weight(bad, good, mask)) == 0
    assert float(calibrated_weight(good, bad, mask)) == 0


@pytest.mark.parametrize("broken", [0.0, float("nan"), float("inf"), -1.0])
def test_importance_of_a_map_without_saliency_or_that_is_broken_is_zero(broken: float) -> None:
    maps = torch.stack([torch.full((4, 4), broken), torch.ones(4, 4)])
    assert importance(maps, torch.ones(2, 4, 4)).tolist() == [0, 1]


def test_half_precision_is_widened() -> None:
    maps = (torch.rand(2, 8, 8) * 1e3).half()  # squares beyond the range of float16
    weight = calibrated_weight(maps, maps, torch.rand(2, 8, 8) < 0.5)
    assert weight.dtype == torch.float32
    assert weight.isfinite().all()


def test_refuses_bad_input() -> None:
    maps, mask = torch.rand(2, 4, 4), torch.ones(2, 4, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask must have the saliency's shape \(2, 4, 4\), got \(2, 4, 5\)"):
        calibrated_weight(maps, maps, torch.ones(2, 4, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="norm must be > 0, got 0"):
        calibrated_weight(maps, maps, mask, norm=0)
    with pytest.raises(ValueError, match=r"visible must lie in \[0, 1\], got 3 to 3"):
        importance(maps, torch.full((2, 4, 4), 3.0))
    with pytest.raises(TypeError, match="saliency must be floating point"):
        importance(maps.long(), mask)
