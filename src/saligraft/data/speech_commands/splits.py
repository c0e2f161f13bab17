"""Which clip belongs to which split: the official lists, or the hash of the speaker that they were made with."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

SPLITS = ("train", "validation", "test")
LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}
_HASHES = 2**27  # the README's MAX_NUM_WAVS_PER_CLASS + 1
_PERCENT = {"validation": 10, "test": 20}  # upper ends: a tenth each


def hashed_split(clip: str) -> str:
    """The split of "word/speaker_nohash_number.wav" by the rule of the set's README.

    SHA-1 of what stands before "_nohash_" in the file name, so that a speaker's clips stay together.
    """
    speaker = clip.rpartition("/")[2].partition("_nohash_")[0]
    percent = int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % _HASHES * (100 / (_HASHES - 1))
    return next((split for split, end in _PERCENT.items() if percent < end), "train")


def read_lists(root: Path) -> dict[str, str] | None:
    """The split of every clip that the official lists name; None where neither list stands."""
    there = [(root / name).is_file() for name in LISTS.values()]
    if not any(there):
        return None
    splits: dict[str, str] = {}
    for split, name in LISTS.items():
        for number, clip in enumerate(_lines(root / name), start=1):
            if clip.count("/") != 1 or not clip.endswith(".wav"):
                raise ValueError(f"{root / name}, line {number}, must read word/file.wav, got {clip!r}")
            if splits.setdefault(clip, split) != split:
                raise ValueError(f"{root / name}, line {number}: {clip} stands in {LISTS[splits[clip]]} too")
    return splits


def split_clips(clips: Iterable[str], lists: dict[str, str] | None, split: str) -> list[str]:
    """Those of `clips` that belong to `split`: what the lists do not name trains; without lists the hash decides."""
    if lists is None:
        return [clip for clip in clips if hashed_split(clip) == split]
    return [clip for clip in clips if lists.get(clip, "train") == split]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except FileNotFoundError as error:
        others = " and ".join(LISTS.values())
        raise ValueError(f"{path} is missing; {others} must both be there, or neither") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from error
