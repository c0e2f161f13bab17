"""Run a pass and look at the feature map on its way, for the sources that turn it into a class's evidence.

Where the map is, `SaliencyCapture` finds out, once, in a pass that leaves no trace; from then on a hook stands at that
layer only while a pass runs.
Shapes: B batch, C channels, h w cells of the map, K classes.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saligraft import checks
from saligraft.saliency.base import Mode, NetworkSource, without_trace
from saligraft.saliency.capture import SaliencyCapture, logits_of, wrappers_of
from saligraft.saliency.find_layer import Site, first_tensor, is_compiled
from saligraft.saliency.token_maps import Grid, channels_first, image_shape, token_grid

Hook = Callable[[Tensor], Tensor | None]


class Findings(NamedTuple):
    """What the search pass found out."""

    site: Site
    classifier: str | None  # the last linear layer that ran with as many outputs as there are logits
    grids: dict[tuple[int, int], Grid]  # cells for image sizes seen


class LayerSource(NetworkSource):
    """A source that reads one layer's features: the last map of the image, or the layer given by name or module."""

    def __init__(self, model: nn.Module, layer: str | nn.Module | None = None, mode: Mode = "eval") -> None:
        super().__init__(model, mode)
        self.finder = SaliencyCapture(self.network, layer)
        self._found: Findings | None = None

    @property
    def site(self) -> Site | None:
        return self.finder.site

    @abstractmethod
    def _maps(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and maps of one pass of `model`: of this source's own, or of the network inside it."""

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        given = self._check(images, labels)
        self.found(images)
        with torch.no_grad(), without_trace(self.network, images, self.mode):
            return self._maps(self.network, images, given)[1]

    def training_pass(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        given = self._check(images, labels)
        self.found(images)
        return self._maps(self.model, images, given)

    @abstractmethod
    def _check(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """The labels, fit for use."""

    def found(self, images: Tensor) -> Findings:
        """Where the map is; the first time by a pass without a trace."""
        if self._found is None:
            checks.images(images)
            with torch.no_grad(), without_trace(self.network, images, self.mode), _linear_calls(self.network) as calls:
                logits, site, grid = self.finder.find(images)
            fitting = [name for name, outputs in calls if outputs == logits.shape[1]]
            height, width = images.shape[2:]
            self._found = Findings(site, fitting[-1] if fitting else None, {(height, width): grid})
        return self._found

    def run(self, model: nn.Module, images: Tensor, hook: Hook) -> Tensor:
        """One pass of `model` with `hook` shown the layer's tensor as it stands there; returns the logits."""
        site, *_ = self.found(images)
        _refuse_compiled(model, site)
        with _hooked(self.network, site, hook) as fired:
            logits = logits_of(model(images))
        if not fired:
            raise RuntimeError(
                f"the {site} did not pass through its hook in this call, so there is no map: if it runs in some "
                "passes only, name another by layer="
            )
        return logits

    def channels_first(self, tensor: Tensor, images: Tensor) -> Tensor:
        """The layer's tensor, or its gradient, as (B, C, h, w)."""
        site, _, grids = self.found(images)
        features = channels_first(tensor, site.layout)
        if len(site.layout.axes) == 4:
            return features
        size = (images.shape[2], images.shape[3])
        grid = grids.get(size) or token_grid(features.shape[2], image_shape(images))
        if grid is None or grid[0] * grid[1] != features.shape[2]:
            raise ValueError(
                f"the {site} must be tokens that form a grid over {size[0]}x{size[1]} images, "
                f"got {features.shape[2]} tokens after the prefix: name another layer by layer="
            )
        grids[size] = grid
        return features.reshape(*features.shape[:2], *grid)


def _refuse_compiled(model: nn.Module, site: Site) -> None:
    """Compiled code may or may not run a hook set after its compilation: rather an error than a doubtful map."""
    chain = wrappers_of(model)
    for part in site.name.split("."):
        chain.append(chain[-1].get_submodule(part))
    if any(is_compiled(module) for module in chain):
        raise RuntimeError(
            f"the {site} is inside a compiled part, where no hook can be relied on: give the uncompiled model, or use "
            'the source "feature-map", whose capture can be compiled'
        )


@contextmanager
def _hooked(network: nn.Module, site: Site, hook: Hook) -> Iterator[list[bool]]:
    """Show `hook` what passes the site; what it returns, if anything, takes the tensor's place."""
    fired: list[bool] = []
    thread = threading.get_ident()

    def show(passing: Any) -> Any:
        tensor = first_tensor(passing)
        # A module may run twice, say a ReLU in trunk and head; other threads' passes are not this one's.
        if tensor is None or tensor.ndim != len(site.layout.axes) or threading.get_ident() != thread:
            return None
        fired.append(True)
        replacement = hook(tensor)
        if replacement is None:
            return None
        if isinstance(passing, Tensor):
            return replacement
        if isinstance(passing, tuple) and passing[0] is tensor:
            return (replacement, *passing[1:])
        return None

    layer = network.get_submodule(site.name)
    if site.side == "output":
        handle = layer.register_forward_hook(lambda _, __, output: show(output))
    else:
        handle = layer.register_forward_pre_hook(lambda _, arguments: show(arguments))
    try:
        yield fired
    finally:
        handle.remove()


@contextmanager
def _linear_calls(network: nn.Module) -> Iterator[list[tuple[str, int]]]:
    """Names and output counts of the linear layers and 1 × 1 convolutions that run inside, in order."""
    calls: list[tuple[str, int]] = []

    def record(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, _, __: calls.append((name, len(linear_weight(module))))

    linear = [(name, module) for name, module in network.named_modules() if is_linear(module)]
    handles = [module.register_forward_hook(record(name)) for name, module in linear]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1))


def linear_weight(module: nn.Module) -> Tensor:
    """(K, C), of a linear layer or a 1 × 1 convolution."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.flatten(1)
