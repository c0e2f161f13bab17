"""Training clips that are changed anew each time they are met.

Shapes: images (1,32,32), mel filters before frames.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saligraft.data.speech_commands.augment import Augmentation, Changes, changed_spectrum
from saligraft.data.speech_commands.mel import FILTERS, mel_image
from saligraft.data.speech_commands.spectra import FRAMES
from saligraft.data.speech_commands.waves import SECOND, read_wave
from saligraft.data.streamed import StreamedData

SHAPE = (1, FILTERS, FRAMES)
_GEOMETRY = (0, 0, FILTERS, FRAMES)
SILENCE = ""  # the file name of a clip without sound


@dataclass(frozen=True, kw_only=True, eq=False)
class SpeechClips(StreamedData):
    """Clips as wav files; each view is computed from the wave."""

    root: Path
    files: tuple[str, ...]  # under root, one per label
    augmentation: Augmentation
    noises: tuple[tuple[str, int], ...]  # file and number of samples

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return SHAPE

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        """Mel spectrogram (1,32,32) uint8; nothing is cut out of it.

        Appendix A: changes of the wave and of its spectrum, then noise, which is changed likewise.
        """
        file = self.files[index]
        samples = torch.zeros(SECOND) if file == SILENCE else read_wave(self.root / file)
        if draws is None:
            return mel_image(changed_spectrum(samples, Changes())), _GEOMETRY
        spectra = changed_spectrum(samples, self.augmentation.draw(draws))
        share = self.augmentation.draw_noise(draws)
        if share > 0:
            noise = changed_spectrum(self._noise(draws), self.augmentation.draw(draws))
            spectra = (1 - share) * spectra + share * noise
        return mel_image(spectra), _GEOMETRY

    def source_files(self) -> Iterator[tuple[str, str]]:
        sounding = [file for file in self.files if file != SILENCE]
        return ((name, f"{self.root}/{name}") for name in (*sounding, *(noise for noise, _ in self.noises)))

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        return super()._rows(indices) | {"files": tuple(self.files[int(index)] for index in indices)}

    def _noise(self, draws: random.Random) -> Tensor:
        """A second of noise, each second of all recordings alike probable."""
        starts = [length - SECOND + 1 for _, length in self.noises]
        name, length = draws.choices(self.noises, starts)[0]
        return read_wave(self.root / name, start=draws.randrange(length - SECOND + 1))
