"""One training step: a pass of the originals gives logits and saliency, a pass of the grafts the rest (§4, §5).

`passes="mixed"` and `"remembered"` are cheaper modes that are not in the paper: they train on grafts alone. What
`"remembered"` needs is in `remembering`. `"joint"` reads the paper as one batch of originals and grafts.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from textwrap import indent
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.compiling import Compile, compiled_model
from saligraft.hooks import exclusive_use, find_ddp, is_compiled, unwrapped, wrappers_of
from saligraft.losses import Criterion, batch_loss, check_criterion, mixed_cross_entropy
from saligraft.methods.base import BatchMixer, check_batch, saliency_sources
from saligraft.names import PassPlan
from saligraft.remembering import Recalled, RememberedMaps, check_remembered
from saligraft.saliency.base import NetworkSource, SaliencySource
from saligraft.saliency.capture import logits_of
from saligraft.saliency.memory import SaliencyMemory
from saligraft.saliency.sources import SourceLike, source_name
from saligraft.saliency.sources import saliency_source as saliency_source_of

WITH_ORIGINALS: tuple[PassPlan, ...] = ("both", "joint")


class StepOutput(NamedTuple):
    """What a step returns to the training loop.

    Args:
        loss: Scalar, with gradient: call ``backward()`` on it.
        logits: (B, K), of the originals where they are trained on, else of the last mixed images.
        mixed: The last mixed batch; None where nothing was mixed.

    Example:
        >>> import torch, saligraft as sg
        >>> step = sg.MixingStep(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)))
        >>> step(torch.rand(4, 3, 2, 2), torch.tensor([0, 1, 2, 0]))._fields
        ('loss', 'logits', 'mixed')
    """

    loss: Tensor
    logits: Tensor
    mixed: MixedBatch | None


class TrainingStep(ABC):
    """What all kinds of step share: model, validation, plain steps without any mixing, and the state of a loop.

    Set ``step.enabled = False`` to train without mixing, one plain pass per step; the flag is saved in the state.

    Args:
        model: The network.
        criterion: (logits, targets) -> scalar, targets being dense rows (B, K), such as `torch.nn.CrossEntropyLoss()`;
            one with an attribute ``takes_mixed_batch = True`` gets the `MixedBatch`. By default `mixed_cross_entropy`.
        warmup_steps: Steps without any mixing.
        generator: CPU generator for all random draws; None uses torch's global generator, and the rank where
            torch.distributed runs several processes, whose draws then differ even if they are seeded alike.
        compile: Whether to compile all passes by torch.compile, or the name of a backend, or keyword arguments of
            `torch.compile`. A model that is compiled already, also inside or around DDP, needs nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        criterion: Criterion | None = None,
        warmup_steps: int = 0,
        generator: torch.Generator | None = None,
        compile: Compile = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        checks.whole_number("warmup_steps", warmup_steps, least=0)
        checks.generator(generator)
        if criterion is not None:
            check_criterion(criterion)
        self.model = compiled_model(model, compile)
        self.criterion: Criterion = criterion or mixed_cross_entropy
        self.warmup_steps = warmup_steps
        self.generator = generator
        self.enabled = True
        self.steps_taken = 0
        self._warned_of_zeros = False

    def __call__(
        self, images: Tensor, labels: Tensor, index: Tensor | None = None, geometry: Tensor | None = None
    ) -> StepOutput:
        """Forward passes and loss of one batch.

        Args:
            images: (B, C, H, W); (B, C, T, H, W) or (B, C, L) for methods that take them.
            labels: (B,) or (B, K).
            index: (B,), the place of each sample in the data set; only a step that remembers maps needs it.
            geometry: How images were cropped and flipped, as the laboratory's loaders yield it: top, left, flipped
                (B, 3) of crops as large as the stored image, or top, left, height, width, height and width of the
                stored image, flipped (B, 7). None where the images are the stored ones.
        """
        if torch.compiler.is_compiling():  # in a user's compiled function: hooks and draws cannot be traced
            disable: Callable[..., Any] = torch.compiler.disable
            output: StepOutput = disable(TrainingStep.__call__)(self, images, labels, index, geometry)
            return output
        check_batch(images, labels, checks.ANY_SHAPE)
        checks.label_values(labels)
        recalled = self._recall(images, index, geometry)
        with exclusive_use(self.model):
            self.steps_taken += 1
            return self._step(images, labels, recalled)

    @property
    def enabled(self) -> bool:
        """Whether steps mix; set it to False for plain steps."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"enabled must be True or False, got {value!r}")
        self._enabled = value

    def _stream(self) -> torch.Generator | None:
        """The generator of the next draws."""
        return draws.process_stream() if self.generator is None else self.generator

    @property
    def is_plain(self) -> bool:
        """Whether the current step is one without any mixing: during warm-up, or while `enabled` is False."""
        return not self.enabled or self.steps_taken <= self.warmup_steps

    def _recall(self, images: Tensor, index: Tensor | None, geometry: Tensor | None) -> Recalled | None:  # noqa: ARG002
        """What is remembered of the batch; None for a step that remembers no maps."""
        return None

    def _step(self, images: Tensor, labels: Tensor, recalled: Recalled | None) -> StepOutput:  # noqa: ARG002
        """Passes and loss."""
        return self._plain(images, labels) if self.is_plain else self._train(images, labels)

    def _plain(self, images: Tensor, labels: Tensor) -> StepOutput:
        """One pass of the unchanged images."""
        return self._output(MixedBatch.unmixed(images, labels))._replace(mixed=None)

    def _output(self, mixed: MixedBatch) -> StepOutput:
        """One training pass of a mixed batch, and its loss."""
        logits = self._logits(mixed.images)
        return StepOutput(batch_loss(self.criterion, logits, mixed), logits, mixed)

    def _logits(self, images: Tensor) -> Tensor:
        """One training pass."""
        return logits_of(self.model(images), self.model)

    def _warn_of_zeros(self, source: SaliencySource | None, saliency: Tensor | None) -> None:
        """Warn once that a batch's maps are all zero, unless looking at values would stall a device."""
        if source is None or saliency is None or self._warned_of_zeros:
            return
        if not checks.may_look(saliency) or bool(saliency.any()):
            return
        self._warned_of_zeros = True
        name = source_name(source)
        where = "" if source.site is None else f" at the {source.site}: if this persists, name another layer by layer="
        warnings.warn(f"saliency source {name!r} returned only zero maps for a batch{where}", stacklevel=2)

    def __repr__(self) -> str:
        network, wrappers = type(unwrapped(self.model)).__name__, wrappers_of(self.model)[:-1]
        own = vars(self)
        lines: dict[str, Any] = {"model": " in ".join([network, *(type(part).__name__ for part in reversed(wrappers))])}
        lines |= {name: own[name] for name in ("method", "transforms") if name in own}
        if own.get("source") is not None:
            lines["saliency"] = ", ".join(filter(None, (source_name(own["source"]), own["source"].where)))
        lines |= {name: own[name] for name in ("passes", "copies", "steps") if name in own}
        lines["compiled"] = any(map(is_compiled, wrappers_of(self.model)))
        lines |= {name: getattr(self, name) for name in ("enabled", "steps_taken", "warmup_steps")}
        inner = "\n".join(f"{name}: {value}" for name, value in lines.items())
        return f"{type(self).__name__}(\n{indent(inner, '  ')}\n)"

    @abstractmethod
    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        """Passes and loss once the network is warm."""

    def state_dict(self) -> dict[str, Any]:
        """The steps taken, `enabled` and the generator's state, all that a resumed loop needs."""
        generator = None if self.generator is None else self.generator.get_state()
        return {"steps_taken": self.steps_taken, "enabled": self.enabled, "generator": generator}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state.

        Args:
            state: State returned by `state_dict`.
        """
        self.steps_taken = int(state["steps_taken"])
        self.enabled = bool(state["enabled"])
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"])


class GraftingStep(TrainingStep):
    """Train on originals and grafts: all that a training loop needs (§4, §5).

    Two forward passes: that of the originals gives logits and saliency. Set ``step.enabled = False`` to train without
    mixing; the flag is saved in the state. ``repr(step)`` names the layer that saliency is read from.

    Args:
        model: The network.
        method: A batch mixer.
        layer: Layer whose features give the saliency, as a module or its name; found automatically if None.
        saliency_source: Overrides the method's default source: a name ("cam", "fine-grained", ...), a `SaliencySource`
            or a function of the images, or of images and labels, that returns (B, h, w) or (B, 1, h, w).
        criterion: (logits, targets) -> scalar, targets being dense rows (B, K), such as `torch.nn.CrossEntropyLoss()`;
            one with an attribute ``takes_mixed_batch = True`` gets the `MixedBatch`. By default `mixed_cross_entropy`.
        copies: Grafted batches per step (k of §5.2), each one pass more, with partner, p_B and grid redrawn.
        loss_weights: Loss weights of the originals (if trained on) and of each copy; equal by default, as if all were
            in one batch.
        passes: "both" is the paper: originals and grafts, 2 forward and 2 backward passes. "joint" makes one pass of
            both together, so that batch norm sees them as one batch, after one for the maps as in "mixed": 3 forward, 2
            backward, and twice the memory. "mixed" trains on grafts alone; a forward pass without gradients or side
            effects gives the maps, for Saliency Grafting with batch statistics: 2 forward, 1 backward. "remembered"
            trains on grafts alone and makes no other pass: the feature maps of a step refresh those remembered of its
            samples, which plain steps do too; it needs `index` in each call. A sample without a map yet is neither
            grafted nor grafted onto.
        memory: The table of "remembered"; by default one that grows with the largest index, for which each step reads
            the index on the host.
        warmup_steps: Steps without any mixing.
        generator: CPU generator for all random draws; None uses torch's global generator, and the rank where
            torch.distributed runs several processes, whose draws then differ even if they are seeded alike.
        compile: Whether to compile all passes by torch.compile, or the name of a backend, or keyword arguments of
            `torch.compile`. A model that is compiled already, also inside or around DDP, needs nothing.

    Example:
        >>> import torch, saligraft as sg
        >>> pool = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), *pool, torch.nn.Linear(8, 10))
        >>> step = sg.GraftingStep(model, sg.SaliencyGrafting())
        >>> out = step(torch.rand(4, 3, 32, 32), torch.arange(4))
        >>> out.loss.backward()
        >>> out.logits.shape, out.mixed.images.shape
        (torch.Size([4, 10]), torch.Size([4, 3, 32, 32]))
    """

    def __init__(
        self,
        model: nn.Module,
        method: BatchMixer[Any],
        *,
        layer: str | nn.Module | None = None,
        saliency_source: SourceLike = None,
        criterion: Criterion | None = None,
        copies: int = 1,
        loss_weights: Sequence[float] | None = None,
        passes: PassPlan = "both",
        memory: SaliencyMemory | None = None,
        warmup_steps: int = 0,
        generator: torch.Generator | None = None,
        compile: Compile = False,
    ) -> None:
        super().__init__(model, criterion=criterion, warmup_steps=warmup_steps, generator=generator, compile=compile)
        checks.whole_number("copies", copies, least=1)
        checks.one_of("passes", passes, get_args(PassPlan))
        if not isinstance(method, BatchMixer):
            raise TypeError(f"method must be a batch mixer such as SaliencyGrafting(), got {checks.kind_of(method)}")
        if passes == "both" or (copies > 1 and passes != "joint"):
            _check_two_passes(model)
        self.method = method
        self.source = _source_of(method, self.model, saliency_source, layer)
        self.copies = copies
        self.passes = passes
        self.loss_weights = _loss_weights(loss_weights, copies, originals=passes in WITH_ORIGINALS)
        self.remembered: RememberedMaps | None = None
        if passes == "remembered":
            check_remembered(method, copies)
            self.remembered = RememberedMaps(self.model, method, self.source, memory or SaliencyMemory())
        elif memory is not None:
            raise ValueError(f"memory must be left out unless passes='remembered', got passes={passes!r}")
        if (
            passes in ("joint", "mixed")
            and method.with_originals  # whose maps are those of a training pass by its authors
            and isinstance(self.source, NetworkSource)
            and self.source is not saliency_source
        ):
            self.source.mode = "current"

    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        losses, logits, saliency = [], None, None
        if self.passes == "both":
            if self.source is None:
                logits = self._logits(images)
            else:  # one pass of the originals gives logits and S  (§4.3)
                logits, saliency = self.source.with_logits(self.model, images, labels)
            losses.append(batch_loss(self.criterion, logits, MixedBatch.unmixed(images, labels)))
        elif self.source is not None:
            saliency = self.source(images, labels)
        self._warn_of_zeros(self.source, saliency)
        if self.passes == "joint":
            return self._train_jointly(images, labels, saliency)
        for _ in range(self.copies):
            mixed = self._mix(images, labels, saliency)
            out = self._output(mixed)
            losses.append(out.loss)
        return StepOutput(self._weighted(losses), out.logits if logits is None else logits, mixed)

    def _mix(self, images: Tensor, labels: Tensor, saliency: Tensor | None) -> MixedBatch:
        drawn = self.method.draw(images, generator=self._stream())  # j, grid, P ~ Bern(p_B)
        return self.method.apply(images, labels, saliency, drawn)  # M (Eq. 3-4), φ, λ (Eq. 5)

    def _train_jointly(self, images: Tensor, labels: Tensor, saliency: Tensor | None) -> StepOutput:
        """One pass of the originals and all copies, as one batch."""
        batches = [MixedBatch.unmixed(images, labels)]
        batches += [self._mix(images, labels, saliency) for _ in range(self.copies)]
        logits = self._logits(torch.cat([batch.images for batch in batches])).chunk(len(batches))
        losses = [batch_loss(self.criterion, *part) for part in zip(logits, batches, strict=True)]
        return StepOutput(self._weighted(losses), logits[0], batches[-1])

    def _weighted(self, losses: Sequence[Tensor]) -> Tensor:
        return reduce(add, (weight * loss for weight, loss in zip(self.loss_weights, losses, strict=True)))

    @property
    def memory(self) -> SaliencyMemory | None:
        """The table of remembered maps; None unless ``passes="remembered"``."""
        return None if self.remembered is None else self.remembered.memory

    def _recall(self, images: Tensor, index: Tensor | None, geometry: Tensor | None) -> Recalled | None:
        return None if self.remembered is None else self.remembered.look_up(images, index, geometry)

    def _step(self, images: Tensor, labels: Tensor, recalled: Recalled | None) -> StepOutput:
        if self.remembered is None or recalled is None:
            return super()._step(images, labels, recalled)
        mixed = None if self.is_plain else self.remembered.mix(images, labels, recalled, self._stream())
        shown = mixed or MixedBatch.unmixed(images, labels)
        logits, saliency = self.remembered.training_pass(shown, labels, recalled.views)
        self._warn_of_zeros(self.source, saliency)
        return StepOutput(batch_loss(self.criterion, logits, shown), logits, mixed)

    def state_dict(self) -> dict[str, Any]:
        """The state of `TrainingStep` and the remembered maps, all that a resumed loop needs."""
        own = {} if self.memory is None else {"memory": self.memory.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.memory is not None:
            if "memory" not in state:
                raise ValueError("state must be that of a step with passes='remembered', got one without its maps")
            self.memory.load_state_dict(state["memory"])
        super().load_state_dict(state)


class MixingStep(TrainingStep):
    """Train on mixed images only, in one pass, as the authors of the baselines do; without a method, plainly.

    Saliency of a network costs a separate pass, without side effects.

    Args:
        model: The network.
        method: A batch mixer; None for plain training.
        layer: Layer whose features give the saliency, as a module or its name; found automatically if None.
        saliency_source: Overrides the method's default source, as in `GraftingStep`.
        criterion: (logits, targets) -> scalar, targets being dense rows (B, K), such as `torch.nn.CrossEntropyLoss()`;
            one with an attribute ``takes_mixed_batch = True`` gets the `MixedBatch`. By default `mixed_cross_entropy`.
        warmup_steps: Steps without any mixing.
        generator: CPU generator for all random draws; None uses torch's global generator, and the rank where
            torch.distributed runs several processes, whose draws then differ even if they are seeded alike.
        compile: Whether to compile all passes by torch.compile, or the name of a backend, or keyword arguments of
            `torch.compile`. A model that is compiled already, also inside or around DDP, needs nothing.

    Example:
        >>> import torch, saligraft as sg
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
        >>> sg.MixingStep(model, sg.CutMix())(torch.rand(4, 3, 8, 8), torch.arange(4)).loss.backward()
    """

    def __init__(
        self,
        model: nn.Module,
        method: BatchMixer[Any] | None = None,
        *,
        layer: str | nn.Module | None = None,
        saliency_source: SourceLike = None,
        criterion: Criterion | None = None,
        warmup_steps: int = 0,
        generator: torch.Generator | None = None,
        compile: Compile = False,
    ) -> None:
        super().__init__(model, criterion=criterion, warmup_steps=warmup_steps, generator=generator, compile=compile)
        if method is not None and not isinstance(method, BatchMixer):
            raise TypeError(f"method must be a batch mixer such as CutMix(), got {checks.kind_of(method)}")
        self.method = method
        self.source = _source_of(method, self.model, saliency_source, layer)

    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        if self.method is None:
            return self._plain(images, labels)
        saliency = None if self.source is None else self.source(images, labels)
        self._warn_of_zeros(self.source, saliency)
        drawn = self.method.draw(images, generator=self._stream())
        return self._output(self.method.apply(images, labels, saliency, drawn))


def _source_of(
    method: BatchMixer[Any] | None, model: nn.Module, source: SourceLike, layer: str | nn.Module | None
) -> SaliencySource | None:
    """The requested source, else the one that the method's authors use; None where no map is needed."""
    if source is None and method is not None and method.needs_saliency:
        source, *others = saliency_sources([method])
        if others:
            names = ", ".join((source, *others))
            raise ValueError(f"saliency_source must be given for methods whose own sources differ ({names})")
    if source is not None:
        return saliency_source_of(source, model, layer=layer)
    if layer is not None:
        raise ValueError(f"layer must be given only where saliency is needed, got {layer!r}")
    return None


