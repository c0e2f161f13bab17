"""What stands in the set's folder, and what is said of what does not."""

import warnings
from pathlib import Path

import pytest
import torch
from tests.data.speech_commands.made import WORDS, write_set, write_wave

from saligraft.data.speech_commands.files import find_root, list_clips, list_noises, warn_of_missing

MORE_WORDS = ["backward", "follow", "forward", "learn", "visual"]


def make_folders(root: Path, words: list[str]) -> Path:
    for word in words:
        (root / word).mkdir(parents=True)
    return root


def test_the_folder_or_its_parent_is_the_root(tmp_path: Path) -> None:
    inside = make_folders(tmp_path / "speech_commands_v0.01", WORDS)
    assert find_root(inside) == inside
    assert find_root(str(tmp_path)) == inside
    make_folders(tmp_path / "speech_commands_v0.02", WORDS)
    with pytest.raises(ValueError, match=r"root must name .* but .* holds 2 of them"):
        find_root(tmp_path)


def test_a_wrong_root_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"root must name .*speech_commands_v0.01.tar.gz.*nowhere is no folder"):
        find_root(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no folder of a word such as 'yes'"):
        find_root(tmp_path)


def test_a_root_that_is_not_given_is_looked_for_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"but data/speech-commands is no folder"):
        find_root(None)
    make_folders(tmp_path / "data" / "speech-commands", WORDS)
    assert find_root(None) == Path("data/speech-commands")


@pytest.mark.parametrize("words", [WORDS, sorted(WORDS + MORE_WORDS)])
def test_every_word_is_a_class_and_noise_is_none(tmp_path: Path, words: list[str]) -> None:
    clips = list_clips(write_set(tmp_path, words))
    assert list(clips) == sorted(words)
    assert clips["bed"] == [f"bed/{speaker}_nohash_0.wav" for speaker in ("a1", "b2", "c3")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (WORDS[:-1], "must hold a folder for each of the 30 words of v0.01; it lacks 'zero'"),
        (
            [*WORDS, "learn"],
            "for each of the 35 words of v0.02; it lacks 'backward', 'follow', 'forward', 'visual'",
        ),
        ([*WORDS, "dirt"], "must hold a folder for each of the 30 words of v0.01; unknown are 'dirt'"),
        (WORDS, "bed must hold clips, got none"),
        ([*WORDS, *MORE_WORDS, "dirt"], "must hold a folder for each of the 35 words of v0.02; unknown are 'dirt'"),
    ],
)
def test_missing_and_unknown_words_are_named(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list_clips(make_folders(tmp_path, words))


def test_other_files_among_clips_are_named(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "bed" / ".hidden").touch()
    assert len(list_clips(tmp_path)["bed"]) == 3
    (tmp_path / "bed" / "a_nohash_0.wav.part").touch()
    with pytest.raises(ValueError, match=r"bed must hold wav files alone, got 'a_nohash_0.wav.part'"):
        list_clips(tmp_path)


def test_a_part_of_the_set_is_said_to_be_one(tmp_path: Path) -> None:
    clips = {word: [] for word in WORDS} | {"bed": ["bed/a_nohash_0.wav"]}
    with pytest.warns(UserWarning, match=r"holds 1 of the 64,721 clips of v0.01$"):
        warn_of_missing(tmp_path, clips, None)
    with pytest.warns(UserWarning, match=r"1 of the 64,721 .*; .* name 1 more, such as bed/b_nohash_0.wav"):
        warn_of_missing(tmp_path, clips, {"bed/b_nohash_0.wav": "test", "bed/a_nohash_0.wav": "test"})


def test_a_whole_set_is_not_remarked_on(tmp_path: Path) -> None:
    clips = {word: [] for word in WORDS} | {"bed": [f"bed/{number}.wav" for number in range(64721)]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_missing(tmp_path, clips, {"bed/5.wav": "test"})
    with pytest.warns(UserWarning, match="name 1 more, such as bed/x.wav"):
        warn_of_missing(tmp_path, clips, {"bed/x.wav": "test"})


def test_noises_with_their_lengths(tmp_path: Path) -> None:
    folder = write_set(tmp_path) / "_background_noise_"
    (folder / "README.md").touch()
    assert list_noises(tmp_path) == (("_background_noise_/hiss.wav", 32000), ("_background_noise_/hum.wav", 16000))


def test_noises_that_are_missing_or_too_short_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"_background_noise_ must hold recordings of noise"):
        list_noises(tmp_path)
    write_wave(tmp_path / "_background_noise_" / "hum.wav", torch.zeros(15999))
    with pytest.raises(ValueError, match=r"hum.wav must last a second or more \(16000 samples\), got 15999 samples"):
        list_noises(tmp_path)
