"""The set's folder: clips by word, official splits, recordings of noise, and reading a wave.

Shapes: n samples of a wave, float32 in [-1, 1).
"""

import hashlib
import warnings
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from saligraft.data.files import data_root, download_command

RATE = 16000  # samples per second, in all files of the set
SECOND = RATE  # samples of a clip after padding or cropping
SPLITS = ("train", "validation", "test")
LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}
NOISE_FOLDER = "_background_noise_"  # not a class, like all names that start with an underscore
_HASHES = 2**27  # the README's MAX_NUM_WAVS_PER_CLASS + 1
_PERCENT = {"validation": 10, "test": 20}  # upper bounds: a tenth each
# Clips of the complete set: its README counts 64,727 files in v0.01, including six recordings of noise; v0.02's paper
# (Warden, 2018) counts 105,829 clips.
_COUNTS = {"v0.01": 64721, "v0.02": 105829}
_WORDS_1 = (
    "bed", "bird", "cat", "dog", "down", "eight", "five", "four", "go", "happy", "house", "left", "marvin", "nine",
    "no", "off", "on", "one", "right", "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "wow", "yes",
    "zero",
)  # fmt: skip
_WORDS_2 = tuple(sorted((*_WORDS_1, "backward", "follow", "forward", "learn", "visual")))
_PLACE = "the folder that holds the unpacked speech_commands_v0.01.tar.gz or speech_commands_v0.02.tar.gz"


def find_root(root: str | Path | None) -> Path:
    """Find the folder of the word folders.

    Args:
        root: That folder, or one in which it is the only such folder; None means the default root.
    """
    folder = data_root("speech-commands", root)
    if not folder.is_dir():
        command = download_command("speech-commands", folder)
        raise ValueError(f"root must name {_PLACE}, but {folder} is not a folder; to download it: {command}")
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    places = [place for place in candidates if any((place / word).is_dir() for word in _WORDS_1)]
    if folder in places or len(places) == 1:
        return places[0]
    problem = f"holds {len(places)} of them" if places else "holds no folder of a word such as 'yes'"
    raise ValueError(f"root must name {_PLACE}, but {folder} {problem}")


def list_clips(root: Path, split: str) -> dict[str, list[str]]:
    """List the clips of a split, "word/file.wav", for every word, both in alphabetical order.

    All words of a version must exist. If only a part of the set exists, a warning says so and names a clip that the
    official lists contain. The official lists determine the split, and clips on neither list are for training; without
    lists a hash determines it.

    Args:
        root: The folder of the word folders.
        split: One of `SPLITS`.
    """
    folders = {path.name for path in root.iterdir() if path.is_dir() and path.name[0] not in "._"}
    version, words = ("v0.02", _WORDS_2) if folders & (set(_WORDS_2) - set(_WORDS_1)) else ("v0.01", _WORDS_1)
    for what, names in (("it lacks", set(words) - folders), ("unknown are", folders - set(words))):
        if names:
            listed = ", ".join(map(repr, sorted(names)))
            raise ValueError(
                f"{root} must hold a folder for each of the {len(words)} words of {version}; {what} {listed}"
            )
    clips = {word: [f"{word}/{name}" for name in _wave_files(root / word)] for word in words}
    for word, of_word in clips.items():
        if not of_word:
            raise ValueError(f"{root / word} must hold clips, got none")
    lists = read_lists(root)
    count, missing = sum(map(len, clips.values())), sorted((lists or {}).keys() - set().union(*clips.values()))
    if count != _COUNTS[version] or missing:
        named = f"; {' and '.join(LISTS.values())} name {len(missing):,} more, such as {missing[0]}" if missing else ""
        warnings.warn(f"{root} holds {count:,} of the {_COUNTS[version]:,} clips of {version}{named}", stacklevel=3)
    split_of = hashed_split if lists is None else lambda clip: lists.get(clip, "train")
    return {word: [clip for clip in of_word if split_of(clip) == split] for word, of_word in clips.items()}


