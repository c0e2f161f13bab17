"""Training steps for methods other than batch mixers, and `training_step`, which picks the step for any method."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from saligraft import checks
from saligraft.batch import MixedBatch
from saligraft.hooks import find_ddp
from saligraft.losses import batch_loss
from saligraft.methods.base import BatchMixer, saliency_sources
from saligraft.methods.choice import MethodChoice
from saligraft.methods.compose import Compose
from saligraft.methods.kinds import FeatureMixer, ImageTransform, Method, StepStrategy
from saligraft.methods.puzzlemix import PuzzleMix
from saligraft.step import GraftingStep, MixingStep, StepOutput, TrainingStep
from saligraft.steps.puzzlemix import PuzzleMixStep

Methods = Method | MethodChoice | Sequence[Method | MethodChoice] | None


class FeatureMixingStep(TrainingStep):
    """Train on one pass whose features are mixed inside the network, as Manifold Mixup does.

    Args:
        model: The network.
        method: A feature mixer.
        transforms: Image transforms applied first, as in "Cutout + Manifold Mixup"; not during warm-up.
        **options: criterion, warmup_steps, generator and compile, as in `MixingStep`.

    Example:
        >>> import torch, saligraft as sg
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
        >>> step = sg.FeatureMixingStep(model, sg.ManifoldMixup(layers=["input"]))
        >>> step(torch.rand(4, 3, 8, 8), torch.arange(4)).loss.backward()
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
        self.transforms = _check_transforms(transforms)

    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        for transform in self.transforms:
            images = transform(images, generator=self._stream())
        with self.method.mixing(self.model, images, labels, generator=self._stream()) as mixed:
            return self._output(mixed)


class ViewsStep(TrainingStep):
    """Train on several views of each image in one pass, with the strategy's own loss, as AugMix does.

    All views are in one batch, as in AugMix's authors' code, so that batch norm sees them together; the returned logits
    are those of the unchanged images. During warm-up only the unchanged images are used.

    Args:
        model: The network.
        method: A step strategy.
        **options: criterion, warmup_steps, generator and compile, as in `MixingStep`.

    Example:
        >>> import torch, saligraft as sg
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
        >>> sg.ViewsStep(model, sg.AugMix())(torch.rand(4, 3, 8, 8), torch.arange(4)).logits.shape
        torch.Size([4, 10])
    """

    def __init__(self, model: nn.Module, method: StepStrategy, **options: Any) -> None:
        super().__init__(model, **options)
        if not isinstance(method, StepStrategy):
            raise TypeError(f"method must be a step strategy such as AugMix(), got {type(method).__name__}")
        self.method = method

    def _plain(self, images: Tensor, labels: Tensor) -> StepOutput:
        return super()._plain(self.method.prepare(images), labels)

    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        views = self.method.views(images, generator=self._stream())
        logits = self._logits(torch.cat(views)).chunk(len(views))
        originals = MixedBatch.unmixed(views[0], labels)
        criterion = partial(batch_loss, self.criterion)
        return StepOutput(self.method.loss(logits, originals, criterion), logits[0], None)


