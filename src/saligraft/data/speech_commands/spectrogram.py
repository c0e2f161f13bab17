"""Mel spectrograms of clips, as grey images of 32 filters by 32 frames, and their random changes (Appendix A).

A clip is padded or cropped to one second, changed in time, transformed, changed in frequency, and filtered.
Shapes: n samples of a wave, T frames, F = 1025 frequencies, M mel filters. Frames come first in a spectrum, as
`torch.stft` lays them out in memory.
"""

import math
import random
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft.checks import not_negative, positive, probability, whole_number
from saligraft.data.speech_commands.files import RATE, SECOND

WINDOW = 2048  # samples of a frame
HOP = 512  # samples from frame to frame
FRAMES = 1 + SECOND // HOP  # 32
FILTERS = 32
RANGE = 80.0  # dB; cells this far below the loudest count as silence
FAINTEST = 1e-10  # power; a clip below it counts as silent
_TINY = torch.finfo(torch.float32).tiny
# Slaney's scale (Auditory Toolbox, 1998): linear to 1000 Hz, 15 mels; then 27 mels to every factor of 6.4
_HERTZ_PER_MEL, _BEND, _MELS_PER_FACTOR, _FACTOR = 200 / 3, 15.0, 27.0, 6.4


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes of one clip; the defaults change nothing.

    Args:
        amplitude: Factor of the wave.
        duration: Factor of the wave's length, and so 1 / factor of its pitch.
        stretch: Factor of the spectrogram's speed; pitch stays.
        shift: Frames by which the clip is moved earlier.
    """

    amplitude: float = 1.0
    duration: float = 1.0
    stretch: float = 1.0
    shift: int = 0


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Strength of the augmentation, for which the paper gives no numbers.

    The defaults are those of github.com/tugstugi/pytorch-speech-commands, which has the paper's steps, order and size.

    Args:
        probability: Probability of each change, independently.
        least_amplitude: Smallest factor of the wave.
        most_amplitude: Largest factor of the wave.
        speed: The wave lasts 1 - speed to 1 + speed times as long.
        stretch: The spectrogram is played at 1 - stretch to 1 + stretch times its speed.
        shift: Largest number of frames to either side.
        noise: Largest share of background noise.
    """

    probability: float = 0.5
    least_amplitude: float = 0.7
    most_amplitude: float = 1.1
    speed: float = 0.2
    stretch: float = 0.2
    shift: int = 8
    noise: float = 0.45

    def __post_init__(self) -> None:
        probability("probability", self.probability)
        positive("least_amplitude", self.least_amplitude)
        if not self.least_amplitude <= self.most_amplitude <= 1000:
            raise ValueError(f"most_amplitude must be in [{self.least_amplitude}, 1000], got {self.most_amplitude}")
        for name, value in (("speed", self.speed), ("stretch", self.stretch)):
            not_negative(name, value)
            if value >= 1:
                raise ValueError(f"{name} must be < 1, got {value}")
        whole_number("shift", self.shift, least=0, most=FRAMES - 1)
        probability("noise", self.noise)

    def draw(self, draws: random.Random) -> Changes:
        """Draw the changes of one clip.

        Args:
            draws: Random number generator.
        """
        return Changes(
            amplitude=self._draw(draws, self.least_amplitude, self.most_amplitude, otherwise=1.0),
            duration=self._draw(draws, 1 - self.speed, 1 + self.speed, otherwise=1.0),
            stretch=self._draw(draws, 1 - self.stretch, 1 + self.stretch, otherwise=1.0),
            shift=round(self._draw(draws, -self.shift - 0.5, self.shift + 0.5, otherwise=0.0)),
        )

    def draw_noise(self, draws: random.Random) -> float:
        """Draw the share of background noise of one clip.

        Args:
            draws: Random number generator.
        """
        return self._draw(draws, 0.0, self.noise, otherwise=0.0)

    def _draw(self, draws: random.Random, least: float, most: float, otherwise: float) -> float:
        """Always draw both numbers, so that `probability` does not affect other draws."""
        is_changed, value = draws.random() < self.probability, draws.uniform(least, most)
        return value if is_changed else otherwise


def changed_spectrum(samples: Tensor, changes: Changes) -> Tensor:
    """Transform one second of a wave, changed first in time, then in frequency.

    Args:
        samples: The wave (n).
        changes: The changes to apply.

    Returns:
        Complex spectrum (T,F).
    """
    second = slow(samples * changes.amplitude, changes.duration)[:SECOND]
    second = F.pad(second, (0, SECOND - len(second)))
    return place(stretch(spectrum(second), changes.stretch), changes.shift)


