"""The kinds beside batch mixers: image transforms, feature mixers and step strategies; what members of each share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from saligraft import checks
from saligraft.batch import MixedBatch
from saligraft.methods.base import Applied, BatchMixer

Draws = TypeVar("Draws")


@dataclass(frozen=True, kw_only=True)
class ImageTransform(Applied, ABC, Generic[Draws]):
    """Changes images and leaves their labels alone: ``transform(images) -> images``, both (B, C, H, W)."""

    @abstractmethod
    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> Draws:
        """Make every random choice for this batch, on the host; moved to the device of `images`."""

    @abstractmethod
    def apply(self, images: Tensor, drawn: Draws) -> Tensor:
        """Transform for given draws. Nothing random, no input changed."""

    def __call__(self, images: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw, then apply."""
        checks.images(images)
        return self.apply(images, self.draw(images, generator=generator))


@dataclass(frozen=True, kw_only=True)
class FeatureMixer(Applied, ABC):
    """Mixes what a network makes of the images, inside the network: a context around one forward pass."""

    @abstractmethod
    def mixing(
        self, model: nn.Module, images: Tensor, labels: Tensor, *, generator: torch.Generator | None = None
    ) -> AbstractContextManager[MixedBatch]:
        """``with method.mixing(model, images, labels) as mixed: logits = model(mixed.images)``."""


@dataclass(frozen=True, kw_only=True)
class StepStrategy(Applied, ABC):
    """Trains on several views of each image with a loss of its own."""

    normalized: bool = False  # whether images come as the network takes them, or in [0, 1]

    @abstractmethod
    def prepare(self, images: Tensor) -> Tensor:
        """The images as they came, checked and made ready for the network: the first of the views."""

    @abstractmethod
    def views(self, images: Tensor, *, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """The views (B, C, H, W) that the network is shown; the first is the image as it came."""

    @abstractmethod
    def loss(
        self, logits: Sequence[Tensor], originals: MixedBatch, criterion: Callable[[Tensor, MixedBatch], Tensor]
    ) -> Tensor:
        """The loss of the views' logits, each (B, K); `criterion` is that of the labels."""


Method = BatchMixer[Any] | ImageTransform[Any] | FeatureMixer | StepStrategy
