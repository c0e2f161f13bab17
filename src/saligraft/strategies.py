"""Training steps for the kinds beside batch mixers, called as `GraftingStep` and `MixingStep` are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.masks.puzzle import PixelScale, adversarial, noisy_start
from saligraft.methods.base import BatchMixer, check_batch
from saligraft.methods.compose import Compose
from saligraft.methods.kinds import FeatureMixer, ImageTransform, StepStrategy
from saligraft.methods.puzzlemix import PuzzleMix
from saligraft.methods.random_choice import RandomChoice
from saligraft.saliency.capture import logits_of
from saligraft.saliency.input_gradient import InputGradient, gradient_saliency
from saligraft.step import Criterion, GraftingStep, MixingStep, StepOutput, _Step

Method = BatchMixer[Any] | ImageTransform[Any] | FeatureMixer | StepStrategy
Methods = Method | Sequence[Method] | None


class FeatureMixingStep(_Step):
    """Train on one pass whose features are mixed inside the network, as Manifold Mixup does.

    `transforms` change the images before that, as in "Cutout + Manifold Mixup"; while warming up neither is done.
    """

    def __init__(
        self,
        model: nn.Module,
        method: FeatureMixer,
        *,
        transforms: Sequence[ImageTransform[Any]] = (),
        criterion: Criterion | None = None,
        warmup_steps: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(criterion, warmup_steps, generator)
        if not isinstance(method, FeatureMixer):
            raise TypeError(f"method must be a feature mixer such as ManifoldMixup(), got {type(method).__name__}")
        self.model = model
        self.method = method
        self.transforms = _checked(transforms)

    def __call__(
        self, images: Tensor, labels: Tensor, index: Tensor | None = None, geometry: Tensor | None = None
    ) -> StepOutput:
        """Forward pass and loss of one batch: images (B, C, H, W), labels (B,) or (B, K)."""
        del index, geometry
        check_batch(images, labels)
        if self._count():
            return _plain(self, images, labels)
        for transform in self.transforms:
            images = transform(images, generator=self.generator)
        with self.method.mixing(self.model, images, labels, generator=self.generator) as mixed:
            logits = logits_of(self.model(mixed.images))
        return StepOutput(self.criterion(logits, mixed), logits, mixed)


class ViewsStep(_Step):
    """Train on several views of each image in one pass, with the strategy's own loss, as AugMix does.

    All views stand in one batch, as its authors train it, so that batch norm sees them together; the logits given
    back are those of the images as they came. While warming up only those are shown.
    """

    def __init__(
        self,
        model: nn.Module,
        method: StepStrategy,
        *,
        criterion: Criterion | None = None,
        warmup_steps: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(criterion, warmup_steps, generator)
        if not isinstance(method, StepStrategy):
            raise TypeError(f"method must be a step strategy such as AugMix(), got {type(method).__name__}")
        self.model = model
        self.method = method

    def __call__(
        self, images: Tensor, labels: Tensor, index: Tensor | None = None, geometry: Tensor | None = None
    ) -> StepOutput:
        """Forward pass and loss of one batch: images (B, C, H, W) in the method's domain, labels (B,) or (B, K)."""
        del index, geometry
        check_batch(images, labels)
        if self._count():
            return _plain(self, self.method.prepare(images), labels)
        views = self.method.views(images, generator=self.generator)
        logits = logits_of(self.model(torch.cat(views))).chunk(len(views))
        originals = MixedBatch.unmixed(views[0], labels)
        return StepOutput(self.method.loss(logits, originals, self.criterion), logits[0], None)


