"""The set's folder, its splits, and reading waves."""

import hashlib
import random
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.speech_commands.small_set import WORDS, tone, write_set, write_wave

from saligraft.data.speech_commands import files
from saligraft.data.speech_commands.files import (
    find_root,
    hashed_split,
    list_clips,
    list_noises,
    read_lists,
    read_wave,
    wave_length,
)

PART = "ignore:.* holds .* of the .* clips:UserWarning"
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
    with pytest.raises(ValueError, match=r"root must name .*speech_commands_v0.01.tar.gz.*nowhere is not a folder"):
        find_root(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no folder of a word such as 'yes'"):
        find_root(tmp_path)


def test_a_root_that_is_not_given_is_looked_for_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"but data/speech-commands is not a folder"):
        find_root(None)
    make_folders(tmp_path / "data" / "speech-commands", WORDS)
    assert find_root(None) == Path("data/speech-commands")


@pytest.mark.filterwarnings(PART)
@pytest.mark.parametrize("words", [WORDS, sorted(WORDS + MORE_WORDS)])
def test_every_word_is_a_class_and_noise_is_none(tmp_path: Path, words: list[str]) -> None:
    write_set(tmp_path, words)
    for split, speaker in (("train", "a1"), ("validation", "b2"), ("test", "c3")):
        clips = list_clips(tmp_path, split)
        assert list(clips) == sorted(words)
        assert clips["bed"] == [f"bed/{speaker}_nohash_0.wav"]


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
        list_clips(make_folders(tmp_path, words), "train")


@pytest.mark.filterwarnings(PART)
def test_other_files_among_clips_are_named(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "bed" / ".hidden").touch()
    assert len(list_clips(tmp_path, "train")["bed"]) == 1
    (tmp_path / "bed" / "a_nohash_0.wav.part").touch()
    with pytest.raises(ValueError, match=r"bed must hold only wav files, got 'a_nohash_0.wav.part'"):
        list_clips(tmp_path, "train")


def test_an_incomplete_set_is_warned_of_and_a_complete_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path)
    with pytest.warns(UserWarning, match=r"holds 90 of the 64,721 clips of v0.01$"):
        list_clips(tmp_path, "train")
    monkeypatch.setitem(files._COUNTS, "v0.01", 90)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list_clips(tmp_path, "train")
    with (tmp_path / "testing_list.txt").open("a") as file:
        file.write("bed/x_nohash_0.wav\n")
    with pytest.warns(UserWarning, match=r"90 of the 90 .*; .* name 1 more, such as bed/x_nohash_0.wav"):
        list_clips(tmp_path, "train")


def test_noises_with_their_lengths(tmp_path: Path) -> None:
    folder = write_set(tmp_path) / "_background_noise_"
    (folder / "README.md").touch()
    assert list_noises(tmp_path) == (("_background_noise_/hiss.wav", 32000), ("_background_noise_/hum.wav", 16000))


def test_noises_that_are_missing_or_too_short_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"_background_noise_ must hold recordings of noise"):
        list_noises(tmp_path)
    write_wave(tmp_path / "_background_noise_" / "hum.wav", torch.zeros(15999))
    with pytest.raises(ValueError, match=r"hum.wav must last at least one second \(16000 samples\), got 15999 samples"):
        list_noises(tmp_path)


NAMES = st.text("0123456789abcdef", min_size=1, max_size=8)


@given(speaker=NAMES, number=st.integers(0, 9))
def test_the_hash_rule_by_integers(speaker: str, number: int) -> None:
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


@pytest.mark.filterwarnings(PART)
def test_lists_decide_where_they_exist_and_the_hash_otherwise(tmp_path: Path) -> None:
    write_set(tmp_path)
    for number in range(40):
        write_wave(tmp_path / "bed" / f"{number}_nohash_0.wav", torch.zeros(1))
    (tmp_path / "validation_list.txt").write_text("bed/0_nohash_0.wav\n")
    (tmp_path / "testing_list.txt").write_text("bed/1_nohash_0.wav\r\n")
    parts = {split: list_clips(tmp_path, split)["bed"] for split in ("validation", "test", "train")}
    assert (parts["validation"], parts["test"]) == (["bed/0_nohash_0.wav"], ["bed/1_nohash_0.wav"])
    assert len(parts["train"]) == 41
    for name in ("validation_list.txt", "testing_list.txt"):
        (tmp_path / name).unlink()
    parts = {split: list_clips(tmp_path, split)["bed"] for split in parts}
    assert sum(map(len, parts.values())) == 43
    assert all(part and all(hashed_split(clip) == split for clip in part) for split, part in parts.items())


@pytest.mark.parametrize(
    ("validation", "testing", "words"),
    [
        ("bed/x.wav\n", None, "testing_list.txt is missing"),
        ("bed/x.wav\n", "bed/x.wav\n", r"testing_list.txt, line 1: bed/x.wav is in validation_list.txt too"),
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
    with pytest.raises(ValueError, match=r"validation_list.txt is not text"):
        read_lists(tmp_path)


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
    with pytest.raises(ValueError, match=r"a\.wav has no samples"):
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
