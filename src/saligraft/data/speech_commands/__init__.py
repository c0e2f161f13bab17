"""Google Speech Commands: one-second clips of single words, as 32×32 mel spectrograms (Appendix A of the paper)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor

from saligraft.checks import one_of, probability
from saligraft.data.cache import cached, files_key
from saligraft.data.image_data import ImageData
from saligraft.data.speech_commands.augment import Augmentation
from saligraft.data.speech_commands.clips import SILENCE, SpeechClips
from saligraft.data.speech_commands.files import find_root, list_clips, list_noises, warn_of_missing
from saligraft.data.speech_commands.splits import SPLITS, read_lists, split_clips

__all__ = ["Augmentation", "SpeechClips", "speech_commands"]

NAME = "speech-commands"
OTHERS = ("unknown", "omit")
# Of the clean views of ten clips for each of v0.01's 30 words, those of all splits, joined as `images`:
#   load("speech-commands", root=..., split=..., augment=False).images; (images / 255).mean(), (images / 255).std()
MEAN, STD = (0.370,), (0.251,)
_DECODING = "mel spectrogram 32x32, 1"  # count up when a clean view changes, so that old caches are not met
_BLOCK = 256  # clips decoded between writes to the cache


def speech_commands(
    *,
    split: str = "train",
    root: str | Path | None = None,
    words: Sequence[str] | None = None,
    others: str = "unknown",
    silence: float = 0.0,
    augment: bool | Mapping[str, float] = True,
) -> ImageData | SpeechClips:
    """One split, "train", "validation" or "test", of v0.01 (30 words) or v0.02 (35), whichever stands in `root`.

    All words are classes, in alphabetical order, or `words` are, in theirs; clips of other words then make a class
    "unknown", or with `others="omit"` are left out. `silence` adds a class of soundless clips, this share of the
    others; yes, no, up, down, left, right, on, off, stop, go as `words` with `silence=0.1` make twelve classes.
    Training clips are changed at random, each time anew; a mapping gives fields of `Augmentation`. With
    `augment=False`, and in the other splits, clips are decoded once into the cache.
    """
    one_of("split", split, SPLITS)
    one_of("others", others, OTHERS)
    probability("silence", silence)
    augmentation = _augmentation(augment)
    folder = find_root(root)
    clips = _clips(folder, split)
    label_of, classes = _labels(words, tuple(clips), others)
    files = [clip for word in label_of for clip in clips[word]]
    if not files:
        raise ValueError(f"{folder} holds no clip of split {split!r}")
    labels = [label_of[file.partition("/")[0]] for file in files]
    if silence > 0:
        count = round(silence * len(files))
        files, labels, classes = files + [SILENCE] * count, labels + [len(classes)] * count, (*classes, "silence")
    data = SpeechClips(
        name=NAME,
        labels=torch.tensor(labels),
        classes=classes,
        mean=MEAN,
        std=STD,
        root=folder,
        files=tuple(files),
        augmentation=augmentation or Augmentation(),
        noises=(),
    )
    if split != "train" or augmentation is None:
        return _decoded(data, split)
    return replace(data, noises=list_noises(folder)) if augmentation.noise > 0 else data


def _augmentation(augment: bool | Mapping[str, float]) -> Augmentation | None:
    if isinstance(augment, bool):
        return Augmentation() if augment else None
    if not isinstance(augment, Mapping):
        raise TypeError(f"augment must be a bool or a mapping, got {type(augment).__name__}")
    for name in augment:
        one_of("field of augment", name, [field.name for field in fields(Augmentation)])
    return Augmentation(**augment)  # type: ignore[arg-type]  # checked there


def _clips(folder: Path, split: str) -> dict[str, list[str]]:
    """The clips of this split, for every word of the set."""
    clips, lists = list_clips(folder), read_lists(folder)
    warn_of_missing(folder, clips, lists)
    return {word: split_clips(of_word, lists, split) for word, of_word in clips.items()}


def _labels(words: Sequence[str] | None, there: tuple[str, ...], others: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """The label of every word that is used, and the names of the classes."""
    if isinstance(words, str):
        raise TypeError(f"words must be a list of words, got {words!r}")
    chosen = there if words is None else tuple(words)
    for word in chosen:
        one_of("each of words", word, there)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"words must hold at least one word, and none twice, got {list(chosen)}")
    label_of = {word: label for label, word in enumerate(chosen)}
    left = [word for word in there if word not in label_of]
    if not left or others == "omit":
        return label_of, chosen
    return label_of | dict.fromkeys(left, len(chosen)), (*chosen, "unknown")


def _decoded(data: SpeechClips, split: str) -> ImageData:
    """The clean views of all clips, from the cache where they are there already."""

    def blocks() -> Iterator[Tensor]:
        for start in range(0, len(data), _BLOCK):
            yield data.take(torch.arange(start, min(start + _BLOCK, len(data)))).images

    sounding = [file for file in data.files if file != SILENCE]
    key = files_key(f"{_DECODING}; {len(data) - len(sounding)} silent", data.root, sounding)
    images = cached(f"{NAME}-{split}", key, blocks)
    return ImageData(name=NAME, images=images, labels=data.labels, classes=data.classes, mean=data.mean, std=data.std)
