"""Find where a network last holds a map of the image, by watching one forward pass without side effects.

§4.3 takes the last convolutional layer; here that is the last activation before spatial size is pooled away.
Hooks on every module watch a pass in the network's current mode. Rules, in the order in which they are applied:

1. The last tensor that can be read as a map (`token_maps`) wins, whether a module returned or received it: what a
   pooling module receives is the map after any functional ReLU.
2. A functional activation of that tensor, right before functional pooling (DenseNet, many WRNs), is remembered and
   applied to the captured output.
3. Not maps: the image itself and what comes before the first weights; the output of adaptive pooling (VGG's 7 × 7,
   which on small images repeats cells); a linear projection of tokens (how attention pooling reads its keys).
4. A norm of each cell, of tokens or of the channels of a map, scales all cells to about the same size, so that
   Σ_c |A_c| is nearly flat after it: what it received is read, in vision transformers the last block's output.
5. Of several modules that returned the very same tensor, the outermost is named: `layer4`, not `layer4.1.relu`, nor an
   `nn.Identity` that a network has in place of a norm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saligraft.compiling import uncompiled
from saligraft.hooks import SHOWN_NAMES, Side, first_tensor, searching, watched, without_trace
from saligraft.saliency.token_maps import (
    Grid,
    ImageShape,
    Layout,
    Reading,
    image_shape,
    read_map,
    read_tokens,
    token_grid,
)

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
# Modules on videos or signals whose output has its channels first.
CHANNELS_FIRST = (nn.Conv1d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm3d, nn.MaxPool1d, nn.MaxPool3d, nn.AvgPool1d)
# Their output size is fixed: VGG's 7 x 7, which only repeats cells of small images.
RESIZING_POOLS = (F.adaptive_avg_pool2d, F.adaptive_max_pool2d)


class Activation(NamedTuple):
    """A function of torch.nn.functional, by name so that it can be pickled.

    Args:
        name: name of the function.
        arguments: after the features.
        keywords: names and values.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    def __call__(self, features: Tensor) -> Tensor:
        return cast(Tensor, getattr(F, self.name)(features, *self.arguments, **dict(self.keywords)))


class Site(NamedTuple):
    """Where in a network the map is.

    Args:
        name: the module that returns or receives it.
        side: whether it is the module's output or its input.
        layout: the order of its axes.
        activation: a functional activation that follows and must be applied.
        seen: the sizes of image and map in the pass that found it.
        nonnegative: whether the map comes from a ReLU, so that |A| = A.
    """

    name: str
    side: Side
    layout: Layout
    activation: Activation | None = None
    seen: tuple[ImageShape, Grid] | None = None
    nonnegative: bool = False

    def __str__(self) -> str:
        then = f", then {self.activation.name}" if self.activation else ""
        return f"{self.side} of {self.name!r}{then}"

    def grid(self, cells: int, image: ImageShape) -> Grid:
        """Return height and width of the map that this number of tokens forms over images of this size."""
        if self.seen is not None and self.seen[0][1:] == image[1:] and self.seen[1][0] * self.seen[1][1] == cells:
            return self.seen[1]
        grid = token_grid(cells, image)
        if grid is None:
            raise ValueError(
                f"the {self} must be tokens that form a grid over {image.height}x{image.width} images, "
                f"got {cells} tokens after the prefix: name another layer by layer="
            )
        return grid


def find_maps(
    network: nn.Module, images: Tensor, layer: str | None = None, *, after_norm: bool = False
) -> tuple[Any, list[Site]]:
    """Find the maps of the image, or that of a named layer, in a forward pass without side effects.

    It builds no graph either: a compiled training pass, which writes batch-norm statistics in place, would break the
    backward pass of an earlier uncompiled one.

    Args:
        network: the network without wrappers.
        images: (B, C, H, W).
        layer: the name of the layer; None for all maps.
        after_norm: whether rule 4 is left out, as CAM needs it, which weights what the classifier receives.

    Returns:
        What the network returned in that pass, and where the maps are; the last one is the best.
    """
    search = _MapSearch(network, images, layer, after_norm)
    with torch.no_grad(), without_trace(network, images, "current"):
        output = search.run(images)
    site = search.best_site()
    if site is None:
        raise _no_map(layer, search.outputs, image_shape(images))
    if search.stray_tokens is not None and layer is None:
        expected, advice = "a map of its input", ": pass a function that returns maps as saliency_source="
        if images.ndim == 4:
            expected, advice = "its tokens as a grid", ", as when patches are dropped: disable that"
        raise ValueError(
            f"model must keep {expected} up to pooling, but after the {site} it works on tokens of shape "
            f"{search.stray_tokens}{advice}, or name a layer by layer="
        )
    return output, [*search.earlier, site]


