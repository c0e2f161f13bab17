"""Spectra and mel images against slow NumPy, and random changes of clips."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.speech_commands.small_set import tone
from torch import Tensor

from saligraft.data.speech_commands.spectrogram import (
    Augmentation,
    Changes,
    changed_spectrum,
    mel_filters,
    mel_image,
    place,
    power,
    slow,
    spectrum,
    stretch,
)


def voice(seed: int = 0) -> Tensor:
    """Something with many frequencies that come and go."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16000, generator=generator) * torch.linspace(0, 3 * math.pi, 16000).sin().abs() * 0.1


def vocoded(spectra: np.ndarray, rate: float) -> np.ndarray:
    """The phase vocoder as textbooks have it, frame by frame, with the expected advance of each frequency."""
    frames, frequencies = spectra.shape
    padded = np.concatenate([spectra, np.zeros((2, frequencies))])
    expected = np.linspace(0, np.pi * 512, frequencies)
    phase, out = np.angle(padded[0]), []
    for at in np.arange(0, frames, rate):
        first, second = padded[int(at)], padded[int(at) + 1]
        share = at - int(at)
        out.append(((1 - share) * abs(first) + share * abs(second)) * np.exp(1j * phase))
        surplus = np.angle(second) - np.angle(first) - expected
        phase = phase + expected + surplus - 2 * np.pi * np.round(surplus / (2 * np.pi))
    return np.array(out)


def test_spectrum_is_that_of_windowed_frames() -> None:
    samples = voice()
    mirrored = np.pad(samples.numpy().astype(np.float64), 1024, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(2048) / 2048)
    expected = np.array([np.fft.rfft(window * mirrored[start : start + 2048]) for start in range(0, 16001, 512)])
    found = spectrum(samples)
    assert tuple(found.shape) == (32, 1025)
    assert np.abs(found.numpy() - expected).max() < 1e-4
    assert torch.allclose(power(found), found.abs() ** 2)


