"""Speech Commands by name: splits, classes, the cache, and training on it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.speech_commands.made import SPEAKERS, WORDS, write_set

from saligraft.data import ImageData, load, make_data_loader
from saligraft.data.speech_commands import SpeechClips, speech_commands
from saligraft.data.speech_commands.splits import hashed_split

pytestmark = pytest.mark.filterwarnings("ignore:.* holds .* of the 64,721 clips:UserWarning")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("speech"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SALIGRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(("split", "speaker"), [("train", "a1"), ("validation", "b2"), ("test", "c3")])
def test_each_split_holds_its_clips(root: Path, split: str, speaker: str) -> None:
    data = load("speech-commands", root=root, split=split, augment=False)
    assert isinstance(data, ImageData)
    assert data.classes == tuple(WORDS)
    assert data.labels.tolist() == list(range(30))
    assert data.image_shape == (1, 32, 32)
    streamed = SpeechClips(
        **{name: getattr(data, name) for name in ("name", "labels", "classes", "mean", "std")},
        root=root,
        files=tuple(f"{word}/{speaker}_nohash_0.wav" for word in WORDS),
        augmentation=load("speech-commands", root=root).augmentation,  # type: ignore[union-attr]
        noises=(),
    )
    assert torch.equal(data.images, streamed.take(torch.arange(30)).images)


def test_without_lists_the_hash_decides(root: Path, tmp_path: Path) -> None:
    for folder in (*WORDS, "_background_noise_"):
        (tmp_path / folder).symlink_to(root / folder)
    data = speech_commands(root=tmp_path)
    assert isinstance(data, SpeechClips)
    clips = [f"{word}/{speaker}_nohash_0.wav" for word in WORDS for speaker in SPEAKERS]
    assert data.files == tuple(clip for clip in clips if hashed_split(clip) == "train")
    assert data.files != speech_commands(root=root).files  # type: ignore[union-attr]


def test_a_part_of_the_words(root: Path) -> None:
    data = speech_commands(root=root, words=["yes", "bed"], silence=0.1)
    assert data.classes == ("yes", "bed", "unknown", "silence")
    assert isinstance(data, SpeechClips)
    assert torch.bincount(data.labels).tolist() == [1, 1, 28, 3]
    named = {file.partition("/")[0]: int(label) for file, label in zip(data.files, data.labels, strict=True)}
    assert {word: named[word] for word in ("yes", "bed", "cat", "")} == {"yes": 0, "bed": 1, "cat": 2, "": 3}


def test_other_words_can_be_left_out(root: Path) -> None:
    data = speech_commands(root=root, words=["yes", "bed"], others="omit")
    assert data.classes == ("yes", "bed")
    assert data.labels.tolist() == [0, 1]
    assert speech_commands(root=root, words=WORDS[::-1]).classes == tuple(WORDS[::-1])


def test_clean_views_are_decoded_once(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = speech_commands(root=root, split="test", silence=0.1).images  # type: ignore[union-attr]
    assert len(list(cache.glob("speech-commands-test-*.bin"))) == 1
    assert len(first) == 33
    assert not first[30:].any()

    def fail(*_: Any) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(SpeechClips, "sample", fail)
    again = speech_commands(root=root, split="test", silence=0.1).images  # type: ignore[union-attr]
    assert torch.equal(again, first)
    with pytest.raises(AssertionError, match="decoded again"):
        speech_commands(root=root, split="test")


def test_augmentation_by_fields(root: Path, tmp_path: Path) -> None:
    data = speech_commands(root=root, augment={"noise": 0.2, "shift": 3})
    assert isinstance(data, SpeechClips)
    assert (data.augmentation.noise, data.augmentation.shift, data.augmentation.speed) == (0.2, 3, 0.2)
    for word in WORDS:
        (tmp_path / word).symlink_to(root / word)
    with pytest.raises(ValueError, match="_background_noise_ must hold recordings of noise"):
        speech_commands(root=tmp_path)
    assert isinstance(speech_commands(root=tmp_path, augment={"noise": 0.0}), SpeechClips)


def test_workers_give_the_batches_that_one_process_gives(root: Path) -> None:
    data = load("speech-commands", root=root)
    alone, helped = (
        list(make_data_loader(data, batch_size=15, train=True, flip=False, workers=workers)) for workers in (0, 1)
    )
    assert len(alone) == 2
    for one, other in zip(alone, helped, strict=True):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "val"}, "split must be one of 'train', 'validation', 'test'; got 'val'"),
        ({"words": ["yes", "nay"]}, "each of words must be one of 'bed', .*; got 'nay'"),
        ({"words": ["yes", "yes"]}, r"words must hold at least one word, and none twice, got \['yes', 'yes'\]"),
        ({"words": []}, r"words must hold at least one word, and none twice, got \[\]"),
        ({"others": "drop"}, "others must be one of 'unknown', 'omit'; got 'drop'"),
        ({"silence": -0.1}, r"silence must be in \[0, 1\], got -0.1"),
        ({"augment": {"nois": 1.0}}, "field of augment must be one of 'probability', .*; got 'nois'"),
    ],
)
def test_wrong_options_are_refused(root: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        speech_commands(root=root, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"words": "yes"}, "words must be a list of words, got 'yes'"),
        ({"augment": 0.5}, "augment must be a bool or a mapping, got float"),
    ],
)
def test_wrong_types_are_refused(root: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        speech_commands(root=root, **options)


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "testing_list.txt").write_text("")
    with pytest.raises(ValueError, match="holds no clip of split 'test'"):
        speech_commands(root=tmp_path, split="test")


def test_damage_is_named_when_clips_are_decoded(tmp_path: Path) -> None:
    write_set(tmp_path)
    damaged = tmp_path / "cat" / "c3_nohash_0.wav"
    damaged.write_bytes(damaged.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"cat/c3_nohash_0.wav is truncated"):
        speech_commands(root=tmp_path, split="test")
