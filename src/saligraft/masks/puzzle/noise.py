"""Adversarial noise on what a mixed image shows: one signed step from a random start, as the authors' option trains.

Kim, Choo & Song, ICML 2020, Section 4.3. The step needs the gradient that the saliency is taken from anyway: begin with
`noisy_start`, take the gradient of the loss there, and hand `adversarial` images to `puzzlemix` as `shown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from saligraft import checks

# Beyond the radius, so that one step reaches the border from most starts.
_STEP_BEYOND = 2 / 255


class PixelScale(NamedTuple):
    """How pixels in [0, 1] were normalised: one number, or one per channel.

    The noise itself needs no mean; with None it is not known where 0 and 1 lie, and nothing is clamped to them.
    """

    mean: float | Sequence[float] | None
    std: float | Sequence[float]

    def _as(self, images: Tensor) -> tuple[Tensor, Tensor]:
        parts = (0.0 if self.mean is None else self.mean, self.std)
        mean, std = (torch.as_tensor(part, device=images.device, dtype=images.dtype).view(-1, 1, 1) for part in parts)
        return mean, std

    def pixels(self, images: Tensor) -> Tensor:
        mean, std = self._as(images)
        return images * std + mean

    def normalised(self, pixels: Tensor) -> Tensor:
        mean, std = self._as(pixels)
        return ((pixels if self.mean is None else pixels.clamp(0, 1)) - mean) / std


def noisy_start(images: Tensor, uniform: Tensor, scale: PixelScale, radius: float = 10 / 255) -> Tensor:
    """Images (B, C, H, W) moved within ±radius by `uniform` draws in [0, 1) of their shape, pixels kept in [0, 1]."""
    _check(images, uniform, "uniform", radius)
    return scale.normalised(scale.pixels(images) + (2 * uniform - 1) * radius)


def adversarial(
    images: Tensor, start: Tensor, gradient: Tensor, share: float, scale: PixelScale, radius: float = 10 / 255
) -> Tensor:
    """One step up the loss from `start`, whose gradient is given, back within ±radius, and `share` of that noise.

    The authors draw `share` uniformly in [0, 1) once per batch, and use the result for source and destination with a
    probability of 0.1 each, once per batch.
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