def slow(samples: Tensor, factor: float) -> Tensor:
    """Play a wave longer, and so lower in pitch; linear between samples.

    Args:
        samples: The wave (n).
        factor: Factor of its length.
    """
    length = round(len(samples) * factor)
    if length in (0, len(samples)):
        return samples
    return F.interpolate(samples[None, None], size=length, mode="linear")[0, 0]


def spectrum(samples: Tensor) -> Tensor:
    """Return the complex spectrum (T,F) of a wave: Hann window, frames centred, the wave mirrored at its ends.

    Args:
        samples: The wave (n).
    """
    window = _hann_window()
    return torch.stft(samples, WINDOW, HOP, window=window, center=True, pad_mode="reflect", return_complex=True).T


def power(spectra: Tensor) -> Tensor:
    """Return the squared magnitude, several times as fast as `spectra.abs() ** 2`.

    Args:
        spectra: Complex, of any shape.
    """
    return spectra.real.square() + spectra.imag.square()


def stretch(spectra: Tensor, rate: float) -> Tensor:
    """Play a spectrum faster at the same pitch: a phase vocoder.

    Magnitudes are interpolated between frames. The phase advance from each new frame to the next is that between the
    two surrounding old frames; the expected advance of each frequency, which vocoders subtract and add again, cancels.

    Args:
        spectra: (T,F).
        rate: Factor of its speed.

    Returns:
        (ceil(T / rate), F).
    """
    if rate == 1.0:
        return spectra
    at = torch.arange(0, len(spectra), rate, dtype=torch.float64)
    before = at.long()
    padded = F.pad(spectra, (0, 0, 0, 1))
    magnitude = power(padded).sqrt()
    turns = (padded[1:] * padded[:-1].conj())[before[:-1]]
    turns = torch.cat([padded[:1], turns])
    # a frequency without power has no phase: 1 keeps later phases
    size = power(turns).sqrt()
    phases = torch.where(size > _TINY, turns / size.clamp(min=_TINY), 1).cumprod(0)
    return torch.lerp(magnitude[before], magnitude[before + 1], (at - before).float()[:, None]) * phases


def place(spectra: Tensor, shift: int, frames: int = FRAMES) -> Tensor:
    """Crop a spectrum; frames outside it are silent.

    Args:
        spectra: (T,F).
        shift: The first frame.
        frames: Number of frames.
    """
    part = spectra[max(0, shift) : max(0, shift + frames)]
    before = max(0, -shift)
    return F.pad(part, (0, 0, before, frames - before - len(part)))


@lru_cache(maxsize=1)
def _hann_window() -> Tensor:
    return torch.hann_window(WINDOW)


@lru_cache(maxsize=1)
def mel_filters() -> Tensor:
    """Return triangles (M,F) from 0 Hz to half the rate, evenly spaced in mel, each of area 1 over frequency in Hz."""
    last = _BEND + _MELS_PER_FACTOR * math.log(RATE / 2 / 1000, _FACTOR)
    mel = torch.linspace(0, 1, FILTERS + 2, dtype=torch.float64) * last
    corners = torch.where(mel < _BEND, mel * _HERTZ_PER_MEL, 1000 * _FACTOR ** ((mel - _BEND) / _MELS_PER_FACTOR))
    low, centre, high = (corners[start : start + FILTERS, None] for start in range(3))
    hertz = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    rising, falling = (hertz - low) / (centre - low), (high - hertz) / (high - centre)
    return (torch.minimum(rising, falling).clamp(min=0) * 2 / (high - low)).float()


def mel_image(spectra: Tensor) -> Tensor:
    """Return the grey image (1,M,T) uint8 of a spectrum; row 0 holds the lowest filter.

    255 is the loudest cell, 0 is at least 80 dB below it; one step is 0.31 dB. A silent clip is 0 everywhere.

    Args:
        spectra: Complex, (T,F).
    """
    loudness = mel_filters() @ power(spectra).T
    loudest = loudness.max()
    if loudest <= FAINTEST:
        return torch.zeros(1, *loudness.shape, dtype=torch.uint8)
    decibel = 10 * (loudness / loudest).clamp(min=10 ** (-RANGE / 10)).log10()
    return (255 * (1 + decibel / RANGE)).round().to(torch.uint8)[None]