@pytest.mark.parametrize("rate", [0.8, 0.93, 1.0, 1.1, 1.2])
def test_stretching_is_the_textbooks_phase_vocoder(rate: float) -> None:
    spectra = spectrum(voice())
    found = stretch(spectra, rate)
    expected = vocoded(spectra.numpy().astype(np.complex128), rate)
    assert found.shape == expected.shape
    assert np.abs(found.numpy() - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("rate", [0.8, 1.2])
def test_a_stretched_tone_keeps_its_frequency_and_changes_its_length(rate: float) -> None:
    spectra = stretch(spectrum(tone(1000)), rate)
    assert len(spectra) == math.ceil(32 / rate)
    samples = torch.istft(spectra.T.contiguous(), 2048, 512, window=torch.hann_window(2048))
    assert len(samples) == 512 * (len(spectra) - 1)
    middle = samples[2048:-2048]
    hertz = float(torch.fft.rfft(middle).abs().argmax()) * 16000 / len(middle)
    assert hertz == pytest.approx(1000, abs=3)
    levels = middle.unfold(0, 512, 512).square().mean(1).sqrt()
    assert levels.max() < 1.02 * levels.min(), "no beats"
    assert torch.allclose(spectra[3:-3, 128].abs(), spectrum(tone(1000))[16, 128].abs(), rtol=1e-3)


def test_silence_within_a_clip_is_no_nan() -> None:
    samples = voice()
    samples[3000:9000] = 0
    assert stretch(spectrum(samples), 0.9).isfinite().all()
    assert not stretch(spectrum(torch.zeros(16000)), 1.1).any()


@pytest.mark.parametrize("shift", [-8, -1, 0, 3, 31])
@pytest.mark.parametrize("frames", [26, 32, 40])
def test_moving_in_time_takes_frames_from_shift_on(shift: int, frames: int) -> None:
    spectra = torch.arange(1, frames + 1)[:, None] * torch.ones(1, 2)
    expected = [number + 1 if 0 <= number < frames else 0 for number in range(shift, shift + 32)]
    assert place(spectra.to(torch.complex64), shift).real[:, 0].tolist() == expected


def hertz_to_mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * np.log(hertz / 1000) / np.log(6.4)


def slaney_matrix() -> np.ndarray:
    """Triangle by triangle and bin by bin, by the mel of each bin's corner frequencies found by bisection."""
    corners = []
    for mel in np.linspace(0, hertz_to_mel(8000), 34):
        low, high = 0.0, 8000.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if hertz_to_mel(middle) < mel else (low, middle)
        corners.append((low + high) / 2)
    matrix = np.zeros((32, 1025))
    for row, (low, centre, high) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
        for column in range(1025):
            hertz = column * 16000 / 2048
            if low < hertz <= centre:
                matrix[row, column] = (hertz - low) / (centre - low) * 2 / (high - low)
            elif centre < hertz < high:
                matrix[row, column] = (high - hertz) / (high - centre) * 2 / (high - low)
    return matrix


def test_the_matrix_is_slaneys() -> None:
    assert np.abs(mel_filters().numpy() - slaney_matrix()).max() < 1e-7
    assert (mel_filters() > 0).any(1).all(), "every filter covers a frequency"


def test_each_triangle_has_area_one() -> None:
    wide = mel_filters()[16:].double().sum(1) * 16000 / 2048  # narrow ones are sampled too coarsely
    assert wide == pytest.approx(1, abs=0.01)


def test_the_image_is_the_decibel_below_the_loudest_cell() -> None:
    spectra = spectrum(tone(700) * torch.linspace(0, 1, 16000) ** 4 + 1e-3 * torch.rand(16000))
    loudness = slaney_matrix() @ power(spectra).double().numpy().T
    decibel = np.maximum(10 * np.log10(loudness / loudness.max()), -80)
    image = mel_image(spectra)
    assert image.dtype == torch.uint8
    assert tuple(image.shape) == (1, 32, 32)
    assert np.abs(image[0].numpy() / 255 * 80 - 80 - decibel).max() <= 80 / 255 / 2 + 1e-3
    assert int(image.max()) == 255


def test_overall_loudness_does_not_matter() -> None:
    quiet, loud = (mel_image(spectrum(tone(500, amplitude=amplitude))) for amplitude in (0.01, 0.64))
    assert (quiet.int() - loud.int()).abs().max() <= 1


def test_rows_rise_with_frequency() -> None:
    rows = [int(mel_image(spectrum(tone(hertz)))[0, :, 16].argmax()) for hertz in (100, 400, 1500, 6000)]
    assert rows == sorted(set(rows))


def test_silence_is_black() -> None:
    assert not mel_image(spectrum(torch.zeros(16000))).any()


def drawn(augmentation: Augmentation, count: int = 2000) -> list[Changes]:
    draws = random.Random(0)
    return [augmentation.draw(draws) for _ in range(count)]


@pytest.mark.parametrize(
    ("field", "still", "least", "most"),
    [("amplitude", 1.0, 0.7, 1.1), ("duration", 1.0, 0.8, 1.2), ("stretch", 1.0, 0.8, 1.2), ("shift", 0, -8, 8)],
)
def test_half_of_all_clips_are_changed_within_the_range(field: str, still: float, least: float, most: float) -> None:
    values = [getattr(changes, field) for changes in drawn(Augmentation())]
    assert least <= min(values) <= least + 0.01
    assert most - 0.01 <= max(values) <= most
    expected = 1000 * (1 + (1 / 17 if field == "shift" else 0))  # a drawn shift may be 0
    assert abs(values.count(still) - expected) < 100


def test_all_shifts_are_equally_likely() -> None:
    shifts = [changes.shift for changes in drawn(Augmentation(probability=1.0, shift=2), 5000)]
    assert sorted(set(shifts)) == [-2, -1, 0, 1, 2]
    assert all(abs(shifts.count(shift) - 1000) < 130 for shift in set(shifts))


def test_changes_are_drawn_independently() -> None:
    changes = drawn(Augmentation())
    both = sum(each.amplitude != 1 and each.stretch != 1 for each in changes)
    assert abs(both - 500) < 90


def test_noise_takes_up_to_its_share() -> None:
    draws = random.Random(0)
    shares = [Augmentation().draw_noise(draws) for _ in range(2000)]
    assert min(shares) == 0
    assert 0.44 < max(shares) <= 0.45
    assert abs(shares.count(0.0) - 1000) < 100


def test_probability_zero_changes_nothing() -> None:
    assert set(drawn(Augmentation(probability=0.0), 50)) == {Changes()}


def test_no_change_is_the_clips_own_spectrum() -> None:
    assert torch.equal(changed_spectrum(tone(440), Changes()), spectrum(tone(440)))


def test_each_change_does_what_it_says() -> None:
    samples = tone(1000, 8000)
    plain = changed_spectrum(samples, Changes()).abs()
    louder = changed_spectrum(samples, Changes(amplitude=1.1)).abs()
    assert torch.allclose(louder, 1.1 * plain, atol=1e-3)
    lower = changed_spectrum(samples, Changes(duration=1.25)).abs()
    assert int(plain[8].argmax()) == 128
    assert int(lower[8].argmax()) == round(128 / 1.25)
    faster = changed_spectrum(samples, Changes(stretch=1.25)).abs()
    assert int(faster[8].argmax()) == 128
    sounding = [int((spectra.amax(1) > 50).sum()) for spectra in (plain, lower, faster)]
    assert sounding[1] > sounding[0] > sounding[2]
    moved = changed_spectrum(samples, Changes(shift=-5)).abs()
    assert torch.equal(moved[5:], plain[:-5])
    assert not moved[:5].any()


def test_a_short_and_a_long_clip_give_32_frames() -> None:
    for count in (1, 9000, 16000, 40000):
        for changes in (Changes(duration=0.8, stretch=1.2, shift=8), Changes(duration=1.2, stretch=0.8, shift=-8)):
            assert tuple(changed_spectrum(tone(440, count), changes).shape) == (32, 1025)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"probability": 1.5}, r"probability must be in \[0, 1\], got 1.5"),
        ({"least_amplitude": 0.0}, "least_amplitude must be a finite number > 0, got 0.0"),
        ({"most_amplitude": 0.5}, r"most_amplitude must be in \[0.7, 1000\], got 0.5"),
        ({"most_amplitude": 1e308}, r"most_amplitude must be in \[0.7, 1000\], got 1e\+308"),
        ({"speed": -0.1}, "speed must be a finite number >= 0, got -0.1"),
        ({"stretch": 1.0}, "stretch must be < 1, got 1.0"),
        ({"shift": 32}, "shift must be <= 31, got 32"),
        ({"noise": 2.0}, r"noise must be in \[0, 1\], got 2.0"),
    ],
)
def test_wrong_ranges_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Augmentation(**fields)


def loudest_hertz(samples: torch.Tensor) -> float:
    return float(torch.fft.rfft(samples).abs().argmax()) * 16000 / len(samples)


@pytest.mark.parametrize("count", [1100, 16000, 16001])
def test_clips_are_fitted_to_a_second(count: int) -> None:
    samples = torch.rand(count) + 1
    second = torch.zeros(16000)
    second[: min(count, 16000)] = samples[:16000]
    assert torch.equal(changed_spectrum(samples, Changes()), spectrum(second))


@pytest.mark.parametrize("factor", [0.8, 0.97, 1.2])
def test_slower_is_longer_and_lower(factor: float) -> None:
    played = slow(tone(1000), factor)
    assert len(played) == round(16000 * factor)
    assert loudest_hertz(played) == pytest.approx(1000 / factor, abs=2)


def test_slowing_a_ramp_keeps_it_a_ramp() -> None:
    played = slow(torch.arange(100.0), 1.1)
    assert played.diff()[2:-2].sub(1 / 1.1).abs().max() < 1e-4


def test_speed_one_and_empty_clips_are_unchanged() -> None:
    assert torch.equal(slow(tone(300), 1.0), tone(300))
    assert slow(torch.zeros(0), 1.2).shape == (0,)
