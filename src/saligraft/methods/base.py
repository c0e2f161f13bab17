"""The kind "batch mixer": draw on the host, then apply; what all methods, and what all of this kind, share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Self, TypeVar, get_args

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch

Draws = TypeVar("Draws")


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What every kind has: how often it is applied, and whether each sample has draws of its own."""

    probability: float = 1.0  # of being applied; a sample that is passed over is left as it was
    per: draws.Per = "sample"  # whether draws and that coin are made for each sample or once per batch

    def __post_init__(self) -> None:
        checks.probability("probability", self.probability)
        checks.one_of("per", self.per, get_args(draws.Per))

    def _check_draw(self, images: Tensor, generator: torch.Generator | None) -> None:
        """What every draw begins with."""
        checks.images(images)
        checks.generator(generator)

    def _count(self, images: Tensor) -> int:
        """How many draws a batch needs."""
        return len(images) if self.per == "sample" else 1

    def _coins(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        """True where the method is applied, (B,) on the host."""
        coins = torch.rand(self._count(images), generator=generator) < self.probability
        return coins.expand(len(images))


@dataclass(frozen=True, kw_only=True)
class BatchMixer(Applied, ABC, Generic[Draws]):
    """Mixes each image of a batch with another one of it: ``method(images, labels, saliency) -> MixedBatch``."""

    needs_saliency: ClassVar[bool] = False
    uses_saliency: ClassVar[bool] = False  # whether it can use a map that it can also do without
    saliency_source: ClassVar[str] = "feature-map"  # where the map comes from by its authors' word
    with_originals: ClassVar[bool] = False  # whether the originals are trained on too, or the mixed images alone

    @property
    def moves_pixels(self) -> bool:
        """True where a mixed image shows pixels of the source or destination in another place than theirs."""
        return False

    def without_noise(self) -> Self:
        """The method without parts that need a training step, such as adversarial noise: for pictures."""
        return self

    @abstractmethod
    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> Draws:
        """Make every random choice for this batch, on the host; moved to the device of `images`."""

    @abstractmethod
    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: Draws) -> MixedBatch:
        """Mix for given draws. Nothing random, no input changed; a sample with a broken map stays ungrafted."""

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        saliency: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> MixedBatch:
        """Draw, then apply. images (B, C, H, W), labels (B,) or (B, K), saliency (B, h, w) where it is needed."""
        check_batch(images, labels)
        checks.label_values(labels)
        if saliency is not None:
            checks.saliency(saliency, batch=len(images))
            checks.same_device("saliency", saliency, images)
            checks.saliency_values(saliency)
        elif self.needs_saliency:
            raise ValueError(f"saliency must be given to {type(self).__name__}, got None: see SaliencyCapture")
        return self.apply(images, labels, saliency, self.draw(images, generator=generator))

    def draw_partners(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        self._check_draw(images, generator)
        partner = draws.partners(len(images), probability=self.probability, per=self.per, generator=generator)
        return draws.to_device(partner, images.device)

    def draw_ratio(self, images: Tensor, alpha: float, generator: torch.Generator | None) -> Tensor:
        """λ ~ Beta(alpha, alpha), (B,) on the host: one per sample, or one for all."""
        return draws.beta(alpha, self._count(images), generator=generator).expand(len(images))


def check_batch(images: Tensor, labels: Tensor, partner: Tensor | None = None) -> None:
    """Shapes, types and devices of what every pure mixing function is given."""
    checks.images(images)
    checks.labels(labels, len(images))
    checks.same_device("labels", labels, images)
    if partner is not None:
        checks.per_sample("partner", partner, len(images))
        checks.same_device("partner", partner, images)
        if partner.dtype != torch.int64:
            raise TypeError(f"partner must hold indices as torch.int64, got {partner.dtype}")
        if checks.may_look(partner) and not bool(((partner >= 0) & (partner < len(images))).all()):
            raise ValueError(
                f"partner must lie in [0, {len(images)}), got {int(partner.min())} to {int(partner.max())}"
            )
