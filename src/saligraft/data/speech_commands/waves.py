"""Waves: read from files, fitted to a length, played faster or slower.

Shapes: n samples of a wave, float32 in [-1, 1).
"""

import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

RATE = 16000  # samples a second, of all files of the set
SECOND = RATE  # samples of a clip once it is fitted
_FORM = (1, 2, RATE)  # channels, bytes a sample, rate


def read_wave(path: Path, *, start: int = 0, count: int = SECOND) -> Tensor:
    """Up to `count` samples from `start` on, (n); a file that is not whole 16-bit mono at 16 kHz is an error."""
    with _opened(path) as file:
        expected = max(0, min(count, file.getnframes() - start))
        file.setpos(min(start, file.getnframes()))
        stored = file.readframes(expected)
    if len(stored) != 2 * expected:
        raise ValueError(f"{path} is truncated: {2 * expected} bytes expected at sample {start}, got {len(stored)}")
    # bytearray, since torch warns of buffers that cannot be written
    return torch.frombuffer(bytearray(stored), dtype=torch.int16).float() / 2**15 if stored else torch.zeros(0)


def wave_length(path: Path) -> int:
    """The number of samples of a file, the last of which must be there."""
    with _opened(path) as file:
        frames = file.getnframes()
    read_wave(path, start=frames - 1, count=1)
    return frames


def fitted(samples: Tensor, count: int = SECOND) -> Tensor:
    """The first `count` samples, followed by silence where there are fewer."""
    return F.pad(samples[:count], (0, max(0, count - len(samples))))


def slowed(samples: Tensor, factor: float) -> Tensor:
    """Play a wave (n) `factor` times as long, and so lower in pitch; linear between samples."""
    length = round(len(samples) * factor)
    if length in (0, len(samples)):
        return samples
    return F.interpolate(samples[None, None], size=length, mode="linear")[0, 0]


@contextmanager
def _opened(path: Path) -> Iterator[wave.Wave_read]:
    """A file of the right form that holds something."""
    try:
        with wave.open(str(path), "rb") as file:
            form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            if form != _FORM:
                channels, width, rate = form
                raise ValueError(
                    f"{path} must be 16-bit mono PCM at {RATE} Hz, got {8 * width} bits, {channels} channels, {rate} Hz"
                )
            if not file.getnframes():
                raise ValueError(f"{path} holds no samples")
            yield file
    except (wave.Error, EOFError, OSError, RuntimeError) as error:  # RuntimeError: a chunk longer than the file
        raise ValueError(
            f"{path} cannot be read as a wav file: {str(error) or 'it is cut off, or its sizes are wrong'}"
        ) from error
