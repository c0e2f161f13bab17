"""Image transforms followed by a batch mixer, as in "Cutout + Mixup", combined to one batch mixer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saligraft import checks
from saligraft.batch import AlteredBatch, MixedBatch
from saligraft.methods.base import Applied, BatchMixer
from saligraft.methods.kinds import ImageTransform


class ComposeDraws(NamedTuple):
    """The draws of one batch.

    Args:
        transforms: Draws of each image transform.
        mixer: Draws of the batch mixer; None without one.
    """

    transforms: tuple[Any, ...]
    mixer: Any


@dataclass(frozen=True, kw_only=True)
class Compose(BatchMixer[ComposeDraws]):
    """Transform the images, then mix them.

    Without a mixer, as in ``Compose([Cutout()])``, labels do not change. The saliency map is that of the images before
    the transforms.

    Args:
        parts: Image transforms, then at most one batch mixer.
        probability, per: Cannot be set: each part has its own.

    Example:
        >>> import torch, saligraft as sg
        >>> method = sg.Compose([sg.Cutout(size=4), sg.Mixup()])
        >>> method(torch.rand(2, 3, 8, 8), torch.tensor([0, 1])).images.shape
        torch.Size([2, 3, 8, 8])
    """

    parts: Sequence[ImageTransform[Any] | BatchMixer[Any]] = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probability != 1.0 or self.per != "sample":
            raise ValueError("probability and per must be set on each of parts, not on Compose")
        if not isinstance(self.parts, Sequence):
            raise TypeError(f"parts must be a sequence such as [Cutout(), Mixup()], got {type(self.parts).__name__}")
        object.__setattr__(self, "parts", tuple(self.parts))
        transforms = self.parts if self.mixer is None else self.parts[:-1]
        for part in transforms:
            if not isinstance(part, ImageTransform):
                raise TypeError(f"parts must be image transforms, then at most one mixer; got {checks.kind_of(part)}")
        if not transforms:
            raise ValueError("parts must begin with an image transform such as Cutout(), got none")
        self._inherit_traits()

    def singles(self) -> Iterator[Applied]:
        for part in self.parts:
            yield from part.singles()

    @property
    def transforms(self) -> tuple[ImageTransform[Any], ...]:
        """The parts before the mixer."""
        return tuple(part for part in self.parts if isinstance(part, ImageTransform))

    @property
    def mixer(self) -> BatchMixer[Any] | None:
        """The last part, if it is a batch mixer."""
        last = self.parts[-1] if self.parts else None
        return last if isinstance(last, BatchMixer) else None

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> ComposeDraws:
        drawn = tuple(transform.draw(images, generator=generator) for transform in self.transforms)
        return ComposeDraws(drawn, None if self.mixer is None else self.mixer.draw(images, generator=generator))

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: ComposeDraws) -> MixedBatch:
        for transform, draw in zip(self.transforms, drawn.transforms, strict=True):
            images = transform.apply(images, draw)
        if self.mixer is None:
            return AlteredBatch.unmixed(images, labels)
        return AlteredBatch(*self.mixer.apply(images, labels, saliency, drawn.mixer))