class ChoiceStep(TrainingStep):
    """Train each batch with the step of one method, drawn from several of any kind; plainly if none is drawn.

    Under DistributedDataParallel all processes use the first one's draw, since they must make the same passes.

    Args:
        model: The network.
        method: The choice.
        transforms: Image transforms applied before the drawn method.
        warmup_steps: Steps without any mixing.
        **options: Options of the methods' steps, passed to each step that has them. A `saliency_source` applies to the
            methods that need maps (if none does, to those that can use them); by default each uses its authors'.

    Example:
        >>> import torch, saligraft as sg
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
        >>> step = sg.ChoiceStep(model, sg.MethodChoice([None, sg.Mixup(), sg.CutMix()]))
        >>> step(torch.rand(4, 3, 8, 8), torch.arange(4)).loss.backward()
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
        shared = {name: options.pop(name) for name in ("criterion", "generator", "compile") if name in options}
        super().__init__(model, warmup_steps=warmup_steps, **shared)
        if not isinstance(method, MethodChoice):
            raise TypeError(f"method must be MethodChoice([...]), got {type(method).__name__}")
        if options.get("passes") == "remembered":
            raise ValueError("passes must not be 'remembered' in a choice among steps, not all of which refresh maps")
        self.method = method
        members = [(*transforms, *member) for member in method.methods]
        accepted = [_accepted_options(member, options, method.needs_saliency) for member in members]
        for name in options:
            if not any(name in each for each in accepted):
                raise TypeError(f"{name} must be left out of a choice in which no method uses it")
        self.steps = [
            training_step(self.model, member, **shared, **each) for member, each in zip(members, accepted, strict=True)
        ]

    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        place = self.method.draw(generator=self.generator)  # not of `_stream`: all processes make the same passes
        ddp = find_ddp(self.model)
        if ddp is not None:
            place = _of_first_process(place, ddp, images.device)
        return self._plain(images, labels) if place is None else self.steps[place](images, labels)


def training_step(model: nn.Module, methods: Methods, **options: Any) -> TrainingStep:
    """Build the step that trains with a method of any kind.

    Args:
        model: The network.
        methods: A method, image transforms followed by a method, a `MethodChoice`, or None for plain training.
        **options: Options of the step's class. With `passes` any batch mixer is trained by `GraftingStep`, so that
            "both" trains on originals and mixed images also where its authors train on mixed images only.

    Returns:
        A step to call with images and labels.

    Example:
        >>> import torch, saligraft as sg
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
        >>> type(sg.training_step(model, [sg.Cutout(size=4), sg.Mixup()], warmup_steps=100)).__name__
        'MixingStep'
    """
    step, arguments = resolve_step(methods)
    if "passes" in options and step not in (GraftingStep, ChoiceStep):
        if step is not MixingStep or not arguments:
            name = type(arguments["method"]).__name__ if arguments else "plain training"
            raise TypeError(f"passes must be left out for {name}, which is trained by {step.__name__}")
        step = GraftingStep
    return step(model, **arguments, **options)


def resolve_step(methods: Methods) -> tuple[type[TrainingStep], dict[str, Any]]:
    """Return the step class for the methods and the arguments they determine; raise an error if there is none.

    Args:
        methods: Methods, as in `training_step`.
    """
    parts = [] if methods is None else list(methods) if isinstance(methods, Sequence) else [methods]
    if not parts:
        return MixingStep, {}
    *before, last = parts
    transforms = _check_transforms(before)
    if isinstance(last, MethodChoice):
        for member in last.methods:
            resolve_step((*transforms, *member))
        return ChoiceStep, {"method": last, "transforms": transforms}
    if isinstance(last, FeatureMixer):
        return FeatureMixingStep, {"method": last, "transforms": transforms}
    if isinstance(last, StepStrategy):
        if transforms:
            raise ValueError(f"{type(last).__name__} must be used alone, got {type(transforms[0]).__name__} before it")
        return ViewsStep, {"method": last}
    if not isinstance(last, BatchMixer | ImageTransform):
        raise TypeError(f"methods must be methods such as Cutout() or Mixup(), got {checks.kind_of(last)}")
    method = last if isinstance(last, BatchMixer) and not transforms else Compose([*transforms, last])
    step = GraftingStep if method.with_originals else MixingStep
    if method.makes_noise and type(method) is not PuzzleMix:
        raise ValueError(
            "a method with an adversarial_probability above 0 must be used alone or in a MethodChoice, "
            f"got it in {type(method).__name__}"
        )
    return PuzzleMixStep if method.makes_noise else step, {"method": method}


def _check_transforms(transforms: Sequence[object]) -> tuple[ImageTransform[Any], ...]:
    for transform in transforms:
        if not isinstance(transform, ImageTransform):
            raise TypeError(f"transforms must be image transforms such as Cutout(), got {type(transform).__name__}")
    return tuple(transform for transform in transforms if isinstance(transform, ImageTransform))


def _accepted_options(member: Sequence[Method | MethodChoice], options: dict[str, Any], needed: bool) -> dict[str, Any]:
    """The options for the step of one method in a choice; maps go to those that need them, if any does."""
    if not member:
        return {}
    last = member[-1]
    if isinstance(last, StepStrategy) and not last.normalized:
        raise ValueError(f"normalized must be True for {type(last).__name__} in a choice, where images are shared")
    uses_maps = last.needs_saliency if needed else bool(saliency_sources([last]))
    names = ("layer", "saliency_source") * uses_maps + ("copies", "loss_weights", "passes") * last.with_originals
    return {name: value for name, value in options.items() if name in names}


def _of_first_process(place: int | None, ddp: DistributedDataParallel, device: torch.device) -> int | None:
    """Return the first process's draw, encoded as -1 for None."""
    shared = torch.tensor(-1 if place is None else place, device=device)
    distributed.broadcast(shared, distributed.get_global_rank(ddp.process_group, 0), group=ddp.process_group)
    return int(shared) if int(shared) >= 0 else None
