"""Random changes of a training clip, Appendix A of the paper: first drawn, then applied."""

import random
from dataclasses import dataclass

from torch import Tensor

from saligraft.checks import not_negative, positive, probability, whole_number
from saligraft.data.speech_commands.spectra import FRAMES, placed, spectrum, stretched
from saligraft.data.speech_commands.waves import fitted, slowed


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is done to one clip; the defaults leave it as it is."""

    amplitude: float = 1.0  # factor of the wave
    duration: float = 1.0  # factor of the wave's length, and so 1 / factor of its pitch
    stretch: float = 1.0  # factor of the spectrogram's speed; pitch stays
    shift: int = 0  # frames by which the clip comes earlier


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How far clips are changed; the paper gives no numbers.

    Defaults: github.com/tugstugi/pytorch-speech-commands, which has the paper's steps, in its order, and its size.
    """

    probability: float = 0.5  # that a change is made, each for itself
    least_amplitude: float = 0.7
    most_amplitude: float = 1.1
    speed: float = 0.2  # the wave lasts 1 - speed to 1 + speed times as long
    stretch: float = 0.2  # the spectrogram is played at 1 - stretch to 1 + stretch times its speed
    shift: int = 8  # frames, to either side
    noise: float = 0.45  # largest share of the background

    def __post_init__(self) -> None:
        probability("probability", self.probability)
        positive("least_amplitude", self.least_amplitude)
        if not self.least_amplitude <= self.most_amplitude <= 1000:
            raise ValueError(f"most_amplitude must be in [{self.least_amplitude}, 1000], got {self.most_amplitude}")
        for name, value in (("speed", self.speed), ("stretch", self.stretch)):
            not_negative(name, value)
            if value >= 1:
                raise ValueError(f"{name} must be < 1, got {value}")
        whole_number("shift", self.shift, least=0)
        if self.shift >= FRAMES:
            raise ValueError(f"shift must be < {FRAMES}, the frames of a clip, got {self.shift}")
        probability("noise", self.noise)

    def draw(self, draws: random.Random) -> Changes:
        """The changes of one clip."""
        return Changes(
            amplitude=self._draw(draws, self.least_amplitude, self.most_amplitude, otherwise=1.0),
            duration=self._draw(draws, 1 - self.speed, 1 + self.speed, otherwise=1.0),
            stretch=self._draw(draws, 1 - self.stretch, 1 + self.stretch, otherwise=1.0),
            shift=round(self._draw(draws, -self.shift - 0.5, self.shift + 0.5, otherwise=0.0)),
        )

    def draw_noise(self, draws: random.Random) -> float:
        """The share of background noise of one clip."""
        return self._draw(draws, 0.0, self.noise, otherwise=0.0)

    def _draw(self, draws: random.Random, least: float, most: float, otherwise: float) -> float:
        """Draws both numbers always, so that another `probability` changes no other draw."""
        made, value = draws.random() < self.probability, draws.uniform(least, most)
        return value if made else otherwise


def changed_spectrum(samples: Tensor, changes: Changes) -> Tensor:
    """Spectrum (T,F) of one second of a wave (n), changed first in time, then in frequency."""
    second = fitted(slowed(samples * changes.amplitude, changes.duration))
    return placed(stretched(spectrum(second), changes.stretch), changes.shift)
