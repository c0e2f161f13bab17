"""The saliency sources by name, and the one way to name, give or make one.

A training step asks ``logits, saliency = source.with_logits(model, images, labels)``. What that adds to the training
pass, and what ``source(images, labels)`` costs by itself, in whole passes through the network:

| name              | added to a training pass | by itself                     | needs labels |
|-------------------|--------------------------|-------------------------------|--------------|
| feature-map       | nothing                  | 1 forward                     | no           |
| cam               | nothing                  | 1 forward                     | yes          |
| grad-cam          | backward through the head| 1 forward, back through head  | yes          |
| input-gradient    | 1 backward               | 1 forward, 1 backward         | yes          |
| fine-grained      | no pass                  | no pass                       | no           |
| spectral-residual | no pass                  | no pass                       | no           |

Those that look at a layer, the first three, make one more forward pass in their first call, to find it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from saligraft import checks
from saligraft.saliency.base import Mode, NetworkSource, Passes, SaliencySource, without_trace
from saligraft.saliency.bottom_up import FineGrained, SpectralResidual
from saligraft.saliency.capture import SaliencyCapture
from saligraft.saliency.class_activation import ClassActivation, GradCam
from saligraft.saliency.find_layer import Site
from saligraft.saliency.input_gradient import InputGradient


class FeatureMap(NetworkSource):
    """Forward saliency, the paper's: Σ_c |A_c| over the channels of the last feature map (§4.3)."""

    alone: ClassVar[Passes] = Passes(1, 0)
    shared: ClassVar[Passes] = Passes(0, 0)

    def __init__(
        self,
        model: nn.Module,
        layer: str | nn.Module | None = None,
        mode: Mode = "eval",
        capture: nn.Module | None = None,
    ) -> None:
        """`capture` is one already made of the model, perhaps compiled; by default one is made here."""
        super().__init__(model, mode)
        self.capture = SaliencyCapture(model, layer) if capture is None else capture
        # DDP would exchange buffers also in a pass that is to leave no trace.
        self._quiet = self.capture if self.network is model else SaliencyCapture(self.network, layer)

    @property
    def site(self) -> Site | None:
        site: Site | None = getattr(self.capture, "site", None) or getattr(self._quiet, "site", None)
        return site

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        del labels  # whatever the class
        checks.images(images)
        with torch.no_grad(), without_trace(self.network, images, self.mode):
            result: tuple[Tensor, Tensor] = self._quiet(images)
        return result[1]

    def training_pass(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        del labels
        result: tuple[Tensor, Tensor] = self.capture(images)
        return result


class OwnFunction(SaliencySource):
    """A user's own ``function(images) -> saliency``; what it leaves behind is its own affair."""

    alone: ClassVar[Passes] = Passes(0, 0)
    shared: ClassVar[Passes] = Passes(0, 0)

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, got {type(function).__name__}")
        self.function = function
        self._warned = False

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        del labels
        checks.images(images)
        saliency = self.function(images)
        checks.saliency(saliency, batch=len(images), name="saliency of the given function")
        checks.same_device("saliency of the given function", saliency, images)
        if checks.may_look(saliency) and not bool(checks.usable_maps(saliency).any()) and not self._warned:
            self._warned = True
            warnings.warn(
                "the given saliency function gave no map that is finite and >= 0: nothing is mixed", stacklevel=2
            )
        return checks.at_least_float32(saliency.detach())


SALIENCY_SOURCES: dict[str, type[SaliencySource]] = {
    "feature-map": FeatureMap,
    "cam": ClassActivation,
    "grad-cam": GradCam,
    "input-gradient": InputGradient,
    "fine-grained": FineGrained,
    "spectral-residual": SpectralResidual,
}


SourceLike = str | SaliencySource | Callable[[Tensor], Tensor] | None


def saliency_source(
    source: SourceLike,
    model: nn.Module,
    *,
    layer: str | nn.Module | None = None,
    **options: Any,
) -> SaliencySource:
    """Whatever names or makes a source, as a source: a name, a source, a function of the images, None for the paper's.

    By name it looks at `model`, if it looks at any network at all; `layer` and `options` go to the source named.
    """
    if source is None or isinstance(source, str):
        name = source or "feature-map"
        checks.one_of("saliency source", name, SALIENCY_SOURCES)
        made = SALIENCY_SOURCES[name]
        if layer is not None and made in (InputGradient, FineGrained, SpectralResidual):
            raise ValueError(f"layer must not be given for {name!r}, which looks at no layer; got {layer!r}")
        arguments = {} if layer is None else {"layer": layer}
        bound: tuple[nn.Module, ...] = (model,) if issubclass(made, NetworkSource) else ()
        return made(*bound, **arguments, **options)
    if layer is not None or options:
        raise ValueError("layer and options must not be given with a source that is already made")
    if isinstance(source, SaliencySource):
        return source
    capture = source._modules.get("_orig_mod", source) if isinstance(source, nn.Module) else None
    if isinstance(source, nn.Module) and isinstance(capture, SaliencyCapture):
        return FeatureMap(capture.model, capture=source)
    if callable(source):
        return OwnFunction(source)
    expected = f"one of {', '.join(map(repr, SALIENCY_SOURCES))}, a SaliencySource or a function of the images"
    raise TypeError(f"saliency source must be {expected}, got {type(source).__name__}")
