"""Short-time spectra against slow NumPy, and what stretching must keep."""

import math

import numpy as np
import pytest
import torch
from tests.data.speech_commands.made import tone
from torch import Tensor

from saligraft.data.speech_commands.spectra import placed, power, spectrum, stretched


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
    found = stretched(spectra, rate)
    expected = vocoded(spectra.numpy().astype(np.complex128), rate)
    assert found.shape == expected.shape
    assert np.abs(found.numpy() - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("rate", [0.8, 1.2])
def test_a_stretched_tone_keeps_its_frequency_and_changes_its_length(rate: float) -> None:
    spectra = stretched(spectrum(tone(1000)), rate)
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
    assert stretched(spectrum(samples), 0.9).isfinite().all()
    assert not stretched(spectrum(torch.zeros(16000)), 1.1).any()


@pytest.mark.parametrize("shift", [-8, -1, 0, 3, 31])
@pytest.mark.parametrize("frames", [26, 32, 40])
def test_moving_in_time_takes_frames_from_shift_on(shift: int, frames: int) -> None:
    spectra = torch.arange(1, frames + 1)[:, None] * torch.ones(1, 2)
    expected = [number + 1 if 0 <= number < frames else 0 for number in range(shift, shift + 32)]
    assert placed(spectra.to(torch.complex64), shift).real[:, 0].tolist() == expected