def _loss_weights(weights: Sequence[float] | None, copies: int, originals: bool) -> tuple[float, ...]:
    parts = copies + originals
    if weights is None:
        return (1 / parts,) * parts
    if not isinstance(weights, Sequence):
        raise TypeError(f"loss_weights must be a sequence of numbers, got {type(weights).__name__}")
    if len(weights) != parts:
        names = "originals, copies" if originals else "copies"
        raise ValueError(f"loss_weights must have {parts} entries ({names}), got {len(weights)}")
    for weight in weights:
        checks.not_negative("each of loss_weights", weight)
    if not sum(weights):
        raise ValueError(f"loss_weights must not all be 0, got {tuple(weights)}")
    return tuple(weights)


def _check_two_passes(model: nn.Module) -> None:
    """Before torch 2.13 DDP's copy of the buffers at each pass made the backward of the pass before it fail."""
    old, ddp = torch.__version__ < "2.13", find_ddp(model)  # fails on 2.4, works on 2.13
    if old and ddp is not None and ddp.broadcast_buffers:
        raise ValueError(
            "model must be wrapped by DistributedDataParallel(..., broadcast_buffers=False) on torch older than 2.13, "
            f"since a step makes two passes; got broadcast_buffers=True on torch {torch.__version__}"
        )
