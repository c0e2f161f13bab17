"""Backward saliency of a class: CAM (Zhou et al., CVPR 2016) and Grad-CAM (Selvaraju et al., ICCV 2017).

Both weigh the channels of the last feature map by what they say for the true class. CAM takes the weights from the
last linear layer, so a training pass gives it for nothing (the paper's appendix compares it with forward saliency);
Grad-CAM takes them from the gradient of the class's logit, which runs back through the head alone.
Shapes: B batch, C channels, h w cells of the map, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saligraft import checks
from saligraft.saliency.base import Mode, Passes, checked_labels, label_scores, refuse_inference_mode
from saligraft.saliency.find_layer import ACTIVATIONS
from saligraft.saliency.layer_source import LayerSource, is_linear, linear_weight

Negative = Literal["clamp", "shift"]
NEGATIVES: tuple[str, ...] = get_args(Negative)
NO_CLASSIFIER = "model must end in a linear layer for CAM"


@checks.without_autocast
def class_activation_map(features: Tensor, weight: Tensor, labels: Tensor, negative: Negative = "clamp") -> Tensor:
    """Σ_c w_c A_c, detached: features (B, C, h, w), weight (K, C), labels (B,) or (B, K) -> (B, h, w) (Zhou, Eq. 2).

    Rows of labels weigh the classes. Evidence against the class is negative, which no saliency is: it is set to 0, as
    Grad-CAM does, or, with ``negative="shift"``, each map's lowest value is subtracted, as CAM's authors do to show it.
    """
    checks.rank("features", features, "(B, C, h, w)")
    checks.rank("weight", weight, "(K, C)")
    checks.labels(labels, len(features))
    checks.one_of("negative", negative, NEGATIVES)
    classes, channels = weight.shape
    if channels != features.shape[1]:
        raise ValueError(f"weight must have one column per channel of features, {features.shape[1]}, got {channels}")
    if labels.ndim == 2 and labels.shape[1] != classes:
        raise ValueError(f"labels must have one column per row of weight, {classes}, got {labels.shape[1]}")
    checks.label_values(labels, classes)
    weight = checks.at_least_float32(weight.detach())
    chosen = weight[labels.long()] if labels.ndim == 1 else labels.to(weight.dtype) @ weight
    evidence = _weighed(features, chosen)
    if negative == "shift":
        return evidence - evidence.amin(dim=(1, 2), keepdim=True)
    return evidence.clamp(min=0)


@checks.without_autocast
def gradient_activation_map(features: Tensor, gradient: Tensor) -> Tensor:
    """ReLU(Σ_c α_c A_c), α_c the mean over cells of ∂y/∂A_c: (B, C, h, w) twice -> (B, h, w) (Selvaraju, Eq. 1-2)."""
    checks.rank("features", features, "(B, C, h, w)")
    checks.rank("gradient", gradient, "(B, C, h, w)")
    if gradient.shape != features.shape:
        expected, got = checks.shape_of(features), checks.shape_of(gradient)
        raise ValueError(f"gradient must have the shape of features, {expected}, got {got}")
    return _weighed(features, checks.at_least_float32(gradient.detach()).mean(dim=(2, 3))).clamp(min=0)


def _weighed(features: Tensor, weight: Tensor) -> Tensor:
    """Σ_c w_c A_c for weights (B, C) of each sample's own."""
    features = checks.at_least_float32(features.detach())
    dtype = torch.promote_types(features.dtype, weight.dtype)
    return torch.einsum("bchw,bc->bhw", features.to(dtype), weight.to(dtype))


class ClassActivation(LayerSource):
    """CAM of the true label: the last map, weighed by the last linear layer's weights for the class.

    Exact for networks that pool the map and go straight into a linear layer; where a norm stands between, near it;
    where other layers do, the channels do not fit, and the first call raises an error that says so. `classifier` names
    the linear layer if the last one that gives the logits is not the right one.
    """

    alone: ClassVar[Passes] = Passes(1, 0)
    shared: ClassVar[Passes] = Passes(0, 0)

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

    def _check(self, images: Tensor, labels: Tensor | None) -> Tensor:
        return checked_labels(labels, images, "cam")

    def _maps(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        weight, site, maps = self._weight(images), self.found(images).site, []

        def keep(tensor: Tensor) -> None:  # at once: the network may change its features in place later on
            features = tensor.detach() if site.activation is None else site.activation(tensor.detach())
            features = self.channels_first(features, images)
            if features.shape[1] != weight.shape[1]:
                height, width = images.shape[2:]
                raise ValueError(
                    f"the classifier must take the {features.shape[1]} channels of the last map of {height}x{width} "
                    f"images, the {site}, it takes {weight.shape[1]}: CAM needs a map that is pooled and goes straight "
                    'into a linear layer; use "grad-cam", or larger images if this network pools small ones to nothing'
                )
            maps.append(class_activation_map(features, weight, labels, self.negative))

        logits = self.run(model, images, keep)
        return logits, maps[-1]

    def _weight(self, images: Tensor) -> Tensor:
        name = self.classifier or self.found(images).classifier
        if name is None:
            raise ValueError(f'{NO_CLASSIFIER}, got none that gives the logits; use "grad-cam"')
        return linear_weight(self.network.get_submodule(name))


class GradCam(LayerSource):
    """Grad-CAM of the true label: any head, at the price of one backward pass through the head.

    In a vision transformer the last map of patches often has no say in the logits, which come from the class token:
    the map is then zero, of which the training steps warn, and `layer` must name an earlier block.
    """

    alone: ClassVar[Passes] = Passes(1, 0)  # and back through what follows the layer
    shared: ClassVar[Passes] = Passes(0, 0)  # likewise

    def _check(self, images: Tensor, labels: Tensor | None) -> Tensor:
        refuse_inference_mode("grad-cam")
        return checked_labels(labels, images, "grad-cam")

    def _maps(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        site = self.found(images).site
        held: list[Tensor] = []
        values: list[Tensor] = []

        def hold(tensor: Tensor) -> Tensor | None:
            replaced = not (tensor.requires_grad and torch.is_grad_enabled())
            if replaced:  # what comes before needs no gradient; a new leaf gets it, and the graph starts here
                torch.set_grad_enabled(True)
                tensor = tensor.detach().requires_grad_().clone()  # no leaf: a ReLU in place may follow
            held.append(tensor)
            values.append(tensor.detach().clone() if site.activation is None else site.activation(tensor.detach()))
            return tensor if replaced else None

        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))  # undoes what `hold` may switch on
            if site.activation is not None:
                stack.enter_context(_FollowActivation(held))
            logits = self.run(model, images, hold)
            score = label_scores(logits, labels).sum()
            (gradient,) = torch.autograd.grad(score, held[-1], retain_graph=True, allow_unused=True)
        if gradient is None:
            raise ValueError(f"the {site} must have a say in the logits for Grad-CAM: name another layer by layer=")
        features, slopes = (self.channels_first(tensor, images) for tensor in (values[-1], gradient))
        return logits, gradient_activation_map(features, slopes)


class _FollowActivation(TorchFunctionMode):
    """Let the last tensor held be what a functional activation makes of it."""

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