class _MapSearch(TorchFunctionMode):
    """Watches the modules, functional activations and functional pooling of one pass; changes no result."""

    def __init__(self, network: nn.Module, images: Tensor, layer: str | None, after_norm: bool) -> None:
        super().__init__()
        self.outputs: dict[str, tuple[int, ...]] = {}  # shape of every module's last output, by first call
        self.reading: Reading | None = None
        self.stray_tokens: tuple[int, ...] | None = None  # shape of tokens after the map that form no grid
        self.earlier: list[Site] = []
        self._token_norms = 0  # norms of tokens after the map of a video or signal
        self._network, self._layer, self._after_norm = network, layer, after_norm
        self._image, self._dims = image_shape(images), images.ndim
        self._channels_first: set[tuple[int, ...]] = set()  # shapes of maps of videos and signals
        self._holders: set[str] = set()  # modules that return more than one tensor
        self._sites: list[Site] = []  # where `_tensor` can be read, in order of appearance
        self._tensor: Tensor | None = None
        self._version = 0
        self._rejected: Tensor | None = images  # never accepted as the map
        self._normed: tuple[Tensor | None, int] = (None, 0)  # what a norm of each cell returned last, and its version
        self._rectified: tuple[Tensor | None, int] = (None, 0)  # what a ReLU returned last, and its version
        self._grids: dict[Grid, None] = {}  # in order of appearance, without repeats
        self._weights_seen = self._strict = False
        self._thread = threading.get_ident()

    def run(self, images: Tensor) -> Any:
        """Run the network, uncompiled, and watch all its modules."""
        modules = [(name, module) for name, module in self._network.named_modules() if name]
        searching.add(self._network)
        try:
            with (
                uncompiled(self._network),
                watched(modules, self._received, "input"),
                watched(modules, self._returned),
                self,
            ):
                return self._network(images)
        finally:
            searching.discard(self._network)

    def best_site(self) -> Site | None:
        """Prefer a module's output to its input, both to a functional activation; then the outermost that computes.

        Outputs that hold the map beside other tensors come last: the logits may depend on one of those alone, as on
        the pooled map that models of Transformers return, and Grad-CAM needs a tensor that they depend on.
        """

        def rank(site: Site) -> tuple[bool, bool, bool, bool, int]:
            inside = site.side == "output" and site.name in self._holders
            idle = isinstance(self._network.get_submodule(site.name), nn.Identity)
            return site.activation is not None, site.side == "input", inside, idle, site.name.count(".")

        best = min(reversed(self._sites), key=rank, default=None)
        if best is None or self.reading is None:
            return None
        site: Site = best._replace(seen=(self._image, self.reading.grid), nonnegative=self.map_is_rectified())
        return site

    def map_is_rectified(self) -> bool:
        """Whether the map is what a ReLU returned, unchanged since."""
        return self._tensor is not None and self._rectified[0] is self._tensor and self._rectified[1] == self._version

    def _received(self, name: str, _: nn.Module, arguments: tuple[Any, ...]) -> None:
        tensor = first_tensor(arguments)
        if tensor is not None and threading.get_ident() == self._thread:
            self._see(tensor, name, None)

    def _returned(self, name: str, module: nn.Module, _: tuple[Any, ...], output: object) -> None:
        tensor = first_tensor(output)
        if tensor is not None and threading.get_ident() == self._thread:
            self._weights_seen |= any(weight is not None for weight in module._parameters.values())
            self.outputs[name] = tuple(tensor.shape)
            entries = output.values() if isinstance(output, dict) else output if output is not tensor else ()
            if sum(first_tensor(entry) is not None for entry in cast(Iterable[object], entries)) > 1:
                self._holders.add(name)
            if isinstance(module, CHANNELS_FIRST) and tensor.ndim == self._dims:
                self._channels_first.add(tuple(tensor.shape))
            self._see(tensor, name, module)

    def _see(self, tensor: Tensor, name: str, origin: nn.Module | None) -> None:
        """A module received the tensor, or `origin` returned it."""
        reading = self._read(tensor)
        if reading is None:
            self.stray_tokens = tuple(tensor.shape) if self._are_stray_tokens(tensor, origin) else self.stray_tokens
            return
        self._grids.setdefault(reading.grid)
        self._strict |= reading.layout.axes != "bchw"
        if self._layer is None:
            projection = isinstance(origin, nn.Linear) and reading.layout.axes != "bchw"
            if projection or isinstance(origin, nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d):
                self._rejected = tensor
            if _normalises_cells(origin, reading.layout) and not self._after_norm:
                self._normed = tensor, _version(tensor)
            # An in-place activation of what a norm returned is a map again.
            normed = _same_storage(tensor, self._normed[0]) and _version(tensor) == self._normed[1]
            if tensor is self._rejected or normed or not self._weights_seen:
                return
        elif name != self._layer or origin is None:
            return
        site = Site(name, "input" if origin is None else "output", reading.layout)
        if self._holds(tensor):
            self._sites.append(site)
        else:
            self._hold(tensor, reading, [site])

    def _read(self, tensor: Tensor) -> Reading | None:
        shape = tuple(tensor.shape)
        if self._dims != 4:
            # Only shapes that a convolution or its like returned: the axes of tokens cannot be told from the shape.
            flat = read_map(
                (*shape[:2], 1, *shape[2:]) if self._dims == 3 else (*shape[:2], *shape[3:]), self._image, strict=False
            )
            fits = shape in self._channels_first and flat is not None
            return Reading(Layout("bcl" if self._dims == 3 else "bcthw"), flat.grid) if flat and fits else None
        if len(shape) == 3:
            return read_tokens(shape, self._image, self._grids)
        reading = read_map(shape, self._image, strict=self._strict)
        if reading is None or self.reading is None or self.reading.layout.axes not in ("bnc", "nbc"):
            return reading
        # After tokens (B, N, C), four axes may be attention heads (B, heads, N, C / heads): more cells than tokens.
        cells = self.reading.grid[0] * self.reading.grid[1]
        return reading if reading.grid[0] * reading.grid[1] <= cells else None

    def _are_stray_tokens(self, tensor: Tensor, origin: nn.Module | None) -> bool:
        """Tokens as wide as the map's that form no grid: the network dropped or pooled some and uses the rest.

        Of videos and signals, whose tokens are not read: those normalised twice or more, as in every block of a
        transformer; once may be a norm before the pooling.
        """
        if self._dims != 4:
            per_token = _is_norm(origin) and not isinstance(origin, nn.GroupNorm)
            self._token_norms += per_token and self._tensor is not None and tensor[..., 0].numel() > self._image.batch
            return self._token_norms > 1
        if self._tensor is None or not self._tensor.ndim == tensor.ndim == 3:
            return False
        (batch, tokens, channels), held = tensor.shape, self._tensor.shape
        return batch == self._image.batch and channels == held[2] and 1 < tokens < held[1]

    def _hold(self, tensor: Tensor, reading: Reading, sites: list[Site]) -> None:
        if (site := self.best_site()) is not None:
            self.earlier.append(site)
        self.stray_tokens, self._token_norms = None, 0
        self._tensor, self._version, self._sites, self.reading = tensor, _version(tensor), sites, reading

    def _holds(self, tensor: object) -> bool:
        return self._tensor is not None and tensor is self._tensor and _version(self._tensor) == self._version

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, positional = ACTIVATIONS.get(func, ("", 0))
        activates_map = name and args and self._layer is None and self._holds(args[0])
        result = func(*args, **(kwargs or {}))
        if name in ("relu", "relu6"):
            self._rectified = (result, _version(result))
        # At every earlier site of the map the activation must now follow.
        sites = [site for site in self._sites if site.activation is None] if activates_map else []
        if sites and self.reading is not None:
            keywords = tuple((key, value) for key, value in (kwargs or {}).items() if key != "inplace")
            activation = Activation(name, tuple(args[1 : 1 + positional]), keywords)
            self._hold(result, self.reading, [site._replace(activation=activation) for site in sites])
        if func in RESIZING_POOLS and isinstance(result, Tensor):
            self._rejected = result
        return result


