"""Google Speech Commands: one-second clips of single words, as 32×32 mel spectrograms (Appendix A of the paper).

Shapes: images (1,32,32), mel filters before frames.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from saligraft.checks import one_of, probability
from saligraft.data.cache import cached, files_key
from saligraft.data.dataset import ImageData, StreamedData
from saligraft.data.files import FileNames
from saligraft.data.speech_commands.files import SECOND, SPLITS, find_root, list_clips, list_noises, read_wave
from saligraft.data.speech_commands.spectrogram import (
    FILTERS,
    FRAMES,
    Augmentation,
    Changes,
    changed_spectrum,
    mel_image,
)

__all__ = ["Augmentation", "SpeechClips", "speech_commands"]

NAME = "speech-commands"
SILENCE = ""  # the file name of a clip without sound
# Computed from the clean views of ten clips for each of v0.01's 30 words, of all splits, joined as `images`:
#   load("speech-commands", root=..., split=..., augment=False).images; (images / 255).mean(), (images / 255).std()
MEAN, STD = (0.370,), (0.251,)
_DECODING = "mel spectrogram 32x32, 1"  # increase it when clean views change, so that old caches are not used
_BLOCK = 256  # clips decoded between writes to the cache
_GEOMETRY = (0, 0, FILTERS, FRAMES, FILTERS, FRAMES)


@dataclass(frozen=True, kw_only=True, eq=False)
class SpeechClips(StreamedData):
    """Clips as wav files; each view is computed from the wave, and training views differ each time.

    Args:
        augmentation: Strength of the augmentation.
        noises: File and number of samples of each recording of background noise.
        name, labels, classes, mean, std, boxes, folder, files: See `StreamedData`; `SILENCE` is a clip without sound.
    """

    geometry_known: ClassVar[bool] = False  # augmentation shifts and stretches clips in time

    augmentation: Augmentation
    noises: tuple[tuple[str, int], ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 1, FILTERS, FRAMES

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        """Compute a mel spectrogram (1,32,32) uint8; nothing is cut out of it. See `StreamedData.sample`.

        Appendix A: changes of the wave and of its spectrum, then noise, changed in the same way.
        """
        file = self.files[index]
        samples = torch.zeros(SECOND) if file == SILENCE else read_wave(self.folder / file)
        if draws is None:
            return mel_image(changed_spectrum(samples, Changes())), _GEOMETRY
        spectra = changed_spectrum(samples, self.augmentation.draw(draws))
        share = self.augmentation.draw_noise(draws)
        if share > 0:
            noise = changed_spectrum(self._noise(draws), self.augmentation.draw(draws))
            spectra = (1 - share) * spectra + share * noise
        return mel_image(spectra), _GEOMETRY

    def source_files(self) -> Iterator[str]:
        yield from self.files
        yield from (name for name, _ in self.noises)

    def _noise(self, draws: random.Random) -> Tensor:
        """One second of noise; all seconds of all recordings are equally likely."""
        starts = [length - SECOND + 1 for _, length in self.noises]
        name, length = draws.choices(self.noises, starts)[0]
        return read_wave(self.folder / name, start=draws.randrange(length - SECOND + 1))


def speech_commands(
    *,
    split: str = "train",
    root: str | Path | None = None,
    words: Sequence[str] | None = None,
    others: str = "unknown",
    silence: float = 0.0,
    augment: bool | Mapping[str, float] = True,
) -> ImageData | SpeechClips:
    """Spoken words as mel spectrograms: v0.01 (30 words) or v0.02 (35), whichever is in `root`.

    The words yes, no, up, down, left, right, on, off, stop, go with `silence=0.1` make twelve classes.

    Args:
        split: "train", "validation" or "test".
        root: The folder of the word folders, or its parent.
        words: The classes, in this order; by default all words, in alphabetical order.
        others: Clips of other words make a class "unknown", or with "omit" are left out.
        silence: If > 0, adds a class of silent clips, this share of the others.
        augment: Whether to augment training clips, differently each time; a mapping sets fields of `Augmentation`.
            With False, and in the other splits, clips are decoded once and cached.
    """
    one_of("split", split, SPLITS)
    one_of("others", others, ("unknown", "omit"))
    probability("silence", silence)
    augmentation = _augmentation(augment)
    folder = find_root(root)
    clips = list_clips(folder, split)
    label_of, classes = _labels(words, tuple(clips), others)
    files = [clip for word in label_of for clip in clips[word]]
    if not files:
        raise ValueError(f"{folder} has no clip of split {split!r}")
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
        folder=folder,
        files=FileNames(files),
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


def _labels(
    words: Sequence[str] | None, available: tuple[str, ...], others: str
) -> tuple[dict[str, int], tuple[str, ...]]:
    """The label of every word that is used, and the names of the classes."""
    if isinstance(words, str):
        raise TypeError(f"words must be a list of words, got {words!r}")
    chosen = available if words is None else tuple(words)
    for word in chosen:
        one_of("each of words", word, available)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"words must hold at least one word, and none twice, got {list(chosen)}")
    label_of = {word: label for label, word in enumerate(chosen)}
    left = [word for word in available if word not in label_of]
    if not left or others == "omit":
        return label_of, chosen
    return label_of | dict.fromkeys(left, len(chosen)), (*chosen, "unknown")


def _decoded(data: SpeechClips, split: str) -> ImageData:
    """The clean views of all clips, from the cache if possible."""

    def blocks() -> Iterator[Tensor]:
        for start in range(0, len(data), _BLOCK):
            yield data.take(torch.arange(start, min(start + _BLOCK, len(data)))).images

    sounding = [file for file in data.files if file != SILENCE]
    key = files_key(f"{_DECODING}; {len(data) - len(sounding)} silent", data.folder, sounding)
    images = cached(f"{NAME}-{split}", key, blocks)
    return ImageData(name=NAME, images=images, labels=data.labels, classes=data.classes, mean=data.mean, std=data.std)
