"""Logits and saliency from one and the same forward pass (§4.3: "based on the terms already calculated").

The map is S = Σ_c |A_c| of the last activation before spatial size is pooled away, computed inside a forward hook that
is set only while the pass runs: later in-place operations cannot change it, and no feature map is kept alive.
Shapes: B batch, H W pixels, h w cells of the map.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from saligraft import checks
from saligraft.compiling import noticed
from saligraft.hooks import exclusive_use, first_tensor, hooked, layer_name, refuse_replicas, unwrapped
from saligraft.saliency.feature_map import Channels, sum_channels
from saligraft.saliency.find_layer import Site, find_maps
from saligraft.saliency.token_maps import channels_first, image_shape


class SaliencyCapture(nn.Module):
    """Get logits and saliency from one training pass (§4.3): ``logits, saliency = capture(images)``.

    Saliency is (B, h, w), detached, in float32 (float64 for a float64 network). The layer is found in the first call,
    by an extra pass without side effects, unless it is named. `layer_name` says which it is, and `site` whether its
    output or its input is read. The model is used as it is, not copied, and keeps no hook. If it returns several
    values, the logits among them are returned. A compiled model runs compiled, with the map computed in its graph.

    Args:
        model: A classifier, bare, compiled, or wrapped by DDP, or by DataParallel on one device.
        layer: Dotted name or module of the layer to read; by default the last one that holds a map of the image.
        channels: "sum", or "mean" to divide the map by the number of channels, as in `feature_saliency`.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> capture = SaliencyCapture(model)
        >>> logits, saliency = capture(torch.rand(2, 3, 10, 10))
        >>> logits.shape, saliency.shape, capture.layer_name
        (torch.Size([2, 5]), torch.Size([2, 8, 8]), '1')
    """

    def __init__(self, model: nn.Module, layer: str | nn.Module | None = None, channels: Channels = "sum") -> None:
        super().__init__()
        checks.one_of("channels", channels, get_args(Channels))
        _keep_out_of_graphs()
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self.model = model
        self.layer_name = None if layer is None else layer_name(layer, unwrapped(model))
        self.channels = channels
        self.site: Site | None = None
        self.candidates: list[Site] = []  # all maps of the image, in the order of the pass

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.run(self.model, images)

    def run(self, model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """As a call, with a pass of the model in other wrappers.

        Args:
            model: the model of this capture, compiled or in DDP.
            images: (B, C, H, W).

        Returns:
            Logits (B, K), with gradient, and saliency (B, h, w).
        """
        recorder, attached = self._attach(model, images)
        try:
            output = _run(model, images)
            return self._result(output, recorder, images)
        finally:
            self._detach(attached)

    def _attach(self, model: nn.Module, images: Tensor) -> tuple[_Recorder, ExitStack]:
        """Set the hook, in the first call after a search for the layer; the stack undoes all."""
        checks.images(images, dims=checks.ANY_SHAPE)
        refuse_replicas(model)
        with ExitStack() as attached:
            attached.enter_context(exclusive_use(model))
            if self.site is None:
                self.find(images)
            assert self.site is not None
            recorder = _recorders.get(self) or _recorders.setdefault(
                self, _record(self.site, mean=self.channels == "mean")
            )
            recorder.thread[:] = [threading.get_ident()]
            for seen in (recorder.maps, recorder.misfits):
                attached.callback(seen.clear)
            layer = unwrapped(unwrapped(model).get_submodule(self.site.name))  # inside its own compilation, if any
            attached.enter_context(hooked(layer, recorder.hook, self.site.side))
            attached.enter_context(noticed(layer))
            return recorder, attached.pop_all()

    def _detach(self, attached: ExitStack) -> None:
        attached.close()

    def find(self, images: Tensor, *, after_norm: bool = False) -> Tensor:
        """Find the layer, as the first call does, by a pass without side effects.

        Args:
            images: (B, C, H, W).
            after_norm: whether the layer may be a norm of tokens, see `find_layer`.

        Returns:
            Logits of that pass, (B, K).
        """
        output, self.candidates = find_maps(unwrapped(self.model), images, self.layer_name, after_norm=after_norm)
        self.site = self.candidates[-1]
        self.layer_name = self.site.name
        return logits_of(output)

    def _result(self, output: Any, recorder: _Recorder, images: Tensor) -> tuple[Tensor, Tensor]:
        site, image = self.site, image_shape(images)
        assert site is not None
        logits = logits_of(output, self.model)
        if not recorder.maps and not recorder.misfits:
            raise RuntimeError(
                f"the {site} did not pass through its hook in this call, so there is no saliency map: if the layer "
                "runs in some passes only, name another by layer="
            )
        saliency = recorder.maps[-1] if recorder.maps else None
        if saliency is None or saliency.shape[0] != image.batch:
            shape = tuple(saliency.shape) if saliency is not None else recorder.misfits[-1]
            raise ValueError(
                f"the {site} must be a map of the image with more than one cell; "
                f"for images of {image.height}x{image.width} it has shape {shape}: name another layer by layer="
            )
        if saliency.ndim == 2:  # tokens
            saliency = saliency.reshape(image.batch, *site.grid(saliency.shape[1], image))
        return logits, saliency

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy, or unpickled in another process
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _keep_out_of_graphs()

    def extra_repr(self) -> str:
        return self.where

    @property
    def where(self) -> str:
        """Which layer is read, in words."""
        if self.site is None and self.layer_name is None:
            return "layer found in the first call"
        return f"layer {self.layer_name!r}" if self.site is None else str(self.site)


class _Recorder(NamedTuple):
    hook: Callable[..., None]
    maps: list[Tensor]
    misfits: list[tuple[int, ...]]
    thread: list[int]  # passes of other threads, which run through the same hook, are not this one's


# Function and lists stay the same from call to call, so that code compiled with them is reused.
_recorders: weakref.WeakKeyDictionary[SaliencyCapture, _Recorder] = weakref.WeakKeyDictionary()


def _record(site: Site, *, mean: bool) -> _Recorder:
    """Make the hook that computes the map, (B, h, w), or (B, N) for tokens."""
    maps: list[Tensor] = []
    misfits: list[tuple[int, ...]] = []
    thread: list[int] = []
    is_output, tokens = site.side == "output", site.layout.axes in ("bnc", "nbc")

    def hook(_: nn.Module, arguments: tuple[Any, ...], output: object = None) -> None:
        if not torch.compiler.is_compiling() and threading.get_ident() not in thread:
            return
        features = first_tensor(output if is_output else arguments)
        if features is None:
            return
        if features.ndim != len(site.layout.axes):  # a module used twice, say a ReLU in trunk and head
            misfits.append(tuple(features.shape))
            return
        if site.activation is not None:
            features = site.activation(features.detach())
        features = channels_first(features, site.layout)
        if features.shape[2] * features.shape[3] < 2:
            misfits.append(tuple(features.shape))
            return
        saliency = sum_channels(features, nonnegative=site.nonnegative, mean=mean)
        maps.append(saliency.flatten(1) if tokens else saliency)

    return _Recorder(hook, maps, misfits, thread)


def _run(model: nn.Module, images: Tensor) -> Any:
    """Call the model in a separate function, so that Dynamo compiles this frame with the hook already set."""
    return model(images)


@functools.cache
def _keep_out_of_graphs() -> None:
    """Setting a hook cannot be traced: `run` runs as plain Python around `_run`, which is compiled.

    Done when the first capture is made, not by decorators, which would double the time to import this package.
    """
    disable: Callable[..., Any] = torch.compiler.disable
    for name in ("forward", "run", "_attach", "_result", "_detach"):
        recursive = name not in ("forward", "run")
        setattr(SaliencyCapture, name, disable(getattr(SaliencyCapture, name), recursive=recursive))


_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # networks whose dropped outputs were named


def logits_of(output: Any, trained: nn.Module | None = None) -> Tensor:
    """Return the logits of whatever a classifier returns.

    Args:
        output: a tensor, an object with `.logits`, a mapping with a "logits" entry, or a tuple that starts with them.
        trained: the model, if in training: a warning then names, once, what else would get a gradient and is dropped,
            such as an auxiliary head.
    """
    place, dropped = "output", []
    while not isinstance(output, Tensor):
        parts = _parts(output)
        main = "logits" if "logits" in parts else next(iter(parts), None)
        if main is None:
            raise TypeError(
                "model must return logits as a tensor, as `.logits`, as a 'logits' entry or first in a tuple, "
                f"got {type(output).__name__}"
            )
        for name, part in parts.items():
            tensor = first_tensor(part)
            if name != main and tensor is not None and tensor.requires_grad:
                dropped.append(f"{place}[{name!r}]")
        output, place = parts[main], f"{place}[{main!r}]"
    if dropped and trained is not None and (network := unwrapped(trained)) not in _warned:
        _warned.add(network)
        warnings.warn(
            f"only the logits of {type(network).__name__} are trained on; its other outputs are dropped, and heads of "
            f"their own get no gradient: {', '.join(dropped)}",
            stacklevel=2,
        )
    return output


def _parts(output: Any) -> dict[Any, Any]:
    """What a model returned, by name or, in a plain tuple or list, by position; empty if it holds no logits."""
    if isinstance(output, Mapping):
        return dict(output) if "logits" in output else {}
    if isinstance(output, tuple | list):
        return dict(zip(getattr(output, "_fields", range(len(output))), output, strict=True))
    return {**getattr(output, "__dict__", {}), "logits": output.logits} if hasattr(output, "logits") else {}
