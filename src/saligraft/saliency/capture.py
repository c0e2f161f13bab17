"""Logits and saliency from one and the same forward pass (§4.3: "based on the terms already calculated").

The map is S = Σ_c |A_c| of the last activation before spatial size is pooled away, computed inside a forward hook that
stands only while the pass runs: in-place operations that follow cannot change it, and no feature map is kept alive.
Shapes: B batch, H W pixels, h w cells of the map.
"""

from __future__ import annotations

import difflib
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from saligraft import checks
from saligraft.saliency.feature_map import feature_saliency
from saligraft.saliency.find_layer import Site, Watch, first_tensor, is_compiled, without_trace
from saligraft.saliency.token_maps import Grid, ImageShape, channels_first, image_shape, token_grid
from saligraft.threads import exclusive_use

SHOWN_NAMES = 12  # an error that lists every module of a large network hides its own first line
COMPILE_THE_CAPTURE = (
    "build the capture from the uncompiled model and compile that, torch.compile(SaliencyCapture(model)); "
    "a training step takes it as saliency_source"
)


class SaliencyCapture(nn.Module):
    """`logits, saliency = capture(images)`: one training pass gives both; saliency (B, h, w), float32, detached.

    The layer is found in the first call, by an extra pass that leaves no trace (`find_layer`), or named by `layer`, a
    dotted name or a module. `layer_name` says which it is, as named inside the network that DDP wraps, and `site`
    whether its output or its input is taken. The model is used as it is, not copied, and keeps no hook. Of outputs with
    several parts the logits are returned (`logits_of`). A float64 network gives a float64 map.

    With compilation, compile the capture: `torch.compile(SaliencyCapture(model))`.
    """

    def __init__(self, model: nn.Module, layer: str | nn.Module | None = None) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self.model = model
        self.layer_name = None if layer is None else _name_of(layer, wrappers_of(model)[-1])
        self.site: Site | None = None
        self._seen: tuple[ImageShape, Grid] | None = None
        self._taps = threading.local()
        _keep_out_of_graphs()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tap, attached = self._attach(images)
        try:
            output = _run(self.model, images)
            return self._result(output, tap, images)
        finally:
            self._detach(attached)

    def _attach(self, images: Tensor) -> tuple[_Tap, ExitStack]:
        """Set the hook, in the first call after a search for where; the stack undoes all."""
        checks.images(images)
        with ExitStack() as attached:
            attached.enter_context(exclusive_use(self.model))
            wrappers = wrappers_of(self.model)
            _refuse_compiled(wrappers, self.layer_name)
            site = self.site or self.find(images)[1]
            # One tap per thread: passes of other threads, which run through the same hook, are not this one's.
            tap: _Tap | None = getattr(self._taps, "tap", None)
            if tap is None:
                tap = self._taps.tap = _make_tap(site)
            hooks = _hooks_at(site, wrappers[-1])
            hooks[tap.key] = tap.hook
            for undo in (tap.maps.clear, tap.misfits.clear, lambda: hooks.pop(tap.key, None)):
                attached.callback(undo)
            return tap, attached.pop_all()

    def _detach(self, attached: ExitStack) -> None:
        attached.close()

    def find(self, images: Tensor) -> tuple[Tensor, Site, Grid]:
        """Decide where the map is, by a pass of its own: the logits of that pass, the place, and the map's cells.

        It leaves no graph behind: a compiled training pass, which writes batch-norm statistics in place, would make the
        backward of an uncompiled one before it fail.
        """
        network = wrappers_of(self.model)[-1]
        watch = Watch(network, images, self.layer_name)
        with torch.no_grad(), without_trace(network, images, "current"), watch.on():
            output = network(images)
        site, image = watch.site(), image_shape(images)
        if site is None or watch.reading is None:
            raise _no_map(self.layer_name, watch.outputs, image)
        if watch.stray_tokens is not None and self.layer_name is None:
            raise ValueError(
                f"model must keep its tokens as a grid up to pooling, but after the {site} it works on tokens of shape "
                f"{watch.stray_tokens}, as when patches are dropped: switch that off, or name a layer by layer="
            )
        self.site, self.layer_name, self._seen = site, site.name, (image, watch.reading.grid)
        return logits_of(output), site, watch.reading.grid

    def _result(self, output: Any, tap: _Tap, images: Tensor) -> tuple[Tensor, Tensor]:
        return logits_of(output, self.model), self._as_map(tap, image_shape(images))

    def _as_map(self, tap: _Tap, image: ImageShape) -> Tensor:
        if not tap.maps and not tap.misfits:
            raise RuntimeError(
                f"the {self.site} did not pass through its hook in this call, so there is no saliency map. "
                f"If the model or a part of it is compiled, {COMPILE_THE_CAPTURE}. "
                "If the layer runs in some passes only, name another by layer=."
            )
        saliency = tap.maps[-1] if tap.maps else None
        if saliency is None or saliency.shape[0] != image.batch:
            shape = tuple(saliency.shape) if saliency is not None else tap.misfits[-1]
            raise ValueError(
                f"the {self.site} must be a map of the image with more than one cell; "
                f"for images of {image.height}x{image.width} it has shape {shape}: name another layer by layer="
            )
        if not tap.tokens:
            return saliency
        return saliency.reshape(image.batch, *self._grid(saliency.shape[1], image))

    def _grid(self, cells: int, image: ImageShape) -> Grid:
        if self._seen is not None and self._seen[0][1:] == image[1:] and self._seen[1][0] * self._seen[1][1] == cells:
            return self._seen[1]
        grid = token_grid(cells, image)
        if grid is None:
            raise ValueError(
                f"the {self.site} must be tokens that form a grid over {image.height}x{image.width} images, "
                f"got {cells} tokens after the prefix: name another layer by layer="
            )
        return grid

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_taps"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._taps = threading.local()
        _keep_out_of_graphs()

    def extra_repr(self) -> str:
        return str(self.site) if self.site is not None else f"layer={self.layer_name!r}"


