"""Which clip belongs to which split."""

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saligraft.data.speech_commands.splits import hashed_split, read_lists, split_clips

NAMES = st.text("0123456789abcdef", min_size=1, max_size=8)


@given(speaker=NAMES, number=st.integers(0, 9))
def test_the_hash_rule_by_whole_numbers(speaker: str, number: int) -> None:
    """Independent of the float formula: h · 100 / (2²⁷ − 1) < 10 in whole numbers, h the hash's last 27 bits."""
    last = int.from_bytes(hashlib.sha1(speaker.encode()).digest()[-4:], "big") & (2**27 - 1)
    expected = "validation" if 10 * last < 2**27 - 1 else "test" if 5 * last < 2**27 - 1 else "train"
    assert hashed_split(f"bed/{speaker}_nohash_{number}.wav") == expected


@pytest.mark.parametrize(
    ("clip", "split"),
    [  # lines of the official lists of v0.01
        ("bed/026290a7_nohash_0.wav", "validation"),
        ("bed/060cd039_nohash_1.wav", "validation"),
        ("bed/0c40e715_nohash_0.wav", "test"),
        ("bed/0ea0e2f4_nohash_1.wav", "test"),
        ("bed/62581901_nohash_0.wav", "train"),  # in neither
    ],
)
def test_the_hash_rule_gives_the_official_lists(clip: str, split: str) -> None:
    assert hashed_split(clip) == split


def test_a_tenth_of_all_speakers_each() -> None:
    counts = Counter(hashed_split(f"{speaker:08x}_nohash_0.wav") for speaker in range(5000))
    assert abs(counts["validation"] - 500) < 90
    assert abs(counts["test"] - 500) < 90


def test_lists_decide_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "validation_list.txt").write_text("bed/x_nohash_0.wav\n")
    (tmp_path / "testing_list.txt").write_text("bed/y_nohash_0.wav\r\n")
    lists = read_lists(tmp_path)
    clips = [f"bed/{name}_nohash_0.wav" for name in "xyz"]
    found = [split_clips(clips, lists, split) for split in ("validation", "test", "train")]
    assert found == [[clip] for clip in clips]


def test_the_hash_decides_without_lists(tmp_path: Path) -> None:
    clips = [f"bed/{number}_nohash_0.wav" for number in range(60)]
    parts = {split: split_clips(clips, read_lists(tmp_path), split) for split in ("train", "validation", "test")}
    assert sorted(clip for part in parts.values() for clip in part) == sorted(clips)
    assert all(hashed_split(clip) == split for split, part in parts.items() for clip in part)
    assert all(parts.values())


@pytest.mark.parametrize(
    ("validation", "testing", "words"),
    [
        ("bed/x.wav\n", None, "testing_list.txt is missing"),
        ("bed/x.wav\n", "bed/x.wav\n", r"testing_list.txt, line 1: bed/x.wav stands in validation_list.txt too"),
        ("bed/x.wav\nx.wav\n", "", r"validation_list.txt, line 2, must read word/file.wav, got 'x.wav'"),
        ("bed/x.wa", "", r"validation_list.txt, line 1, must read word/file.wav, got 'bed/x.wa'"),
    ],
)
def test_damaged_lists_are_named(tmp_path: Path, validation: str, testing: str | None, words: str) -> None:
    (tmp_path / "validation_list.txt").write_text(validation)
    if testing is not None:
        (tmp_path / "testing_list.txt").write_text(testing)
    with pytest.raises(ValueError, match=words):
        read_lists(tmp_path)


def test_a_list_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "validation_list.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"validation_list.txt is no text"):
        read_lists(tmp_path)
