"""Draws stay in their ranges, and each change does what it says."""

import random
from typing import Any

import pytest
import torch
from tests.data.speech_commands.made import tone

from saligraft.data.speech_commands.augment import Augmentation, Changes, changed_spectrum
from saligraft.data.speech_commands.spectra import spectrum


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


def test_all_shifts_are_alike_probable() -> None:
    shifts = [changes.shift for changes in drawn(Augmentation(probability=1.0, shift=2), 5000)]
    assert sorted(set(shifts)) == [-2, -1, 0, 1, 2]
    assert all(abs(shifts.count(shift) - 1000) < 130 for shift in set(shifts))


def test_changes_are_drawn_apart() -> None:
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
        ({"shift": 32}, "shift must be < 32, the frames of a clip, got 32"),
        ({"noise": 2.0}, r"noise must be in \[0, 1\], got 2.0"),
    ],
)
def test_wrong_ranges_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Augmentation(**fields)
