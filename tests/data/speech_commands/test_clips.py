"""Views of training clips depend on their draws alone."""

import pickle
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.data.speech_commands.made import write_set

from saligraft.data.speech_commands.augment import Augmentation
from saligraft.data.speech_commands.clips import SILENCE, SpeechClips
from saligraft.data.speech_commands.files import list_noises
from saligraft.data.speech_commands.mel import mel_image
from saligraft.data.speech_commands.spectra import spectrum
from saligraft.data.speech_commands.waves import fitted, read_wave

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
        root=root,
        files=("bed/b2_nohash_0.wav", "cat/a1_nohash_0.wav", SILENCE),
        augmentation=Augmentation(),
        noises=list_noises(root),
    )


def views(clips: SpeechClips, index: int, seeds: range) -> torch.Tensor:
    return torch.stack([clips.sample(index, random.Random(seed))[0] for seed in seeds])


def test_the_test_view_is_the_clip_itself(clips: SpeechClips) -> None:
    image, geometry = clips.sample(0, None)
    assert torch.equal(image, mel_image(spectrum(fitted(read_wave(clips.root / clips.files[0])))))
    assert geometry == (0, 0, 32, 32)
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
    whole = {name: read_wave(clips.root / name, count=length) for name, length in clips.noises}
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
    assert part.files == (clips.files[1], clips.files[0])
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
    (tmp_path / "bed" / "b2_nohash_0.wav").write_bytes((clips.root / clips.files[0]).read_bytes()[:999])
    with pytest.raises(ValueError, match=r"b2_nohash_0.wav is truncated"):
        replace(clips, root=tmp_path).sample(0, None)


def test_the_digest_tells_other_clips_and_other_noise(tmp_path: Path, clips: SpeechClips) -> None:
    moved = replace(clips, root=Path(shutil.copytree(clips.root, tmp_path / "moved")))
    assert moved.digest() == clips.digest()
    digests = {clips.digest()}
    for name in (clips.files[0], clips.noises[1][0]):
        with (moved.root / name).open("ab") as file:
            file.write(b"x")
        digests.add(moved.digest())
    assert len(digests) == 3
