"""Classes, splits and cache of the set, and views of training clips."""

import pickle
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.speech_commands.small_set import SPEAKERS, WORDS, write_set

from saligraft.data import ImageData, load, make_data_loader
from saligraft.data.files import FileNames
from saligraft.data.speech_commands import SILENCE, SpeechClips, speech_commands
from saligraft.data.speech_commands.files import hashed_split, list_noises, read_wave
from saligraft.data.speech_commands.spectrogram import Augmentation, Changes, changed_spectrum, mel_image

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
        folder=root,
        files=FileNames(f"{word}/{speaker}_nohash_0.wav" for word in WORDS),
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
    assert list(data.files) == [clip for clip in clips if hashed_split(clip) == "train"]
    assert list(data.files) != list(speech_commands(root=root).files)  # type: ignore[union-attr]


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
    with pytest.raises(ValueError, match="has no clip of split 'test'"):
        speech_commands(root=tmp_path, split="test")


def test_damage_is_named_when_clips_are_decoded(tmp_path: Path) -> None:
    write_set(tmp_path)
    damaged = tmp_path / "cat" / "c3_nohash_0.wav"
    damaged.write_bytes(damaged.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"cat/c3_nohash_0.wav is truncated"):
        speech_commands(root=tmp_path, split="test")


STILL = Augmentation(probability=0.0)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> SpeechClips:
    root = write_set(tmp_path_factory.mktemp("speech"))
    return SpeechClips(
        name="speech-commands",
        labels=torch.tensor([0, 1, 2]),
        classes=("bed", "cat", "silence"),
        mean=(0.5,),
        std=(0.25,),
        folder=root,
        files=FileNames(("bed/b2_nohash_0.wav", "cat/a1_nohash_0.wav", SILENCE)),
        augmentation=Augmentation(),
        noises=list_noises(root),
    )


def views(clips: SpeechClips, index: int, seeds: range) -> torch.Tensor:
    return torch.stack([clips.sample(index, random.Random(seed))[0] for seed in seeds])


def test_the_test_view_is_the_clip_itself(clips: SpeechClips) -> None:
    image, geometry = clips.sample(0, None)
    assert torch.equal(image, mel_image(changed_spectrum(read_wave(clips.folder / clips.files[0]), Changes())))
    assert geometry == (0, 0, 32, 32, 32, 32)
    assert not clips.geometry_known
    assert tuple(image.shape) == clips.image_shape


def test_a_training_view_depends_on_its_draws_alone(clips: SpeechClips) -> None:
    forwards = [clips.sample(1, random.Random(seed))[0] for seed in range(20)]
    backwards = [clips.sample(1, random.Random(seed))[0] for seed in reversed(range(20))][::-1]
    assert torch.equal(torch.stack(forwards), torch.stack(backwards))
    assert len({image.numpy().tobytes() for image in forwards}) > 15
    state = torch.random.get_rng_state(), random.getstate()
    clips.sample(1, random.Random(3))
    assert torch.equal(torch.random.get_rng_state(), state[0])
    assert random.getstate() == state[1]


def test_no_change_and_no_noise_is_the_test_view(clips: SpeechClips) -> None:
    still = replace(clips, augmentation=STILL)
    assert torch.equal(still.sample(1, random.Random(0))[0], clips.sample(1, None)[0])


def test_noise_fills_what_was_silent(clips: SpeechClips) -> None:
    """With noise alone, half of the views show the clip, and half show it above a floor."""
    noisy = replace(clips, augmentation=Augmentation(speed=0, stretch=0, shift=0, noise=0.45))
    images, plain = views(noisy, 1, range(60))[:, 0].float(), clips.sample(1, None)[0][0].float()
    assert (images.mean(2).argmax(1) == plain.mean(1).argmax()).all(), "the word is still the loudest"
    above, clean = images[:, 24:].mean((1, 2)), plain[24:].mean()  # far above the tone
    raised = above > clean + 20
    assert 15 < int(raised.sum()) < 45
    assert (above[~raised] - clean).abs().max() < 5


def test_noise_comes_from_everywhere_in_the_recordings(clips: SpeechClips) -> None:
    draws = random.Random(0)
    seconds = [clips._noise(draws) for _ in range(60)]
    assert all(second.shape == (16000,) for second in seconds)
    whole = {name: read_wave(clips.folder / name, count=length) for name, length in clips.noises}
    found = [
        (name, int((recording == second[0]).nonzero()[0]))
        for second in seconds
        for name, recording in whole.items()
        if any(torch.equal(recording[at : at + 16000], second) for at in (recording == second[0]).nonzero()[:, 0])
    ]
    assert len(found) == 60
    assert len(set(found)) > 50


def test_a_soundless_clip_is_black_or_noise_alone(clips: SpeechClips) -> None:
    assert not clips.sample(2, None)[0].any()
    seen = views(clips, 2, range(30)).flatten(1).any(1)
    assert seen.any()
    assert not seen.all()


def test_a_subset_keeps_files_with_labels(clips: SpeechClips) -> None:
    part = clips.subset(torch.tensor([1, 0]))
    assert list(part.files) == [clips.files[1], clips.files[0]]
    assert part.labels.tolist() == [1, 0]
    assert torch.equal(part.sample(0, None)[0], clips.sample(1, None)[0])
    assert torch.equal(clips.take(torch.tensor([1])).images, clips.sample(1, None)[0][None])


def test_it_crosses_to_another_process(clips: SpeechClips) -> None:
    again = pickle.loads(pickle.dumps(clips))
    assert torch.equal(views(again, 0, range(4)), views(clips, 0, range(4)))


def test_views_are_the_same_for_any_number_of_threads(clips: SpeechClips) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = views(clips, 1, range(4))
        torch.set_num_threads(2)
        assert torch.equal(views(clips, 1, range(4)), one)
    finally:
        torch.set_num_threads(before)


def test_a_damaged_clip_is_named(clips: SpeechClips, tmp_path: Path) -> None:
    (tmp_path / "bed").mkdir()
    (tmp_path / "bed" / "b2_nohash_0.wav").write_bytes((clips.folder / clips.files[0]).read_bytes()[:999])
    with pytest.raises(ValueError, match=r"b2_nohash_0.wav is truncated"):
        replace(clips, folder=tmp_path).sample(0, None)


def test_the_digest_tells_other_clips_and_other_noise(tmp_path: Path, clips: SpeechClips) -> None:
    moved = replace(clips, folder=Path(shutil.copytree(clips.folder, tmp_path / "moved")))
    assert moved.digest() == clips.digest()
    digests = {clips.digest()}
    for name in (clips.files[0], clips.noises[1][0]):
        with (moved.folder / name).open("ab") as file:
            file.write(b"x")
        digests.add(moved.digest())
    assert len(digests) == 3
