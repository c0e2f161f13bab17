"""Adversarial noise on the pixels of mixed images, the authors' option: one signed step from a random start.

Kim, Choo & Song, ICML 2020, Section 4.3. The step needs the gradient that the saliency is computed from: begin with
`noisy_start`, compute the gradient of the loss there, and pass `adversarial` images to `puzzlemix` as `shown`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from saligraft import checks
from saligraft.pixels import denormalized, normalized

# Larger than the radius, so that one step reaches the border from most starts.
_STEP_BEYOND = 2 / 255


class PixelScale(NamedTuple):
    """How pixels in [0, 1] were normalised: one number, or one per channel.

    Args:
        mean: The mean that was subtracted; with None nothing is clamped to [0, 1].
        std: The standard deviation that pixels were divided by.
    """

    mean: float | Sequence[float] | None
    std: float | Sequence[float]

    def _of_channels(self) -> tuple[Sequence[float], Sequence[float]]:
        mean, std = 0.0 if self.mean is None else self.mean, self.std
        return mean if isinstance(mean, Sequence) else [mean], std if isinstance(std, Sequence) else [std]

    def pixels(self, images: Tensor) -> Tensor:
        """Convert normalised images (B, C, H, W) to pixels in [0, 1]."""
        return denormalized(images, *self._of_channels())

    def normalised(self, pixels: Tensor) -> Tensor:
        """Convert pixels (B, C, H, W), clamped to [0, 1] if the mean is known, to normalised images."""
        return normalized(pixels if self.mean is None else pixels.clamp(0, 1), *self._of_channels())


def noisy_start(images: Tensor, uniform: Tensor, scale: PixelScale, radius: float = 10 / 255) -> Tensor:
    """Add uniform noise within ±radius, keeping pixels in [0, 1].

    Args:
        images: (B, C, H, W).
        uniform: Draws in [0, 1) of that shape.
        scale: How the images were normalised.
        radius: Largest change of a pixel in [0, 1].
    """
    _check(images, uniform, "uniform", radius)
    return scale.normalised(scale.pixels(images) + (2 * uniform - 1) * radius)


def adversarial(
    images: Tensor, start: Tensor, gradient: Tensor, share: float, scale: PixelScale, radius: float = 10 / 255
) -> Tensor:
    """Add adversarial noise: one step up the loss from `start`, clipped to ±radius and multiplied by `share`.

    The authors draw `share` uniformly in [0, 1) once per batch, and use the result for source and destination with a
    probability of 0.1 each, once per batch.

    Args:
        images: (B, C, H, W).
        start: Noisy images from `noisy_start`.
        gradient: Gradient of the loss at `start`.
        share: Share of a full step, in [0, 1].
        scale: How the images were normalised.
        radius: Largest change of a pixel in [0, 1].
    """
    _check(images, start, "start", radius)
    _check(images, gradient, "gradient", radius)
    checks.probability("share", share)
    pixels = scale.pixels(images)
    noise = scale.pixels(start) - pixels + (radius + _STEP_BEYOND) * gradient.sign()
    return scale.normalised(pixels + share * noise.clamp(-radius, radius))


def _check(images: Tensor, other: Tensor, name: str, radius: float) -> None:
    checks.images(images)
    checks.positive("radius", radius)
    checks.tensor(name, other)
    if other.shape != images.shape:
        expected = checks.shape_of(images)
        raise ValueError(f"{name} must have the images' shape {expected}, got {checks.shape_of(other)}")
