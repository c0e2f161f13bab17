"""Find where a network last holds a map of the image, by watching one forward pass that leaves no trace.

§4.3 takes the last convolutional layer; here that is the last activation before spatial size is pooled away.
Hooks on every module watch a pass of its own, in the network's current mode (`without_trace`). Rules, in the order in
which they are applied:

1. The last tensor that can be read as a map (`token_maps`) wins, whether a module gave it or received it: what a
   pooling module receives is the map after any functional ReLU.
2. A functional activation of that tensor, right before functional pooling (DenseNet, many WRNs), is remembered and
   applied to the captured output.
3. Not maps: the image itself and what stands before the first weights; the output of adaptive pooling (VGG's 7 × 7,
   which on small images repeats cells); a linear projection of tokens (how attention pooling reads its keys).
4. Of several modules that gave the very same tensor, the outermost is named: `layer4`, not `layer4.1.relu`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saligraft.saliency.token_maps import Grid, Layout, Reading, image_shape, read_map, read_tokens
from saligraft.threads import exclusive_use

Mode = Literal["eval", "current"]

# How each functional activation may be called -> (its pure form in torch.nn.functional, positional arguments kept).
ACTIVATIONS: dict[Callable[..., Any], tuple[str, int]] = {
    F.relu: ("relu", 0),
    F.relu_: ("relu", 0),
    torch.relu: ("relu", 0),
    torch.relu_: ("relu", 0),
    Tensor.relu: ("relu", 0),
    Tensor.relu_: ("relu", 0),
    F.relu6: ("relu6", 0),
    F.silu: ("silu", 0),
    F.mish: ("mish", 0),
    F.hardswish: ("hardswish", 0),
    F.gelu: ("gelu", 0),
    F.elu: ("elu", 1),
    F.leaky_relu: ("leaky_relu", 1),
}
# Their result has a size of its own: VGG's 7 x 7, which for small images only repeats cells.
RESIZING_POOLS = (F.adaptive_avg_pool2d, F.adaptive_max_pool2d)


class Activation(NamedTuple):
    """A function of torch.nn.functional, by name so that it can be pickled, and its settings."""

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    def __call__(self, features: Tensor) -> Tensor:
        result: Tensor = getattr(F, self.name)(features, *self.arguments, **dict(self.keywords))
        return result


class Site(NamedTuple):
    """Where the map is: what the module called `name` gives or receives, its axes, and the activation still to come."""

    name: str
    side: Literal["output", "input"]
    layout: Layout
    activation: Activation | None = None

    def __str__(self) -> str:
        then = f", then {self.activation.name}" if self.activation else ""
        return f"{self.side} of {self.name!r}{then}"


def first_tensor(value: object) -> Tensor | None:
    """The tensor a module gives or receives: the value itself, or the first in a tuple, list or dict."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for entry in value:
            tensor = first_tensor(entry)
            if tensor is not None:
                return tensor
    return None


def is_compiled(module: nn.Module) -> bool:
    """Whether calling the module runs compiled code, in which hooks set afterwards may be missing."""
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


searched: set[nn.Module] = set()  # networks in a pass that only looks for a layer


