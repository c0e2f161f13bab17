"""Backward saliency of a class: CAM (Zhou et al., CVPR 2016) and Grad-CAM (Selvaraju et al., ICCV 2017).

Both weight the channels of the last feature map by their evidence for the true class. CAM takes the weights from the
last linear layer, so a training pass yields it at no cost (the paper's appendix compares it with forward saliency);
Grad-CAM takes them from the gradient of the class's logit, which runs back through the head alone.
Shapes: B batch, C channels, h w cells of the map, K classes.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saligraft import checks
from saligraft.compiling import uncompiled
from saligraft.hooks import (
    Mode,
    first_tensor,
    hooked,
    is_linear,
    refuse_replicas,
    replace_first_tensor,
    watched,
    without_trace,
)
from saligraft.saliency.base import NetworkSource, check_classes, checked_labels, label_scores
from saligraft.saliency.capture import SaliencyCapture, logits_of
from saligraft.saliency.find_layer import ACTIVATIONS, Site
from saligraft.saliency.token_maps import channels_first, image_shape

Negative = Literal["clamp", "shift"]
NEGATIVES: tuple[str, ...] = get_args(Negative)
NO_CLASSIFIER = "model must end in a linear layer for CAM"


@checks.without_autocast
def class_activation_map(features: Tensor, weight: Tensor, labels: Tensor, negative: Negative = "clamp") -> Tensor:
    """Compute CAM, Σ_c w_c A_c, detached (Zhou, Eq. 2).

    Args:
        features: A, (B, C, h, w).
        weight: weight of the linear layer, (K, C).
        labels: true classes, (B,), or rows (B, K) that weight the classes.
        negative: how to treat negative values, evidence against the class: "clamp" sets them to 0, as Grad-CAM does;
            "shift" subtracts each map's lowest value, as CAM's authors do for display.

    Returns:
        Saliency (B, h, w).

    Example:
        >>> class_activation_map(torch.ones(1, 2, 1, 1), torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
        tensor([[[3.]]])
    """
    checks.rank("features", features, "(B, C, h, w)")
    checks.rank("weight", weight, "(K, C)")
    checks.labels(labels, len(features))
    checks.one_of("negative", negative, NEGATIVES)
    classes, channels = weight.shape
    if channels != features.shape[1]:
        raise ValueError(f"weight must have one column per channel of features, {features.shape[1]}, got {channels}")
    check_classes(labels, classes)
    weight = checks.at_least_float32(weight.detach())
    chosen = weight[labels.long()] if labels.ndim == 1 else labels.to(weight.dtype) @ weight
    evidence = _weighted(features, chosen)
    if negative == "shift":
        return evidence - evidence.amin(dim=(1, 2), keepdim=True)
    return evidence.clamp(min=0)


@checks.without_autocast
def gradient_activation_map(features: Tensor, gradient: Tensor) -> Tensor:
    """Compute Grad-CAM, ReLU(Σ_c α_c A_c) with α_c the mean over cells of ∂y/∂A_c (Selvaraju, Eq. 1-2).

    Args:
        features: A, (B, C, h, w).
        gradient: ∂y/∂A, (B, C, h, w).

    Returns:
        Saliency (B, h, w), detached.

    Example:
        >>> gradient_activation_map(torch.ones(1, 2, 1, 1), torch.full((1, 2, 1, 1), 0.5))
        tensor([[[1.]]])
    """
    checks.rank("features", features, "(B, C, h, w)")
    checks.rank("gradient", gradient, "(B, C, h, w)")
    if gradient.shape != features.shape:
        expected, got = checks.shape_of(features), checks.shape_of(gradient)
        raise ValueError(f"gradient must have the shape of features, {expected}, got {got}")
    return _weighted(features, checks.at_least_float32(gradient.detach()).mean(dim=(2, 3))).clamp(min=0)


def _weighted(features: Tensor, weight: Tensor) -> Tensor:
    """Σ_c w_c A_c for weights (B, C), one row per sample."""
    features = checks.at_least_float32(features.detach())
    dtype = torch.promote_types(features.dtype, weight.dtype)
    return torch.einsum("bchw,bc->bhw", features.to(dtype), weight.to(dtype))


class _LayerSource(NetworkSource):
    """A source that reads one layer's features, by default the last map of the image.

    `SaliencyCapture` finds the layer once; after that a hook is set on it during each pass.
    """

    name: ClassVar[str]
    takes_gradient: ClassVar[bool]
    after_norm: ClassVar[bool] = False  # see `find_layer`

    def __init__(self, model: nn.Module, layer: str | nn.Module | None = None, mode: Mode = "eval") -> None:
        super().__init__(model, mode)
        self.finder = SaliencyCapture(self.network, layer)

    @property
    def site(self) -> Site | None:
        return self.finder.site

    @property
    def where(self) -> str:
        return self.finder.where

    @abstractmethod
    def _maps(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and maps of one pass of `model`: the source's model, or the network inside it."""

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        labels = checked_labels(labels, images, self.name, gradient=self.takes_gradient)
        with torch.no_grad(), without_trace(self.network, images, self.mode):
            return self._maps(self.network, images, labels)[1]

    def training_pass(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        labels = checked_labels(labels, images, self.name, gradient=self.takes_gradient)
        return self._maps(model, images, labels)

    def _search(self, images: Tensor) -> Tensor:
        with without_trace(self.network, images, self.mode):
            return self.finder.find(images, after_norm=self.after_norm)

    def _find(self, images: Tensor) -> Site:
        if self.finder.site is None:
            self._search(images)
        assert self.finder.site is not None
        return self.finder.site

    def _run(self, model: nn.Module, images: Tensor, site: Site, hook: Callable[[Tensor], Tensor | None]) -> Tensor:
        """Logits of one uncompiled pass of `model`; if `hook` returns a tensor, it replaces the layer's."""
        refuse_replicas(model)
        calls, thread = [], threading.get_ident()

        def show(_: nn.Module, arguments: tuple[Any, ...], output: object = None) -> Any:
            passing = output if site.side == "output" else arguments
            tensor = first_tensor(passing)
            # A module may run twice, such as a ReLU in trunk and head; passes of other threads are ignored.
            if tensor is None or tensor.ndim != len(site.layout.axes) or threading.get_ident() != thread:
                return None
            calls.append(site)
            replacement = hook(tensor)
            return None if replacement is None else replace_first_tensor(passing, replacement)

        with uncompiled(model), hooked(self.network.get_submodule(site.name), show, site.side):
            logits = logits_of(model(images))
        if not calls:
            raise RuntimeError(
                f"the {site} did not pass through its hook in this call, so there is no map: if it runs only in "
                "some passes, name another by layer="
            )
        return logits


def _as_map(tensor: Tensor, site: Site, images: Tensor) -> Tensor:
    """A layer's tensor, or its gradient, as (B, C, h, w)."""
    features = channels_first(tensor, site.layout)
    if len(site.layout.axes) == 4:
        return features
    return features.reshape(*features.shape[:2], *site.grid(features.shape[2], image_shape(images)))


class ClassActivation(_LayerSource):
    """CAM of the true label: the last map, weighted by the last linear layer's weights for the class.

    Exact for networks that pool the map and apply a linear layer, a good approximation with a norm in between. With
    other layers in between the channels do not match, and the first call raises an error.

    Args:
        model: the network.
        layer: name or module of the layer whose output is the map; by default the last map of the image.
        classifier: name of the linear layer; by default the last one that returns the logits.
        negative: how to treat evidence against the class, see `class_activation_map`.
        mode: mode of the network in a separate call, see `NetworkSource`.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> ClassActivation(model)(torch.rand(2, 3, 10, 10), torch.tensor([0, 4])).shape
        torch.Size([2, 8, 8])
    """

    name = "cam"
    takes_gradient = False
    after_norm = True  # the classifier's weights are those of normalised channels

    def __init__(
        self,
        model: nn.Module,
        layer: str | nn.Module | None = None,
        *,
        classifier: str | None = None,
        negative: Negative = "clamp",
        mode: Mode = "eval",
    ) -> None:
        super().__init__(model, layer, mode)
        checks.one_of("negative", negative, NEGATIVES)
        linear = sorted(name for name, module in self.network.named_modules() if is_linear(module))
        if not linear:
            raise ValueError(f'{NO_CLASSIFIER}, got a {type(self.network).__name__} without any; use "grad-cam"')
        if classifier is not None:
            checks.one_of("classifier", classifier, linear)
        self.classifier, self.negative = classifier, negative

    def _search(self, images: Tensor) -> Tensor:
        """Find the classifier too: the last linear layer that ran with as many outputs as there are logits."""
        calls: list[tuple[str, int]] = []
        linear = [(name, module) for name, module in self.network.named_modules() if is_linear(module)]
        with watched(linear, lambda name, module, *_: calls.append((name, len(module.weight)))):
            logits = super()._search(images)
        if self.classifier is None:
            self.classifier = next((name for name, outputs in reversed(calls) if outputs == logits.shape[1]), None)
        return logits

    def _maps(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        site, maps = self._find(images), []
        if self.classifier is None:
            raise ValueError(f'{NO_CLASSIFIER}, got none that returns the logits; use "grad-cam"')
        weight = cast(Tensor, self.network.get_submodule(self.classifier).weight).flatten(1)

        def keep(tensor: Tensor) -> None:  # at once, since the network may later change its features in place
            features = tensor.detach() if site.activation is None else site.activation(tensor.detach())
            features = _as_map(features, site, images)
            if features.shape[1] != weight.shape[1]:
                height, width = images.shape[2:]
                raise ValueError(
                    f"the classifier must take the {features.shape[1]} channels of the last map of {height}x{width} "
                    f"images, the {site}, it takes {weight.shape[1]}: CAM needs a map that is pooled and fed directly "
                    'into a linear layer; use "grad-cam", or larger images if this network pools small ones to nothing'
                )
            maps.append(class_activation_map(features, weight, labels, self.negative))

        logits = self._run(model, images, site, keep)
        return logits, maps[-1]


class GradCam(_LayerSource):
    """Grad-CAM of the true label: works with any head, at the cost of one backward pass through the head.

    In a vision transformer the last map of patches often has no influence on the logits, which come from the class
    token: the last map that has one is then taken, in general the output of the last block but one.

    Args:
        model: the network.
        layer: name or module of the layer whose output is the map; by default the last map of the image
            that influences the logits.
        mode: mode of the network in a separate call, see `NetworkSource`.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> GradCam(model)(torch.rand(2, 3, 10, 10), torch.tensor([0, 4])).shape
        torch.Size([2, 8, 8])
    """

    name = "grad-cam"
    takes_gradient = True

    def _search(self, images: Tensor) -> Tensor:
        named = self.finder.layer_name is not None
        logits = super()._search(images)
        sites = self.finder.candidates
        if not named:
            self.finder.site = self._last_with_influence(images, sites) or sites[-1]
            self.finder.layer_name = self.finder.site.name
        return logits

    def _last_with_influence(self, images: Tensor, sites: list[Site]) -> Site | None:
        """Where a map last influences the logits, by one forward pass and the backward pass down to that map."""
        seen: dict[int, Tensor] = {}
        read: list[Tensor | None] = []

        def keep(place: int, tensor: Tensor | None) -> None:
            if tensor is not None and tensor.requires_grad and tensor.ndim == len(sites[place].layout.axes):
                seen[place] = tensor

        with torch.enable_grad(), without_trace(self.network, images, self.mode), ExitStack() as stack:
            stack.enter_context(uncompiled(self.network))
            for place, site in enumerate(sites):

                def hook(_: nn.Module, arguments: Any, output: Any = None, place: int = place) -> None:
                    keep(place, first_tensor(output if sites[place].side == "output" else arguments))

                stack.enter_context(hooked(self.network.get_submodule(site.name), hook, site.side))
            linear = [(name, module) for name, module in self.network.named_modules() if is_linear(module)]
            stack.enter_context(watched(linear, lambda _, __, arguments: read.append(first_tensor(arguments)), "input"))
            read.append(logits_of(self.network(images.detach().clone().requires_grad_())))
            # Random weights, since a sum may hide an influence; what linear layers read, since a head may be all zero.
            vectors = [vector for vector in read if vector is not None and vector.ndim == 2]
            score = torch.stack([(vector * torch.randn_like(vector)).sum() for vector in vectors]).sum()
            for place in reversed(seen):  # one by one: as a rule the last has an influence, a short way from the score
                (gradient,) = torch.autograd.grad(score, seen[place], retain_graph=True, allow_unused=True)
                if gradient is not None and bool(channels_first(gradient, sites[place].layout).any()):
                    return sites[place]
        return None

    def _maps(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        site = self._find(images)
        held: list[Tensor] = []
        values: list[Tensor] = []

        def hold(tensor: Tensor) -> Tensor | None:
            replaced = not (tensor.requires_grad and torch.is_grad_enabled())
            if replaced:  # layers before need no gradient: the graph starts here, at a new leaf
                torch.set_grad_enabled(True)
                tensor = tensor.detach().requires_grad_().clone()  # not a leaf, since an in-place ReLU may follow
            held.append(tensor)
            values.append(tensor.detach().clone() if site.activation is None else site.activation(tensor.detach()))
            return tensor if replaced else None

        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))  # restores what `hold` may switch on
            if site.activation is not None:
                stack.enter_context(_FollowActivation(held))
            logits = self._run(model, images, site, hold)
            with torch.enable_grad():  # a torch.no_grad() in the network has undone what `hold` switched on
                score = label_scores(logits, labels).sum()
            gradient = None
            if score.requires_grad:
                (gradient,) = torch.autograd.grad(score, held[-1], retain_graph=True, allow_unused=True)
        if gradient is None:
            raise ValueError(f"the {site} must influence the logits for Grad-CAM: name another layer by layer=")
        features, gradient = (_as_map(tensor, site, images) for tensor in (values[-1], gradient))
        return logits, gradient_activation_map(features, gradient)


class _FollowActivation(TorchFunctionMode):
    """Replace the last tensor held by the result of a functional activation of it."""

    def __init__(self, held: list[Tensor]) -> None:
        super().__init__()
        self.held = held

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ACTIVATIONS and args and self.held and args[0] is self.held[-1]:
            self.held[-1] = result
        return result
