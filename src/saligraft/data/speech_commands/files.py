"""What stands in the set's folder: clips by word, and recordings of noise."""

import warnings
from pathlib import Path

from saligraft.data.roots import data_root
from saligraft.data.speech_commands.splits import LISTS
from saligraft.data.speech_commands.waves import SECOND, wave_length

NOISE_FOLDER = "_background_noise_"  # no class, as all names that begin so
# Clips of the whole set: its README counts 64,727 files in v0.01, six recordings of noise among them; v0.02's paper
# (Warden, 2018) counts 105,829 clips.
_WHOLE = {"v0.01": 64721, "v0.02": 105829}
_WORDS_1 = (
    *("bed", "bird", "cat", "dog", "down", "eight", "five", "four", "go", "happy", "house", "left", "marvin", "nine"),
    *("no", "off", "on", "one", "right", "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "wow", "yes"),
    "zero",
)
_WORDS_2 = tuple(sorted((*_WORDS_1, "backward", "follow", "forward", "learn", "visual")))
_PLACE = "the folder that holds the unpacked speech_commands_v0.01.tar.gz or speech_commands_v0.02.tar.gz"


def find_root(root: str | Path | None) -> Path:
    """The folder of the word folders: `root`, or the only folder in it that holds some."""
    folder = data_root("speech-commands", root)
    if not folder.is_dir():
        raise ValueError(f"root must name {_PLACE}, but {folder} is no folder")
    if _holds_words(folder):
        return folder
    inside = [each for each in sorted(folder.iterdir()) if each.is_dir() and _holds_words(each)]
    if len(inside) != 1:
        found = "holds no folder of a word such as 'yes'" if not inside else f"holds {len(inside)} of them"
        raise ValueError(f"root must name {_PLACE}, but {folder} {found}")
    return inside[0]


def list_clips(root: Path) -> dict[str, list[str]]:
    """The clips "word/file.wav" of every word, both in alphabetical order; all words of a version must be there."""
    found = {each.name for each in root.iterdir() if each.is_dir() and each.name[0] not in "._"}
    version, words = ("v0.02", _WORDS_2) if found & (set(_WORDS_2) - set(_WORDS_1)) else ("v0.01", _WORDS_1)
    for what, names in (("it lacks", set(words) - found), ("unknown are", found - set(words))):
        if names:
            listed = ", ".join(map(repr, sorted(names)))
            raise ValueError(
                f"{root} must hold a folder for each of the {len(words)} words of {version}; {what} {listed}"
            )
    clips = {word: [f"{word}/{name}" for name in _wave_files(root / word)] for word in words}
    for word, of_word in clips.items():
        if not of_word:
            raise ValueError(f"{root / word} must hold clips, got none")
    return clips


def warn_of_missing(root: Path, clips: dict[str, list[str]], lists: dict[str, str] | None) -> None:
    """Say so where only a part of the set is there, and name a clip that the official lists miss."""
    count = sum(map(len, clips.values()))
    version = "v0.02" if len(clips) == len(_WORDS_2) else "v0.01"
    there = {clip for of_word in clips.values() for clip in of_word}
    missing = sorted((lists or {}).keys() - there)
    if count == _WHOLE[version] and not missing:
        return
    named = f"; {' and '.join(LISTS.values())} name {len(missing):,} more, such as {missing[0]}" if missing else ""
    warnings.warn(f"{root} holds {count:,} of the {_WHOLE[version]:,} clips of {version}{named}", stacklevel=4)


def list_noises(root: Path) -> tuple[tuple[str, int], ...]:
    """File and number of samples of each recording of background noise."""
    folder = root / NOISE_FOLDER
    names = _wave_files(folder, also="README.md") if folder.is_dir() else []
    if not names:
        raise ValueError(f"{folder} must hold recordings of noise, which augmentation adds; noise = 0 needs none")
    noises = tuple((f"{NOISE_FOLDER}/{name}", wave_length(folder / name)) for name in names)
    for name, length in noises:
        if length < SECOND:
            raise ValueError(f"{root / name} must last a second or more ({SECOND} samples), got {length} samples")
    return noises


def _holds_words(folder: Path) -> bool:
    return any((folder / word).is_dir() for word in _WORDS_1)


def _wave_files(folder: Path, also: str = "") -> list[str]:
    names = sorted(each.name for each in folder.iterdir() if each.name[0] != "." and each.name != also)
    for name in names:
        if not name.endswith(".wav"):
            raise ValueError(f"{folder} must hold wav files alone, got {name!r}")
    return names