class _Tap(NamedTuple):
    key: int
    hook: Callable[..., None]
    maps: list[Tensor]
    misfits: list[tuple[int, ...]]
    tokens: bool


def _make_tap(site: Site) -> _Tap:
    """The hook that computes the map. Function, lists and key stay the same from call to call: compiled code
    that was traced with them in place is found again, not compiled anew."""
    maps: list[Tensor] = []
    misfits: list[tuple[int, ...]] = []
    thread = threading.get_ident()
    is_output, tokens = site.side == "output", len(site.layout.axes) == 3

    def hook(_: nn.Module, arguments: tuple[Any, ...], output: object = None) -> None:
        if not torch.compiler.is_compiling() and threading.get_ident() != thread:
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
        saliency = feature_saliency(features)
        maps.append(saliency.flatten(1) if tokens else saliency)

    return _Tap(RemovableHandle(OrderedDict()).id, hook, maps, misfits, tokens)


def _hooks_at(site: Site, network: nn.Module) -> dict[int, Any]:
    """The module's own table of hooks: `register_forward_hook` would give a new key, and so new code, every time."""
    layer = network.get_submodule(site.name)
    return layer._forward_hooks if site.side == "output" else layer._forward_pre_hooks


_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # networks whose dropped outputs were named


def logits_of(output: Any, trained: nn.Module | None = None) -> Tensor:
    """The logits of whatever a classifier returns: a tensor, `.logits`, a "logits" entry, or a tuple's first part.

    Of a model in training, warn once of what else would get a gradient and is dropped, such as an auxiliary head.
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
    if dropped and trained is not None and (network := wrappers_of(trained)[-1]) not in _warned:
        _warned.add(network)
        warnings.warn(
            f"only the logits of {type(network).__name__} are trained on; its other outputs are dropped, and heads of "
            f"their own get no gradient: {', '.join(dropped)}",
            stacklevel=2,
        )
    return output


def _parts(output: Any) -> dict[Any, Any]:
    """What a model returned, by name or, in a plain tuple or list, by position; nothing if it holds no logits."""
    if isinstance(output, Mapping):
        return dict(output) if "logits" in output else {}
    if isinstance(output, tuple | list):
        return dict(zip(getattr(output, "_fields", range(len(output))), output, strict=True))
    return {**getattr(output, "__dict__", {}), "logits": output.logits} if hasattr(output, "logits") else {}


def _run(model: nn.Module, images: Tensor) -> Any:
    """A frame of its own: the outermost that is compiled, with the hook already in place."""
    return model(images)


_out_of_graphs = False


def _keep_out_of_graphs() -> None:
    """Setting a hook cannot be traced: `forward` runs as plain Python around `_run`, which is compiled.

    Done when the first capture is made, not by decorators, which would double the time to import this package.
    """
    global _out_of_graphs
    if not _out_of_graphs:
        for name in ("forward", "_attach", "_result", "_detach"):
            disable: Callable[..., Any] = torch.compiler.disable
            setattr(SaliencyCapture, name, disable(getattr(SaliencyCapture, name), recursive=name != "forward"))
        _out_of_graphs = True


def wrappers_of(model: nn.Module) -> list[nn.Module]:
    """The model, then what DDP or torch.compile wraps, down to the network itself."""
    chain = [model]
    while True:
        inner = chain[-1]._modules.get("_orig_mod")
        if isinstance(chain[-1], nn.parallel.DistributedDataParallel):
            inner = chain[-1].module
        if inner is None:
            return chain
        chain.append(inner)


def _refuse_compiled(wrappers: Iterable[nn.Module], layer_name: str | None) -> None:
    """Compiled code may or may not run a hook set after its compilation: rather an error than a doubtful map."""
    chain = list(wrappers)
    for part in (layer_name or "").split("."):
        if part:
            chain.append(chain[-1].get_submodule(part))
    if any(is_compiled(module) for module in chain):
        inside = f"layer {layer_name!r} is inside a compiled part" if layer_name else "model is already compiled"
        raise RuntimeError(f"{inside}, where no hook can be relied on: {COMPILE_THE_CAPTURE}")


def _name_of(layer: str | nn.Module, network: nn.Module) -> str:
    """The dotted name inside the network, of a module or of a name that may carry wrappers' prefixes."""
    names: dict[int, str] = {id(module): name for name, module in network.named_modules() if name}
    if isinstance(layer, nn.Module):
        if id(layer) not in names:
            raise ValueError(f"layer must be a module inside model, got a {type(layer).__name__} that is not in it")
        return names[id(layer)]
    if not isinstance(layer, str):
        raise TypeError(f"layer must be a dotted name or a module, got {type(layer).__name__}")
    bare = layer
    while bare.startswith(("module.", "_orig_mod.")) and bare.split(".")[0] not in network._modules:
        bare = bare.split(".", 1)[1]
    modules = dict(network.named_modules(remove_duplicate=False))
    if bare and bare in modules:
        return names[id(modules[bare])]
    close = difflib.get_close_matches(bare, modules, n=SHOWN_NAMES) or [name for name in modules if name][:SHOWN_NAMES]
    raise ValueError(f"layer must name a module of model, such as {', '.join(map(repr, close))}; got {layer!r}")


def _no_map(named: str | None, outputs: dict[str, tuple[int, ...]], image: ImageShape) -> Exception:
    listed = "; ".join(f"{name} {shape}" for name, shape in list(outputs.items())[-SHOWN_NAMES:])
    size = f"{image.height}x{image.width} images"
    if named is not None and named not in outputs:
        return RuntimeError(f"layer {named!r} did not run in this forward pass; modules that did: {listed}")
    if named is not None:
        return ValueError(
            f"layer must give a map of the image with more than one cell, got {named!r} with shape {outputs[named]} "
            f"for {size}; modules and what they give: {listed}"
        )
    return ValueError(
        f"model must hold a map of the image in some layer, (B, C, h, w), (B, h, w, C) or tokens (B, N, C); none was "
        f"found for {size}. Name a layer by layer= if there is one. Modules and what they give: {listed}"
    )
