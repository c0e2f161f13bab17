"""The mel matrix and the grey image against slow NumPy."""

import numpy as np
import pytest
import torch
from tests.data.speech_commands.made import tone

from saligraft.data.speech_commands.mel import mel_filters, mel_image
from saligraft.data.speech_commands.spectra import power, spectrum


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


def test_loudness_of_the_whole_clip_does_not_matter() -> None:
    quiet, loud = (mel_image(spectrum(tone(500, amplitude=amplitude))) for amplitude in (0.01, 0.64))
    assert (quiet.int() - loud.int()).abs().max() <= 1


def test_rows_rise_with_frequency() -> None:
    rows = [int(mel_image(spectrum(tone(hertz)))[0, :, 16].argmax()) for hertz in (100, 400, 1500, 6000)]
    assert rows == sorted(set(rows))


def test_silence_is_black() -> None:
    assert not mel_image(spectrum(torch.zeros(16000))).any()
