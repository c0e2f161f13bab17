"""Corruptions: deterministic per sample, stronger with severity, and each as a hand-written reference says."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from saligraft.data import load
from saligraft.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    images: Tensor = load("shapes", split="test", per_class=2).images  # type: ignore[attr-defined]
    return images.float() / 255


def test_there_are_at_least_ten_at_five_severities() -> None:
    assert len(CORRUPTIONS) >= 10
    assert SEVERITIES == (1, 2, 3, 4, 5)
    assert all(len(strengths) == 5 for _, strengths in CORRUPTIONS.values())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_sample_is_corrupted_alike_in_any_batch(pictures: Tensor, name: str) -> None:
    before, index = pictures.clone(), torch.arange(len(pictures)) + 100
    corrupted = corrupt(pictures, index, name, 3)
    assert torch.equal(pictures, before)
    assert 0 <= float(corrupted.min()) <= float(corrupted.max()) <= 1
    assert torch.equal(corrupt(pictures, index, name, 3), corrupted)
    shuffled = torch.tensor([7, 3])
    alone = corrupt(pictures[shuffled], index[shuffled], name, 3)
    torch.testing.assert_close(alone, corrupted[shuffled], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_severity_moves_images_further_away(pictures: Tensor, name: str) -> None:
    index = torch.arange(len(pictures))
    distances = [float((corrupt(pictures, index, name, s) - pictures).square().mean()) for s in SEVERITIES]
    assert distances == sorted(distances)
    assert distances[0] > 0


@pytest.mark.parametrize("name", ["gaussian-noise", "shot-noise", "impulse-noise", "motion-blur", "fog", "patches"])
def test_random_ones_differ_between_samples(name: str) -> None:
    ramp = torch.linspace(0.2, 0.8, 32).expand(2, 3, 32, 32)
    first, second = corrupt(ramp, torch.tensor([0, 1]), name, 4)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 20, 9), (2, 3, 17, 33)])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_any_size_and_channel_count(name: str, shape: tuple[int, ...], generator: torch.Generator) -> None:
    images = torch.rand(shape, generator=generator)
    for severity in (1, 5):
        corrupted = corrupt(images, torch.arange(shape[0]), name, severity)
        assert corrupted.shape == images.shape
        assert corrupted.isfinite().all()


def test_noise_has_the_stated_deviation() -> None:
    grey = torch.full((4, 3, 64, 64), 0.5)
    noise = corrupt(grey, torch.arange(4), "gaussian-noise", 2) - grey
    assert float(noise.std()) == pytest.approx(0.08, rel=0.03)
    assert abs(float(noise.mean())) < 0.002
    noise = corrupt(grey, torch.arange(4), "shot-noise", 3) - grey
    assert float(noise.std()) == pytest.approx(math.sqrt(0.5 / 25), rel=0.03)


def test_impulses_are_black_or_white_in_the_stated_share() -> None:
    grey = torch.full((4, 3, 64, 64), 0.5)
    noisy = corrupt(grey, torch.arange(4), "impulse-noise", 4)
    assert set(noisy.unique().tolist()) == {0.0, 0.5, 1.0}
    assert float((noisy == 0).float().mean()) == pytest.approx(0.06, rel=0.1)
    assert float((noisy == 1).float().mean()) == pytest.approx(0.06, rel=0.1)


def test_gaussian_blur_is_scipy_s(pictures: Tensor) -> None:
    blurred = corrupt(pictures[:2], torch.arange(2), "gaussian-blur", 4)
    sigma = 0.04 * 32
    expected = ndimage.gaussian_filter(
        pictures[:2].double().numpy(), (0, 0, sigma, sigma), mode="nearest", radius=(0, 0, 4, 4)
    )
    np.testing.assert_allclose(blurred.numpy(), expected, atol=1e-5)


def test_motion_blur_keeps_the_mean_and_blurs_in_one_direction() -> None:
    point = torch.zeros(1, 1, 33, 33)
    point[..., 16, 16] = 1
    for index in range(3):
        blurred = corrupt(point, torch.tensor([index]), "motion-blur", 4)[0, 0]
        assert float(blurred.sum()) == pytest.approx(1, abs=1e-4)
        rows, columns = torch.meshgrid(torch.arange(33.0) - 16, torch.arange(33.0) - 16, indexing="ij")
        moments = torch.stack(
            [(blurred * first * second).sum() for first in (rows, columns) for second in (rows, columns)]
        )
        across, along = torch.linalg.eigvalsh(moments.view(2, 2)).tolist()
        assert along == pytest.approx((0.2 * 33) ** 2 / 12, rel=0.25)  # of a uniform path
        assert across < 0.4


def test_simple_ones_equal_numpy(pictures: Tensor) -> None:
    index, pixels = torch.arange(len(pictures)), pictures.double().numpy()
    mean = pixels.mean(axis=(1, 2, 3), keepdims=True)
    grey = pixels.mean(axis=1, keepdims=True)
    blocks = pixels.reshape(len(pixels), 3, 16, 2, 16, 2).mean(axis=(3, 5)).repeat(2, axis=2).repeat(2, axis=3)
    expected = {
        ("brightness", 2): np.clip(pixels + 0.2, 0, 1),
        ("contrast", 2): np.clip(mean + 0.5 * (pixels - mean), 0, 1),
        ("saturation", 3): np.clip(grey + 0.3 * (pixels - grey), 0, 1),
        ("quantization", 5): np.round(pixels),
        ("pixelate", 1): blocks,
    }
    for case, reference in expected.items():
        np.testing.assert_allclose(corrupt(pictures, index, *case).numpy(), reference, atol=1e-6, err_msg=str(case))


def test_patches_are_grey_squares_of_a_quarter_side() -> None:
    white = torch.ones(3, 3, 32, 40)
    hidden = corrupt(white, torch.arange(3), "patches", 1) == 0.5
    assert hidden.flatten(1).sum(dim=1).tolist() == [3 * 64] * 3
    for mask in hidden[:, 0]:
        assert mask.any(dim=0).sum() == mask.any(dim=1).sum() == 8


def test_fog_brightens_dark_images_by_its_share() -> None:
    fog = corrupt(torch.zeros(200, 1, 16, 16), torch.arange(200), "fog", 5)
    assert float(fog.mean()) == pytest.approx(0.9 * 0.6, abs=0.02)


def test_wrong_names_and_severities_are_refused() -> None:
    image, index = torch.zeros(1, 3, 8, 8), torch.tensor([0])
    with pytest.raises(ValueError, match="snow"):
        corrupt(image, index, "snow", 1)
    for severity in (0, 6):
        with pytest.raises(ValueError, match=rf"severity must .*, got {severity}"):
            corrupt(image, index, "fog", severity)
