"""Saliency by the gradient at the pixels: Simonyan et al., ICLR workshop 2014, and as PuzzleMix (2020) uses it.

Simonyan takes the class's logit and the largest absolute slope over channels; PuzzleMix takes the loss and the root of
the mean square, which is the l2 norm but for a factor that no method sees.
Shapes: B batch, C channels, H W pixels, K classes.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saligraft import checks
from saligraft.saliency.base import (
    Mode,
    NetworkSource,
    Passes,
    check_classes,
    checked_labels,
    label_scores,
    refuse_inference_mode,
    without_trace,
)
from saligraft.saliency.capture import logits_of

Of = Literal["loss", "score"]
Over = Literal["l2", "max"]
OFS: tuple[str, ...] = get_args(Of)
OVERS: tuple[str, ...] = get_args(Over)


@checks.without_autocast
def gradient_saliency(gradient: Tensor, over: Over = "l2") -> Tensor:
    """The l2 norm, or the largest absolute value, over channels: (B, C, H, W) -> (B, H, W), detached."""
    checks.rank("gradient", gradient, "(B, C, H, W)")
    checks.one_of("over", over, OVERS)
    dtype = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    order = 2 if over == "l2" else torch.inf
    saliency: Tensor = torch.linalg.vector_norm(gradient.detach(), ord=order, dim=1, dtype=dtype)
    return saliency


class InputGradient(NetworkSource):
    """How steeply the loss, or the true class's logit, changes with each pixel; PuzzleMix's own.

    By itself it costs a forward and a backward pass, in evaluation mode as PuzzleMix's authors do when they train on
    mixed images only; with a training pass it costs a backward pass, in training mode as they do when they train on
    originals too. The loss is the sum of the samples' cross-entropies, so that small slopes do not vanish in half
    precision.
    """

    alone: ClassVar[Passes] = Passes(1, 1)
    shared: ClassVar[Passes] = Passes(0, 1)

    def __init__(self, model: nn.Module, *, of: Of = "loss", over: Over = "l2", mode: Mode = "eval") -> None:
        super().__init__(model, mode)
        checks.one_of("of", of, OFS)
        checks.one_of("over", over, OVERS)
        self.of, self.over = of, over

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        return gradient_saliency(self.gradient(images, labels), self.over)

    def gradient(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The slopes themselves, (B, C, H, W), by the same pass without a trace; PuzzleMix's noise steps along them."""
        given = self._check(images, labels)
        with without_trace(self.network, images, self.mode):
            return self._slopes(self.network, _leaf(images), given, keep_graph=False)[1]

    def training_pass(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        given = self._check(images, labels)
        watched = images if images.requires_grad else _leaf(images)
        logits, gradient = self._slopes(self.model, watched, given, keep_graph=True)
        return logits, gradient_saliency(gradient, self.over)

    def _slopes(self, model: nn.Module, images: Tensor, labels: Tensor, keep_graph: bool) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            logits = logits_of(model(images))
            check_classes(labels, logits.shape[1])
            if self.of == "loss":
                targets = labels.long() if labels.ndim == 1 else labels.to(checks.at_least_float32(logits).dtype)
                total = F.cross_entropy(checks.at_least_float32(logits), targets, reduction="sum")
            else:
                total = label_scores(logits, labels).sum()
            (gradient,) = torch.autograd.grad(total, images, retain_graph=keep_graph)
        return logits, gradient

    def _check(self, images: Tensor, labels: Tensor | None) -> Tensor:
        checks.images(images)
        refuse_inference_mode("input-gradient")
        return checked_labels(labels, images, "input-gradient")


def _leaf(images: Tensor) -> Tensor:
    """The images as the start of a graph; what inference mode has made must be copied for that."""
    return (images.clone() if images.is_inference() else images.detach()).requires_grad_()
