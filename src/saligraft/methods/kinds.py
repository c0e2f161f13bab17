"""The kinds beside batch mixers: image transforms, feature mixers and step strategies."""

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
    """Changes images but not their labels: ``transform(images) -> images``, both (B, C, H, W).

    Args:
        probability: Probability that a sample is changed.
        per: Whether draws, including that coin, are made for each "sample" or once per "batch".
    """

    @abstractmethod
    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> Draws:
        """Make all draws for this batch on the host; they are moved to the device of `images`.

        Args:
            images: (B, C, H, W).
            generator: CPU generator for all random draws; None uses torch's global generator.
        """

    @abstractmethod
    def apply(self, images: Tensor, drawn: Draws) -> Tensor:
        """Transform for given draws. Nothing random, no input changed.

        Args:
            images: (B, C, H, W).
            drawn: What `draw` returned.
        """

    def __call__(self, images: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw, then apply.

        Args:
            images: (B, C, H, W).
            generator: CPU generator for all random draws; None uses torch's global generator.
        """
        checks.images(images)
        return self.apply(images, self.draw(images, generator=generator))


@dataclass(frozen=True, kw_only=True)
class FeatureMixer(Applied, ABC):
    """Mixes features inside the network: a context around one forward pass.

    Args:
        probability: Probability that a sample is mixed; the others are left unchanged.
        per: Whether draws, including that coin, are made for each "sample" or once per "batch".
    """

    @abstractmethod
    def mixing(
        self, model: nn.Module, images: Tensor, labels: Tensor, *, generator: torch.Generator | None = None
    ) -> AbstractContextManager[MixedBatch]:
        """``with method.mixing(model, images, labels) as mixed: logits = model(mixed.images)``.

        Args:
            model: The network; its hooks are removed afterwards.
            images: (B, C, H, W).
            labels: (B,) or (B, K).
            generator: CPU generator for all random draws; None uses torch's global generator.
        """


@dataclass(frozen=True, kw_only=True)
class StepStrategy(Applied, ABC):
    """Trains on several views of each image, with its own loss.

    Args:
        normalized: Whether the input is already normalised, instead of in [0, 1].
        probability: Probability that a sample is augmented; the views of others are the image itself.
        per: Whether draws, including that coin, are made for each "sample" or once per "batch".
    """

    normalized: bool = False

    @abstractmethod
    def prepare(self, images: Tensor) -> Tensor:
        """Return the first view: the unchanged images, validated and normalised.

        Args:
            images: (B, C, H, W).
        """

    @abstractmethod
    def views(self, images: Tensor, *, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Return the views (B, C, H, W) that the network sees; the first is the unchanged image.

        Args:
            images: (B, C, H, W).
            generator: CPU generator for all random draws; None uses torch's global generator.
        """

    @abstractmethod
    def loss(
        self, logits: Sequence[Tensor], originals: MixedBatch, criterion: Callable[[Tensor, MixedBatch], Tensor]
    ) -> Tensor:
        """Compute the loss of all views.

        Args:
            logits: Logits of each view, (B, K).
            originals: The unchanged images and their labels.
            criterion: The loss of logits and labels.
        """


Method = BatchMixer[Any] | ImageTransform[Any] | FeatureMixer | StepStrategy