class Watch:
    """Watch one forward pass for the last map, or for the map of the layer called `named`."""

    def __init__(self, network: nn.Module, images: Tensor, named: str | None = None) -> None:
        self.outputs: dict[str, tuple[int, ...]] = {}  # shape of every module's last output, in order of first call
        self.reading: Reading | None = None
        self.stray_tokens: tuple[int, ...] | None = None  # shape of tokens after the map that form no grid
        self._network, self._named = network, named
        self._image = image_shape(images)
        self._sites: list[Site] = []  # where `_tensor` can be had, in order of appearance
        self._tensor: Tensor | None = None
        self._version = 0
        self._rejected: Tensor | None = images
        self._grids: dict[Grid, None] = {}  # in order of appearance, without repeats
        self._weights_seen = self._strict = False
        self._thread = threading.get_ident()

    def site(self) -> Site | None:
        """The place of the map: a module's output if it is one, else a module's input, else by an activation."""

        def rank(position: int) -> tuple[bool, bool, int, int]:
            site = self._sites[position]
            return site.activation is not None, site.side == "input", site.name.count("."), -position

        return self._sites[min(range(len(self._sites)), key=rank)] if self._sites else None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch everything that runs inside; on leaving, also by an error, every hook is gone."""
        compiled = [name for name, module in self._network.named_modules() if is_compiled(module)]
        with ExitStack() as stack:
            stack.callback(self._forget_tensors)
            stack.callback(searched.discard, self._network)
            searched.add(self._network)
            for name, module in self._network.named_modules():
                inside = any(name == outer or name.startswith(f"{outer}.") for outer in compiled)
                if name and not inside:
                    before, after = self._hooks(name)
                    stack.callback(module.register_forward_pre_hook(before).remove)
                    stack.callback(module.register_forward_hook(after).remove)
            if not compiled:  # else the mode would be traced into the compiled part
                stack.enter_context(_FunctionWatch(self))
            yield

    def _hooks(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            received = first_tensor(arguments)
            if received is not None and threading.get_ident() == self._thread:
                self._see(received, name, None)

        def after(module: nn.Module, _: tuple[Any, ...], output: object) -> None:
            given = first_tensor(output)
            if given is not None and threading.get_ident() == self._thread:
                self._weights_seen |= any(weight is not None for weight in module._parameters.values())
                self.outputs[name] = tuple(given.shape)
                self._see(given, name, module)

        return before, after

    def _see(self, tensor: Tensor, name: str, giver: nn.Module | None) -> None:
        """A module received the tensor, or `giver` gave it."""
        reading = self._read(tensor)
        if reading is None:
            self._note_stray_tokens(tensor)
            return
        self._grids.setdefault(reading.grid)
        self._strict |= reading.layout.axes != "bchw"
        if self._named is None:
            projection = isinstance(giver, nn.Linear) and reading.layout.axes != "bchw"
            if projection or isinstance(giver, nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d):
                self.reject(tensor)
            if tensor is self._rejected or not self._weights_seen:
                return
        elif name != self._named or giver is None:
            return
        site = Site(name, "input" if giver is None else "output", reading.layout)
        if self.holds(tensor):
            self._sites.append(site)
        else:
            self._hold(tensor, reading, [site])

    def _read(self, tensor: Tensor) -> Reading | None:
        shape = tuple(tensor.shape)
        if len(shape) == 3:
            return read_tokens(shape, self._image, self._grids)
        reading = read_map(shape, self._image, strict=self._strict)
        if reading is None or self.reading is None or self.reading.layout.axes not in ("bnc", "nbc"):
            return reading
        # After tokens (B, N, C), four axes may be attention heads (B, heads, N, C / heads): more cells than tokens.
        cells = self.reading.grid[0] * self.reading.grid[1]
        return reading if reading.grid[0] * reading.grid[1] <= cells else None

    def _note_stray_tokens(self, tensor: Tensor) -> None:
        """Tokens of the map's own width that are no grid: the network dropped or pooled some, and goes on with them."""
        if self._tensor is not None and self._tensor.ndim == tensor.ndim == 3 and tensor.shape[0] == self._image.batch:
            same_width = tensor.shape[2] == self._tensor.shape[2]
            if same_width and 1 < tensor.shape[1] < self._tensor.shape[1]:
                self.stray_tokens = tuple(tensor.shape)

    def _hold(self, tensor: Tensor, reading: Reading, sites: list[Site]) -> None:
        self.stray_tokens = None
        self._tensor, self._version, self._sites, self.reading = tensor, _version(tensor), sites, reading

    def holds(self, tensor: object) -> bool:
        return self._tensor is not None and tensor is self._tensor and _version(self._tensor) == self._version

    def saw_activation(self, activation: Activation, result: Tensor) -> None:
        """The last map went through a functional activation: wherever it was had before, that must follow."""
        sites = [site._replace(activation=activation) for site in self._sites if site.activation is None]
        if sites and self.reading is not None and self._named is None:
            self._hold(result, self.reading, sites)

    def reject(self, tensor: Tensor) -> None:
        """Never take this tensor for the map."""
        self._rejected = tensor

    def _forget_tensors(self) -> None:
        self._tensor = self._rejected = None


class _FunctionWatch(TorchFunctionMode):
    """Tell a `Watch` of functional activations and pooling; changes no result."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = ACTIVATIONS.get(func)
        held = known is not None and bool(args) and self.watch.holds(args[0])
        result = func(*args, **kwargs)
        if held and known is not None:
            keywords = tuple((key, value) for key, value in kwargs.items() if key != "inplace")
            self.watch.saw_activation(Activation(known[0], tuple(args[1 : 1 + known[1]]), keywords), result)
        if func in RESIZING_POOLS and isinstance(result, Tensor):
            self.watch.reject(result)
        return result


def _version(tensor: Tensor | None) -> int:
    """Counts in-place changes, so that a tensor before and after an in-place ReLU is not taken for the same."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version


@contextmanager
def without_trace(network: nn.Module, images: Tensor, mode: Mode) -> Iterator[None]:
    """Run a network inside; on leaving, its mode, buffers and torch's and Python's random streams are as before.

    Buffers are replaced by copies, not restored by writing into them: a graph that an earlier pass has built may
    still need the originals unchanged for its backward.
    """
    with exclusive_use(network), _forked_streams(images.device):
        modules = list(network.modules())
        modes = [module.training for module in modules]
        buffers: list[dict[str, Any]] = [dict(module._buffers) for module in modules]
        state = random.getstate()
        try:
            for module, held in zip(modules, buffers, strict=True):
                module.training &= mode == "current"  # not by .eval() and .train(), which some networks override
                module._buffers.update({name: value.clone() for name, value in held.items() if value is not None})
            yield
        finally:
            random.setstate(state)
            torch.clear_autocast_cache()  # older torch (2.4) would train on weights cast here, without gradient
            for module, training, held in zip(modules, modes, buffers, strict=True):
                module.training = training
                module._buffers.clear()
                module._buffers.update(held)


@contextmanager
def _forked_streams(device: torch.device) -> Iterator[None]:
    if device.type in ("cpu", "meta"):  # `meta` has no stream; torch 2.4 refuses to fork it
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            yield