def read_lists(root: Path) -> dict[str, str] | None:
    """Read the split of every clip that the official lists name; None where neither list exists.

    Args:
        root: The folder of the lists.
    """
    if not any((root / name).is_file() for name in LISTS.values()):
        return None
    splits: dict[str, str] = {}
    for split, name in LISTS.items():
        path = root / name
        try:
            clips = path.read_text(encoding="utf-8").split()
        except FileNotFoundError as error:
            raise ValueError(
                f"{path} is missing; {' and '.join(LISTS.values())} must both be there, or neither"
            ) from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text: {error}") from error
        for number, clip in enumerate(clips, start=1):
            if clip.count("/") != 1 or not clip.endswith(".wav"):
                raise ValueError(f"{path}, line {number}, must read word/file.wav, got {clip!r}")
            if splits.setdefault(clip, split) != split:
                raise ValueError(f"{path}, line {number}: {clip} is in {LISTS[splits[clip]]} too")
    return splits


def hashed_split(clip: str) -> str:
    """Return the split of a clip by the rule of the set's README.

    SHA-1 of what precedes "_nohash_" in the file name, so that a speaker's clips stay together.

    Args:
        clip: "word/speaker_nohash_number.wav".
    """
    speaker = clip.rpartition("/")[2].partition("_nohash_")[0]
    percent = int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % _HASHES * (100 / (_HASHES - 1))
    return next((split for split, end in _PERCENT.items() if percent < end), "train")


def list_noises(root: Path) -> tuple[tuple[str, int], ...]:
    """List the recordings of background noise.

    Args:
        root: The folder of the word folders.

    Returns:
        File under `root` and number of samples of each.
    """
    folder = root / NOISE_FOLDER
    names = _wave_files(folder, also="README.md") if folder.is_dir() else []
    if not names:
        raise ValueError(f"{folder} must hold recordings of noise, which augmentation adds; noise = 0 needs none")
    noises = tuple((f"{NOISE_FOLDER}/{name}", wave_length(folder / name)) for name in names)
    for name, length in noises:
        if length < SECOND:
            raise ValueError(f"{root / name} must last at least one second ({SECOND} samples), got {length} samples")
    return noises


def _wave_files(folder: Path, also: str = "") -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.name[0] != "." and path.name != also)
    for name in names:
        if not name.endswith(".wav"):
            raise ValueError(f"{folder} must hold only wav files, got {name!r}")
    return names


def read_wave(path: Path, *, start: int = 0, count: int = SECOND) -> Tensor:
    """Read samples of a wave; a file that is not complete 16-bit mono at 16 kHz is an error.

    Args:
        path: The file.
        start: The first sample.
        count: Most samples to read.

    Returns:
        (n).
    """
    with _opened(path) as file:
        expected = max(0, min(count, file.getnframes() - start))
        file.setpos(min(start, file.getnframes()))
        stored = file.readframes(expected)
    if len(stored) != 2 * expected:
        raise ValueError(f"{path} is truncated: {2 * expected} bytes expected at sample {start}, got {len(stored)}")
    # bytearray, since torch warns about read-only buffers
    return torch.frombuffer(bytearray(stored), dtype=torch.int16).float() / 2**15 if stored else torch.zeros(0)


def wave_length(path: Path) -> int:
    """Return the number of samples of a file, which must not be truncated.

    Args:
        path: The file.
    """
    with _opened(path) as file:
        frames = file.getnframes()
    read_wave(path, start=frames - 1, count=1)
    return frames


@contextmanager
def _opened(path: Path) -> Iterator[wave.Wave_read]:
    """Open a file of the right format that is not empty."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            if (channels, width, rate) != (1, 2, RATE):
                raise ValueError(
                    f"{path} must be 16-bit mono PCM at {RATE} Hz, got {8 * width} bits, {channels} channels, {rate} Hz"
                )
            if not file.getnframes():
                raise ValueError(f"{path} has no samples")
            yield file
    except (wave.Error, EOFError, OSError, RuntimeError) as error:  # RuntimeError: a chunk longer than the file
        raise ValueError(
            f"{path} cannot be read as a wav file: {str(error) or 'it is truncated, or its sizes are wrong'}"
        ) from error
