"""Image transforms before a batch mixer, as in "Cutout + Mixup"; together again a batch mixer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saligraft.batch import MixedBatch
from saligraft.methods.base import BatchMixer
from saligraft.methods.kinds import ImageTransform


class ComposeDraws(NamedTuple):
    transforms: tuple[Any, ...]
    mixer: Any


@dataclass(frozen=True, kw_only=True)
class Compose(BatchMixer[ComposeDraws]):
    """Transform the images, then mix them: ``Compose([Cutout(), Mixup()])``.

    Without a mixer, as in ``Compose([Cutout()])``, the labels stay. A saliency map that is given is that of the
    images as they came. Each part has its own `probability` and `per`; those of the whole cannot be set.
    """

    parts: Sequence[ImageTransform[Any] | BatchMixer[Any]] = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probability != 1.0 or self.per != "sample":
            raise ValueError("probability and per must be set on each of parts, not on Compose")
        if not isinstance(self.parts, Sequence):
            raise TypeError(f"parts must be a sequence such as [Cutout(), Mixup()], got {type(self.parts).__name__}")
        parts = tuple(self.parts)
        transforms = parts[:-1] if parts and isinstance(parts[-1], BatchMixer) else parts
        for part in transforms:
            if not isinstance(part, ImageTransform):
                raise TypeError(f"parts must be image transforms, then at most one mixer; got {type(part).__name__}")
        if not transforms:
            raise ValueError("parts must begin with an image transform such as Cutout(), got none")
        object.__setattr__(self, "parts", parts)
        if self.mixer is not None:
            for trait in ("needs_saliency", "uses_saliency", "saliency_source", "with_originals"):
                object.__setattr__(self, trait, getattr(self.mixer, trait))

    @property
    def transforms(self) -> tuple[ImageTransform[Any], ...]:
        return tuple(part for part in self.parts if isinstance(part, ImageTransform))

    @property
    def mixer(self) -> BatchMixer[Any] | None:
        last = self.parts[-1]
        return last if isinstance(last, BatchMixer) else None

    @property
    def moves_pixels(self) -> bool:
        return self.mixer is not None and self.mixer.moves_pixels

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> ComposeDraws:
        drawn = tuple(transform.draw(images, generator=generator) for transform in self.transforms)
        return ComposeDraws(drawn, None if self.mixer is None else self.mixer.draw(images, generator=generator))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: ComposeDraws) -> MixedBatch:
        for transform, draw in zip(self.transforms, drawn.transforms, strict=True):
            images = transform.apply(images, draw)
        if self.mixer is None:
            return MixedBatch.unmixed(images, labels)
        return self.mixer.apply(images, labels, saliency, drawn.mixer)
