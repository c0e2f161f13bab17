"""Files in the form of Speech Commands, made up."""

import math
import wave
from pathlib import Path

import torch
from torch import Tensor

WORDS = (  # noqa: SIM905  (thirty strings in quotes are harder to read)
    "bed bird cat dog down eight five four go happy house left marvin nine no off on one right seven sheila six stop "
    "three tree two up wow yes zero"
).split()
SPEAKERS = ("a1", "b2", "c3")  # one for each split, by the lists that are written


def tone(hertz: float, samples: int = 16000, amplitude: float = 0.5) -> Tensor:
    return amplitude * torch.sin(2 * math.pi * hertz / 16000 * torch.arange(samples, dtype=torch.float64)).float()


def write_wave(path: Path, samples: Tensor, *, channels: int = 1, width: int = 2, rate: int = 16000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes((samples * 2**15).round().to(torch.int16).numpy().tobytes())
    return path


def write_set(root: Path, words: list[str] = WORDS) -> Path:
    """Three clips of every word, a tone of its own each, one per split; two recordings of noise."""
    for number, word in enumerate(words):
        for speaker, samples in zip(SPEAKERS, (16000, 15000, 17000), strict=True):
            write_wave(root / word / f"{speaker}_nohash_0.wav", tone(200 + 100 * number, samples))
    generator = torch.Generator().manual_seed(0)
    for name, seconds in (("hiss", 2), ("hum", 1)):
        noise = torch.rand(16000 * seconds, generator=generator) - 0.5
        write_wave(root / "_background_noise_" / f"{name}.wav", noise)
    for name, speaker in (("validation_list.txt", SPEAKERS[1]), ("testing_list.txt", SPEAKERS[2])):
        (root / name).write_text("".join(f"{word}/{speaker}_nohash_0.wav\n" for word in words))
    return root
