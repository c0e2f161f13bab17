"""Short-time spectra: of a wave, stretched in time without a change of pitch, and moved in time.

Shapes: n samples, T frames, F = 1025 frequencies. Frames come first, as `torch.stft` lays them out in memory.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft.data.speech_commands.waves import SECOND

WINDOW = 2048  # samples of a frame
HOP = 512  # samples from frame to frame
FRAMES = 1 + SECOND // HOP  # 32
_TINY = torch.finfo(torch.float32).tiny


def spectrum(samples: Tensor) -> Tensor:
    """Complex spectrum (T,F) of a wave (n): Hann window, frames centred, the wave mirrored at its ends."""
    return torch.stft(samples, WINDOW, HOP, window=_window(), center=True, pad_mode="reflect", return_complex=True).T


def power(spectra: Tensor) -> Tensor:
    """Squared magnitude, several times as fast as `spectra.abs() ** 2`."""
    return spectra.real.square() + spectra.imag.square()


def stretched(spectra: Tensor, rate: float) -> Tensor:
    """Play a spectrum (T,F) `rate` times as fast at the same pitch, (ceil(T / rate), F): a phase vocoder.

    Magnitudes are interpolated between frames. From each new frame to the next a phase turns as it does between the
    two old frames about it; the expected turn of each frequency, which vocoders take off and add again, drops out.
    """
    if rate == 1.0:
        return spectra
    at = torch.arange(0, len(spectra), rate, dtype=torch.float64)
    before = at.long()
    padded = F.pad(spectra, (0, 0, 0, 1))
    magnitude = power(padded).sqrt()
    turns = (padded[1:] * padded[:-1].conj())[before[:-1]]
    turns = torch.cat([padded[:1], turns])
    # a frequency without power has no phase: 1 keeps those after it
    size = power(turns).sqrt()
    phases = torch.where(size > _TINY, turns / size.clamp(min=_TINY), 1).cumprod(0)
    return torch.lerp(magnitude[before], magnitude[before + 1], (at - before).float()[:, None]) * phases


def placed(spectra: Tensor, shift: int, frames: int = FRAMES) -> Tensor:
    """The `frames` frames from number `shift` on; those that do not exist are silence."""
    part = spectra[max(0, shift) : max(0, shift + frames)]
    before = max(0, -shift)
    return F.pad(part, (0, 0, before, frames - before - len(part)))


@lru_cache(maxsize=1)
def _window() -> Tensor:
    return torch.hann_window(WINDOW)