class PuzzleMixStep(MixingStep):
    """Train by PuzzleMix with its authors' adversarial noise; one gradient gives the noise and the saliency both.

    Coins for source and destination are thrown once per batch. Where one falls, the gradient is taken from a noisy
    start, still without a trace, and the mixed images show pixels one step further up the loss; where none does, the
    step is that of `MixingStep`. The noise is against the network that the saliency source looks at.
    """

    def __init__(self, model: nn.Module, method: PuzzleMix, **options: Any) -> None:
        if not isinstance(method, PuzzleMix):
            raise TypeError(f"method must be PuzzleMix(), got {type(method).__name__}")
        super().__init__(model, method, **options)
        if not isinstance(self.source, InputGradient) or self.source.of != "loss":
            of = f" of {self.source.of!r}" if isinstance(self.source, InputGradient) else ""
            raise ValueError(
                "saliency_source must be an InputGradient of 'loss' where adversarial_probability is above 0, "
                f"got {type(self.source).__name__}{of}"
            )
        self.slopes: InputGradient = self.source
        self.mixer = method.without_noise()
        self.noise_probability = method.adversarial_probability
        self.radius = method.adversarial_radius
        self.scale = PixelScale(method.pixel_mean, method.pixel_std)

    def __call__(
        self, images: Tensor, labels: Tensor, index: Tensor | None = None, geometry: Tensor | None = None
    ) -> StepOutput:
        """Forward pass and loss of one batch: images (B, C, H, W), labels (B,) or (B, K)."""
        del index, geometry
        check_batch(images, labels)
        checks.label_values(labels)
        if self._count():
            return _plain(self, images, labels)
        drawn = self.mixer.draw(images, generator=self.generator)
        on_source, on_destination = (torch.rand(2, generator=self.generator) < self.noise_probability).tolist()
        shown: tuple[Tensor, Tensor] | None = None
        if on_source or on_destination:
            share = float(torch.rand((), generator=self.generator))
            uniform = draws.to_device(torch.rand(images.shape, generator=self.generator), images.device)
            start = noisy_start(images, uniform.to(images.dtype), self.scale, self.radius)
            gradient = self.slopes.gradient(start, labels)
            # A broken gradient makes a broken map, which its sample is left out for; its pixels must stay whole.
            noisy = adversarial(images, start, gradient.nan_to_num(), share, self.scale, self.radius)
            shown = (noisy if on_source else images, (noisy if on_destination else images)[drawn.partner])
            # Who meets itself, as the passed over do, stays as it was.
            alone = (drawn.partner == torch.arange(len(images), device=images.device))[:, None, None, None]
            shown = (torch.where(alone, images, shown[0]), torch.where(alone, images, shown[1]))
        else:
            gradient = self.slopes.gradient(images, labels)
        mixed = self.mixer.apply(images, labels, gradient_saliency(gradient, self.slopes.over), drawn, shown)
        logits = logits_of(self.model(mixed.images))
        return StepOutput(self.criterion(logits, mixed), logits, mixed)


def training_step(model: nn.Module, methods: Methods, **options: Any) -> _Step:
    """The step that a method, or image transforms with a method after them, trains by; None trains plainly.

    ``training_step(model, [Cutout(), ManifoldMixup()], generator=g)``. `options` go to the step's class.
    """
    parts = [] if methods is None else [methods] if not isinstance(methods, Sequence) else list(methods)
    if not parts:
        return MixingStep(model, **options)
    *before, last = parts
    transforms = _checked(before)
    if isinstance(last, FeatureMixer):
        return FeatureMixingStep(model, last, transforms=transforms, **options)
    if isinstance(last, StepStrategy):
        if transforms:
            raise ValueError(f"{type(last).__name__} must stand alone, got {type(transforms[0]).__name__} before it")
        return ViewsStep(model, last, **options)
    if not isinstance(last, BatchMixer | ImageTransform):
        raise TypeError(f"methods must be methods such as Cutout() or Mixup(), got {type(last).__name__}")
    if isinstance(last, PuzzleMix) and last.adversarial_probability and not transforms:
        return PuzzleMixStep(model, last, **options)
    if any(isinstance(part, PuzzleMix) and part.adversarial_probability for part in _parts(last)):
        raise ValueError(
            "PuzzleMix with an adversarial_probability above 0 must stand alone, got it in a composition or choice"
        )
    method = last if isinstance(last, BatchMixer) and not transforms else Compose([*transforms, last])
    return GraftingStep(model, method, **options) if method.with_originals else MixingStep(model, method, **options)


def _parts(method: object) -> Iterator[object]:
    """The methods that a composition or a choice is made of, at any depth; else the method itself."""
    if isinstance(method, Compose | RandomChoice):
        for part in method.parts if isinstance(method, Compose) else method.methods:
            yield from _parts(part)
    else:
        yield method


def _plain(step: FeatureMixingStep | ViewsStep | PuzzleMixStep, images: Tensor, labels: Tensor) -> StepOutput:
    logits = logits_of(step.model(images))
    return StepOutput(step.criterion(logits, MixedBatch.unmixed(images, labels)), logits, None)


def _checked(transforms: Sequence[object]) -> tuple[ImageTransform[Any], ...]:
    for transform in transforms:
        if not isinstance(transform, ImageTransform):
            raise TypeError(f"transforms must be image transforms such as Cutout(), got {type(transform).__name__}")
    return tuple(transform for transform in transforms if isinstance(transform, ImageTransform))