def _is_norm(module: nn.Module | None) -> bool:
    """Whether a module normalises each cell; networks have norms of their own, named so."""
    return "Norm" in type(module).__name__ and not isinstance(module, nn.modules.batchnorm._NormBase)


def _normalises_cells(module: nn.Module | None, layout: Layout) -> bool:
    if layout.axes != "bchw":
        return _is_norm(module)
    # With channels first, a name does not tell a norm of each cell from one of the map; children are an activation.
    return isinstance(module, nn.LayerNorm | nn.RMSNorm) and not any(module.children())


def _same_storage(tensor: Tensor, other: Tensor | None) -> bool:
    """Whether the tensors are one, or views of one, as after a permutation of axes."""
    return other is not None and tensor.untyped_storage()._cdata == other.untyped_storage()._cdata


def _version(tensor: Tensor) -> int:
    """Count in-place changes, which distinguishes a tensor before and after an in-place ReLU."""
    return 0 if tensor.is_inference() else tensor._version


def _no_map(layer: str | None, outputs: dict[str, tuple[int, ...]], image: ImageShape) -> Exception:
    listed = "; ".join(f"{name} {shape}" for name, shape in list(outputs.items())[-SHOWN_NAMES:])
    size = f"{image.height}x{image.width} images"
    if layer is not None and layer not in outputs:
        return RuntimeError(f"layer {layer!r} did not run in this forward pass; modules that did: {listed}")
    if layer is not None:
        return ValueError(
            f"layer must return a map of the image with more than one cell, got {layer!r} with shape {outputs[layer]} "
            f"for {size}; modules and what they return: {listed}"
        )
    return ValueError(
        f"model must hold a map of the image in some layer, (B, C, h, w), (B, h, w, C) or tokens (B, N, C); none was "
        f"found for {size}. Name a layer by layer= if there is one, or pass a function of the images that returns maps "
        f"as saliency_source=. Modules and what they return: {listed}"
    )
