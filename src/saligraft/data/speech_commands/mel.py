"""Mel spectrograms as grey images: 32 mel filters by 32 frames, 80 dB below the loudest cell in 256 steps.

Shapes: M mel filters, F frequencies, T frames.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from saligraft.data.speech_commands.spectra import WINDOW, power
from saligraft.data.speech_commands.waves import RATE

FILTERS = 32
RANGE = 80.0  # dB: what is fainter than this below the loudest cell counts as silence
FAINTEST = 1e-10  # power; a clip that stays below it is silent throughout
# Slaney's scale (Auditory Toolbox, 1998): linear to 1000 Hz, 15 mels; then 27 mels to every factor of 6.4
_HERTZ_PER_MEL, _BEND, _MELS_PER_FACTOR, _FACTOR = 200 / 3, 15.0, 27.0, 6.4


def mel_to_hertz(mel: Tensor) -> Tensor:
    """Frequency of a place on Slaney's mel scale."""
    return torch.where(mel < _BEND, mel * _HERTZ_PER_MEL, 1000 * _FACTOR ** ((mel - _BEND) / _MELS_PER_FACTOR))


@lru_cache(maxsize=1)
def mel_filters() -> Tensor:
    """Triangles (M,F) from 0 Hz to half the rate, evenly spaced in mel, each of area 1 over frequency in Hz."""
    last = _BEND + _MELS_PER_FACTOR * math.log(RATE / 2 / 1000, _FACTOR)
    corners = mel_to_hertz(torch.linspace(0, 1, FILTERS + 2, dtype=torch.float64) * last)
    low, centre, high = (corners[start : start + FILTERS, None] for start in range(3))
    hertz = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    rising, falling = (hertz - low) / (centre - low), (high - hertz) / (high - centre)
    return (torch.minimum(rising, falling).clamp(min=0) * 2 / (high - low)).float()


def mel_image(spectra: Tensor) -> Tensor:
    """Grey image (1,M,T) uint8 of a complex spectrum (T,F); row 0 holds the lowest filter.

    255 is the loudest cell, 0 lies 80 dB and more below it; one step is 0.31 dB. A silent clip is 0 throughout.
    """
    loudness = mel_filters() @ power(spectra).T
    loudest = loudness.max()
    if loudest <= FAINTEST:
        return torch.zeros(1, *loudness.shape, dtype=torch.uint8)
    decibel = 10 * (loudness / loudest).clamp(min=10 ** (-RANGE / 10)).log10()
    return (255 * (1 + decibel / RANGE)).round().to(torch.uint8)[None]
