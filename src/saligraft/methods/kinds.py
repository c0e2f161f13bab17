"""The kinds beside batch mixers: image transforms, feature mixers and step strategies; what members of each share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar, get_args

import torch
from torch import Tensor, nn

from saligraft import checks, draws
from saligraft.batch import MixedBatch

Draws = TypeVar("Draws")


@dataclass(frozen=True, kw_only=True)
class _Applied:
    """What every kind has: how often it is applied, and whether each sample has draws of its own."""

    probability: float = 1.0  # of being applied; a sample that is passed over is left as it was
    per: draws.Per = "sample"  # whether draws and that coin are made for each sample or once per batch

    def __post_init__(self) -> None:
        checks.probability("probability", self.probability)
        checks.one_of("per", self.per, get_args(draws.Per))

    def _count(self, images: Tensor) -> int:
        """How many draws a batch needs."""
        return len(images) if self.per == "sample" else 1

    def _coins(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        """True where the method is applied, (B,) on the host."""
        coins = torch.rand(self._count(images), generator=generator) < self.probability
        return coins.expand(len(images))


@dataclass(frozen=True, kw_only=True)
class ImageTransform(_Applied, ABC, Generic[Draws]):
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
class FeatureMixer(_Applied, ABC):
    """Mixes what a network makes of the images, inside the network: a context around one forward pass."""

    @abstractmethod
    def mixing(
        self, model: nn.Module, images: Tensor, labels: Tensor, *, generator: torch.Generator | None = None
    ) -> AbstractContextManager[MixedBatch]:
        """``with method.mixing(model, images, labels) as mixed: logits = model(mixed.images)``."""


@dataclass(frozen=True, kw_only=True)
class StepStrategy(_Applied, ABC):
    """Trains on several views of each image with a loss of its own."""

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
