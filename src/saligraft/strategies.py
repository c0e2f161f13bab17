"""Training steps for the kinds beside batch mixers, and the step that any method trains by: `training_step`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from saligraft.batch import MixedBatch
from saligraft.methods.base import BatchMixer
from saligraft.methods.compose import Compose
from saligraft.methods.kinds import FeatureMixer, ImageTransform, StepStrategy
from saligraft.methods.kinds import Method as Method
from saligraft.methods.method_choice import MethodChoice
from saligraft.methods.puzzlemix import PuzzleMix
from saligraft.methods.random_choice import RandomChoice
from saligraft.puzzlemix_step import PuzzleMixStep
from saligraft.step import GraftingStep, MixingStep, StepOutput, TrainingStep

Methods = Method | MethodChoice | Sequence[Method | MethodChoice] | None


class FeatureMixingStep(TrainingStep):
    """Train on one pass whose features are mixed inside the network, as Manifold Mixup does.

    `transforms` change the images before that, as in "Cutout + Manifold Mixup"; while warming up neither is done.
    `options` are criterion, warmup_steps and generator, as in `MixingStep`.
    """

    def __init__(
        self,
        model: nn.Module,
        method: FeatureMixer,
        *,
        transforms: Sequence[ImageTransform[Any]] = (),
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        if not isinstance(method, FeatureMixer):
            raise TypeError(f"method must be a feature mixer such as ManifoldMixup(), got {type(method).__name__}")
        self.method = method
        self.transforms = _checked(transforms)

    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        for transform in self.transforms:
            images = transform(images, generator=self.generator)
        with self.method.mixing(self.model, images, labels, generator=self.generator) as mixed:
            logits = self._logits(mixed.images)
        return StepOutput(self.criterion(logits, mixed), logits, mixed)


class ViewsStep(TrainingStep):
    """Train on several views of each image in one pass, with the strategy's own loss, as AugMix does.

    All views stand in one batch, as its authors train it, so that batch norm sees them together; the logits given
    back are those of the images as they came. While warming up only those are shown. `options` are criterion,
    warmup_steps and generator, as in `MixingStep`.
    """

    def __init__(self, model: nn.Module, method: StepStrategy, **options: Any) -> None:
        super().__init__(model, **options)
        if not isinstance(method, StepStrategy):
            raise TypeError(f"method must be a step strategy such as AugMix(), got {type(method).__name__}")
        self.method = method

    def _plain(self, images: Tensor, labels: Tensor) -> StepOutput:
        return super()._plain(self.method.prepare(images), labels)

    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        views = self.method.views(images, generator=self.generator)
        logits = self._logits(torch.cat(views)).chunk(len(views))
        originals = MixedBatch.unmixed(views[0], labels)
        return StepOutput(self.method.loss(logits, originals, self.criterion), logits[0], None)


class ChoiceStep(TrainingStep):
    """Train each batch by the step of one method, drawn from several of any kind; plainly where none is applied.

    `options` are those of the members' steps, and reach the members that have a use for them: a `saliency_source` those
    that need maps (if none does, those that can use them); without one each has its authors'. Under
    DistributedDataParallel all processes follow the first one's draw, since they must make the same passes.
    """

    def __init__(
        self,
        model: nn.Module,
        method: MethodChoice,
        *,
        transforms: Sequence[ImageTransform[Any]] = (),
        warmup_steps: int = 0,
        **options: Any,
    ) -> None:
        shared = {name: options.pop(name) for name in ("criterion", "generator") if name in options}
        super().__init__(model, warmup_steps=warmup_steps, **shared)
        if not isinstance(method, MethodChoice):
            raise TypeError(f"method must be MethodChoice([...]), got {type(method).__name__}")
        self.method = method
        members = [(*transforms, *member) for member in method.members]
        taken = [
            _taken(member, options, "needs_saliency" if method.needs_saliency else "uses_saliency")
            for member in members
        ]
        for name in options:
            if not any(name in each for each in taken):
                raise TypeError(f"{name} must be left out of a choice in which no method has a use for it")
        self.steps = [
            training_step(model, member, **shared, **each) for member, each in zip(members, taken, strict=True)
        ]
        self.with_originals = any(step.with_originals for step in self.steps)

    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        place = self.method.draw(generator=self.generator)
        wrapper = self.model._modules.get("_orig_mod", self.model)  # of a compiled model
        if isinstance(wrapper, DistributedDataParallel):
            place = _of_first_process(place, wrapper, images.device)
        return self._plain(images, labels) if place is None else self.steps[place](images, labels)


def training_step(model: nn.Module, methods: Methods, **options: Any) -> TrainingStep:
    """The step that a method, or image transforms with a method after them, trains by; None trains plainly.

    ``training_step(model, [Cutout(), ManifoldMixup()], generator=g)``. `options` go to the step's class.
    """
    parts = [] if methods is None else [methods] if not isinstance(methods, Sequence) else list(methods)
    if not parts:
        return MixingStep(model, **options)
    *before, last = parts
    transforms = _checked(before)
    if isinstance(last, MethodChoice):
        return ChoiceStep(model, last, transforms=transforms, **options)
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
            "PuzzleMix with an adversarial_probability above 0 must stand alone or in a MethodChoice, "
            "got it in a composition or RandomChoice"
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


def _checked(transforms: Sequence[object]) -> tuple[ImageTransform[Any], ...]:
    for transform in transforms:
        if not isinstance(transform, ImageTransform):
            raise TypeError(f"transforms must be image transforms such as Cutout(), got {type(transform).__name__}")
    return tuple(transform for transform in transforms if isinstance(transform, ImageTransform))


def _taken(member: Sequence[object], options: dict[str, Any], looks: str) -> dict[str, Any]:
    """The options that the step of one member of a choice has a use for; `looks` is the trait of who is given maps."""
    last = member[-1] if member else None
    if isinstance(last, StepStrategy) and not last.normalized:
        raise ValueError(
            f"normalized must be True for {type(last).__name__} in a choice, whose images are those of all"
        )
    names: tuple[str, ...] = ("layer", "saliency_source") if getattr(last, looks, False) else ()
    names += ("copies", "loss_weights") if getattr(last, "with_originals", False) else ()
    return {name: value for name, value in options.items() if name in names}


def _of_first_process(place: int | None, model: DistributedDataParallel, device: torch.device) -> int | None:
    """What the first process drew; -1 stands for None on the way."""
    shared = torch.tensor(-1 if place is None else place, device=device)
    distributed.broadcast(shared, distributed.get_global_rank(model.process_group, 0), group=model.process_group)
    return int(shared) if int(shared) >= 0 else None
