"""Waves are read whole or not at all."""

import random
from pathlib import Path

import pytest
import torch
from tests.data.speech_commands.made import tone, write_wave

from saligraft.data.speech_commands.waves import fitted, read_wave, slowed, wave_length


def loudest_hertz(samples: torch.Tensor) -> float:
    return float(torch.fft.rfft(samples).abs().argmax()) * 16000 / len(samples)


def test_samples_come_back_as_written(tmp_path: Path) -> None:
    samples = torch.tensor([-32768, -1, 0, 1, 32767]) / 2**15
    path = write_wave(tmp_path / "a.wav", samples)
    assert torch.equal(read_wave(path), samples)
    assert wave_length(path) == 5
    assert torch.equal(read_wave(path, start=1, count=3), samples[1:4])
    assert torch.equal(read_wave(path, start=4, count=3), samples[4:])
    assert read_wave(path, start=9).shape == (0,)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"channels": 2}, "16 bits, 2 channels, 16000 Hz"),
        ({"width": 1}, "8 bits, 1 channels, 16000 Hz"),
        ({"rate": 8000}, "16 bits, 1 channels, 8000 Hz"),
    ],
)
def test_another_form_is_refused(tmp_path: Path, form: dict[str, int], words: str) -> None:
    path = write_wave(tmp_path / "a.wav", tone(440), **form)
    with pytest.raises(ValueError, match=rf"a.wav must be 16-bit mono PCM at 16000 Hz, got {words}"):
        read_wave(path)


@pytest.mark.parametrize("read", [read_wave, wave_length])
@pytest.mark.parametrize("size", [0, 3, 20, 40, 44, 45, 1000, 32043])
def test_a_truncated_file_is_named(tmp_path: Path, read: object, size: int) -> None:
    path = write_wave(tmp_path / "a.wav", tone(440))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"a\.wav (is truncated|cannot be read as a wav file): \S"):
        read(path)  # type: ignore[operator]


def test_other_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with pytest.raises(ValueError, match=r"a\.wav cannot be read as a wav file: .*No such file"):
        read_wave(path)
    path.write_bytes(b"<html>not found</html>" * 9)
    with pytest.raises(ValueError, match=r"a\.wav cannot be read as a wav file: file does not start with RIFF id"):
        read_wave(path)
    write_wave(path, torch.zeros(0))
    with pytest.raises(ValueError, match=r"a\.wav holds no samples"):
        read_wave(path)
    path.write_bytes(write_wave(path, tone(440)).read_bytes().replace(b"\x01\x00\x01\x00", b"\x03\x00\x01\x00", 1))
    with pytest.raises(ValueError, match=r"a\.wav cannot be read as a wav file: unknown format: 3"):
        read_wave(path)


def test_lying_sizes_are_named(tmp_path: Path) -> None:
    """Sizes of the file, its format and its samples, and bytes of the header, replaced at random."""
    draws = random.Random(0)
    path = write_wave(tmp_path / "a.wav", tone(440, samples=100))
    whole = path.read_bytes()
    refused = 0
    for _ in range(500):
        mutant = bytearray(whole)
        mutant[36:36] = draws.choice([b"", b"LIST\x04\0\0\0abcd", b"LIST\xff\xff\xff\xffabcd"])
        for place in draws.sample([4, 16, 40, 52], 2):
            size = draws.choice([0, 1, 7, len(whole), 2**31, 2**32 - 1, draws.getrandbits(32)])
            mutant[place : place + 4] = size.to_bytes(4, "little")
        path.write_bytes(mutant)
        for read in (read_wave, wave_length):
            try:
                read(path)
            except ValueError as error:
                refused += 1
                assert str(error).startswith(str(path))  # noqa: PT017  (files that happen to be whole raise nothing)
    assert refused > 500


@pytest.mark.parametrize("count", [0, 7, 16000, 16001])
def test_clips_are_fitted_to_a_second(count: int) -> None:
    samples = torch.rand(count) + 1
    second = fitted(samples)
    kept = min(count, 16000)
    assert second.shape == (16000,)
    assert torch.equal(second[:kept], samples[:kept])
    assert not second[kept:].any()


@pytest.mark.parametrize("factor", [0.8, 0.97, 1.2])
def test_slower_is_longer_and_lower(factor: float) -> None:
    played = slowed(tone(1000), factor)
    assert len(played) == round(16000 * factor)
    assert loudest_hertz(played) == pytest.approx(1000 / factor, abs=2)


def test_slowing_a_ramp_keeps_it_a_ramp() -> None:
    played = slowed(torch.arange(100.0), 1.1)
    assert played.diff()[2:-2].sub(1 / 1.1).abs().max() < 1e-4


def test_speed_one_and_nothing_stay_as_they_are() -> None:
    assert torch.equal(slowed(tone(300), 1.0), tone(300))
    assert slowed(torch.zeros(0), 1.2).shape == (0,)
