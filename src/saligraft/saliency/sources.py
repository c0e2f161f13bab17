"""The saliency sources by name, and `saliency_source`, which turns a name, function or capture into a source.

A training step calls ``logits, saliency = source.with_logits(model, images, labels)``. What that adds to the training
pass, and what a separate call ``source(images, labels)`` costs, in full passes through the network:

| name              | added to a training pass | separate call                 | needs labels |
|-------------------|--------------------------|-------------------------------|--------------|
| feature-map       | nothing                  | 1 forward                     | no           |
| cam               | nothing                  | 1 forward                     | yes          |
| grad-cam          | backward through the head| 1 forward, back through head  | yes          |
| input-gradient    | 1 backward               | 1 forward, 1 backward         | yes          |
| fine-grained      | no pass                  | no pass                       | no           |
| spectral-residual | no pass                  | no pass                       | no           |

The first three read a layer, which their first call finds by one more forward pass. On a transformer's tokens, Grad-CAM
adds a forward and a backward pass to that search.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saligraft import checks
from saligraft.compiling import without_ddp
from saligraft.hooks import Mode, is_compiled, isolated, unwrapped, without_trace
from saligraft.maps import usable_maps
from saligraft.saliency.base import NetworkSource, SaliencySource
from saligraft.saliency.bottom_up import FineGrained, SpectralResidual
from saligraft.saliency.capture import SaliencyCapture
from saligraft.saliency.class_activation import ClassActivation, GradCam
from saligraft.saliency.feature_map import Channels
from saligraft.saliency.find_layer import Site
from saligraft.saliency.input_gradient import InputGradient


class FeatureMap(NetworkSource):
    """Forward saliency, the paper's: Σ_c |A_c| over the channels of the last feature map (§4.3).

    Args:
        model: the network.
        layer: name or module of the layer to read; by default the last one that holds a map of the image.
        mode: mode of the network in a separate call, see `NetworkSource`.
        capture: a `SaliencyCapture` of the model, which may be compiled; by default a new one.
        channels: "sum", or "mean" to divide the map by the number of channels; of a new capture.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> FeatureMap(model)(torch.rand(2, 3, 10, 10)).shape
        torch.Size([2, 8, 8])
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str | nn.Module | None = None,
        mode: Mode = "eval",
        capture: nn.Module | None = None,
        channels: Channels = "sum",
    ) -> None:
        super().__init__(model, mode)
        self.capture = SaliencyCapture(model, layer, channels) if capture is None else capture

    @property
    def site(self) -> Site | None:
        return self._reader.site

    @property
    def where(self) -> str:
        return self._reader.where

    @property
    def _reader(self) -> SaliencyCapture:
        return cast(SaliencyCapture, unwrapped(self.capture))

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:  # noqa: ARG002
        checks.images(images, dims=checks.ANY_SHAPE)
        with torch.no_grad(), without_trace(self.network, images, self.mode):
            model = without_ddp(self.model)  # DDP would synchronise buffers
            return self._captured(model, images)[1] if model is self.model else self._reader.run(model, images)[1]

    def training_pass(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return self._captured(model, images)

    def _captured(self, model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and maps of a pass of the model, or of the capture itself if that is compiled."""
        own = is_compiled(self.capture)
        return cast(tuple[Tensor, Tensor], self.capture(images)) if own else self._reader.run(model, images)


class OwnFunction(SaliencySource):
    """A user's ``function(images) -> saliency`` or ``function(images, labels) -> saliency``.

    It gets the labels if it has a parameter `labels`, or a second one without a default. It works on copies of images
    and labels and leaves no trace in the model: mode, buffers, `.grad`, hooks, and the random states of torch, Python
    and NumPy are the same afterwards, even after an error.

    Args:
        function: function of images (B, C, H, W) that returns maps (B, h, w) or (B, 1, h, w).
        model: the network in training; the function may use it.

    Example:
        >>> OwnFunction(lambda images: images.abs().mean(dim=1))(torch.rand(2, 3, 4, 4)).shape
        torch.Size([2, 4, 4])
    """

    def __init__(self, function: Callable[..., Tensor], model: nn.Module | None = None) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, got {type(function).__name__}")
        self.function, self.model = function, model
        self._labels = _labels_parameter(function)
        self._warned = False

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        checks.images(images, dims=checks.ANY_SHAPE)
        if self._labels is not None and labels is None:
            raise ValueError("labels must be given to the saliency function, which takes them; got None")
        with ExitStack() as stack:
            for model in (self.model, self.function):
                if isinstance(model, nn.Module):
                    stack.enter_context(isolated(model, images))
            truth = {} if self._labels is None or labels is None else {self._labels: labels.clone()}
            saliency = self.function(images.detach().clone(), **truth)
        if isinstance(saliency, Tensor) and saliency.ndim == 4 and saliency.shape[1] == 1:
            saliency = saliency[:, 0]
        checks.saliency(saliency, batch=len(images), name="saliency of the function", like=images)
        if not self._warned and checks.may_look(saliency) and not bool(usable_maps(saliency).any()):
            self._warned = True
            warnings.warn(
                "the saliency function returned no map that is finite and >= 0: nothing is mixed", stacklevel=2
            )
        return checks.at_least_float32(saliency.detach())


def _labels_parameter(function: Callable[..., Tensor]) -> str | None:
    """The name of the parameter of a saliency function that takes the labels; None if it takes images alone."""
    called = unwrapped(function).forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return None
    by_position = [each for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    required = [each.name for each in by_position if each.default is inspect.Parameter.empty]
    if len(required) > 2:
        raise TypeError(f"saliency function must take images, or images and labels, got ({', '.join(required)})")
    second = by_position[1].name if len(by_position) > 1 and by_position[1].default is inspect.Parameter.empty else None
    return "labels" if "labels" in parameters else second


class ResizedImages(SaliencySource):
    """A source that sees the images at another size, as a frozen network was trained on.

    Args:
        source: makes the maps.
        size: height and width of the images that it sees.

    Example:
        >>> ResizedImages(OwnFunction(lambda images: images.abs().mean(dim=1)), 7)(torch.rand(2, 3, 4, 4)).shape
        torch.Size([2, 7, 7])
    """

    def __init__(self, source: SaliencySource, size: int) -> None:
        self.source, self.size = source, size

    @property
    def site(self) -> Site | None:
        return self.source.site

    @property
    def where(self) -> str | None:
        return self.source.where

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        checks.images(images)
        size = (self.size, self.size)
        return self.source(F.interpolate(images, size, mode="bilinear", antialias=True), labels)


SALIENCY_SOURCES: dict[str, type[SaliencySource]] = {
    "feature-map": FeatureMap,
    "cam": ClassActivation,
    "grad-cam": GradCam,
    "input-gradient": InputGradient,
    "fine-grained": FineGrained,
    "spectral-residual": SpectralResidual,
}
SourceLike = str | SaliencySource | Callable[..., Tensor] | None


def source_name(source: SaliencySource) -> str:
    """Return the name of a source in `SALIENCY_SOURCES`, of a user's function, or of its class."""
    if isinstance(source, OwnFunction):
        return str(getattr(source.function, "__name__", type(source.function).__name__))
    return next((name for name, kind in SALIENCY_SOURCES.items() if type(source) is kind), type(source).__name__)


def saliency_source(
    source: SourceLike,
    model: nn.Module,
    *,
    layer: str | nn.Module | None = None,
    **options: Any,
) -> SaliencySource:
    """Build a saliency source from its specification.

    Args:
        source: A name in `SALIENCY_SOURCES`, a `SaliencySource`, a `SaliencyCapture`, which may be compiled, or a
            function of the images, or of images and labels (`OwnFunction`); None for the paper's feature map.
        model: The network that a source given by name reads, if it reads any.
        layer: Name or module of the layer that a source given by name reads.
        options: Further parameters of a source given by name.

    Returns:
        The source; call it with images and labels.

    Example:
        >>> type(saliency_source("cam", nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 5)))).__name__
        'ClassActivation'
    """
    if source is None or isinstance(source, str):
        name = source or "feature-map"
        checks.one_of("saliency source", name, SALIENCY_SOURCES)
        kind = SALIENCY_SOURCES[name]
        if layer is not None and kind in (InputGradient, FineGrained, SpectralResidual):
            raise ValueError(f"layer must not be given for {name!r}, which reads no layer; got {layer!r}")
        arguments = {} if layer is None else {"layer": layer}
        bound: tuple[nn.Module, ...] = (model,) if issubclass(kind, NetworkSource) else ()
        return kind(*bound, **arguments, **options)
    if layer is not None or options:
        names = ", ".join([*(["layer"] if layer is not None else []), *options])
        expected = f"a name, such as 'cam', to go with {names}"
        raise ValueError(f"saliency source must be {expected}, got {type(source).__name__}")
    if isinstance(source, SaliencySource):
        return source
    if isinstance(source, nn.Module) and isinstance(capture := unwrapped(source), SaliencyCapture):
        return FeatureMap(capture.model, capture=source)
    if callable(source):
        return OwnFunction(source, model)
    expected = f"one of {', '.join(map(repr, SALIENCY_SOURCES))}, a SaliencySource or a function of the images"
    raise TypeError(f"saliency source must be {expected}, got {type(source).__name__}")
