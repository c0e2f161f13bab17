"""Saliency by the gradient at the pixels: Simonyan et al., ICLR workshop 2014, and as PuzzleMix (2020) uses it.

Simonyan takes the class's logit and the largest absolute gradient over channels; PuzzleMix takes the loss and the root
of the mean square, which equals the l2 norm up to a factor that affects no method.
Shapes: B batch, C channels, H W pixels, K classes.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saligraft import checks
from saligraft.compiling import uncompiled
from saligraft.hooks import Mode, without_trace
from saligraft.saliency.base import NetworkSource, Passes, check_classes, checked_labels, label_scores
from saligraft.saliency.capture import logits_of

Of = Literal["loss", "score"]
Over = Literal["l2", "max"]
OFS: tuple[str, ...] = get_args(Of)
OVERS: tuple[str, ...] = get_args(Over)


@checks.without_autocast
def gradient_saliency(gradient: Tensor, over: Over = "l2") -> Tensor:
    """Reduce the gradient at the pixels to one value per pixel, detached.

    Args:
        gradient: (B, C, H, W).
        over: "l2" takes the norm over channels, "max" the largest absolute value.

    Returns:
        Saliency (B, H, W).

    Example:
        >>> gradient_saliency(torch.tensor([3.0, -4.0]).view(1, 2, 1, 1))
        tensor([[[5.]]])
    """
    checks.rank("gradient", gradient, "(B, C, H, W)")
    checks.one_of("over", over, OVERS)
    dtype = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    order = 2 if over == "l2" else torch.inf
    saliency: Tensor = torch.linalg.vector_norm(gradient.detach(), ord=order, dim=1, dtype=dtype)
    return saliency


class InputGradient(NetworkSource):
    """Gradient of the loss, or of the true class's logit, at each pixel; used by PuzzleMix.

    A separate call costs a forward and a backward pass, in evaluation mode as PuzzleMix's authors use when they train
    on mixed images only; with a training pass it costs a backward pass, in training mode as they use when they also
    train on originals. The loss is the sum of the samples' cross-entropies, so that small gradients do not vanish in
    half precision.

    Args:
        model: the network.
        of: "loss" or "score", the true class's logit.
        over: how channels are reduced, see `gradient_saliency`.
        mode: mode of the network in a separate call, see `NetworkSource`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
        >>> InputGradient(model)(torch.rand(3, 3, 2, 2), torch.tensor([0, 1, 4])).shape
        torch.Size([3, 2, 2])
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
        """Compute the gradient itself in a pass without side effects; PuzzleMix's noise steps along it.

        Args:
            images: (B, C, H, W).
            labels: (B,) or (B, K).

        Returns:
            Gradient (B, C, H, W).
        """
        labels = checked_labels(labels, images, "input-gradient", gradient=True)
        with without_trace(self.network, images, self.mode):
            return self._logits_and_gradient(self.network, _leaf(images), labels, keep_graph=False)[1]

    def training_pass(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        labels = checked_labels(labels, images, "input-gradient", gradient=True)
        leaf = images if images.requires_grad else _leaf(images)
        logits, gradient = self._logits_and_gradient(model, leaf, labels, keep_graph=True)
        return logits, gradient_saliency(gradient, self.over)

    def _logits_and_gradient(
        self, model: nn.Module, images: Tensor, labels: Tensor, keep_graph: bool
    ) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            with uncompiled(model):  # a compiled graph computes the gradients of all weights too, and only once
                logits = logits_of(model(images))
            check_classes(labels, logits.shape[1])
            if self.of == "loss":
                targets = labels.long() if labels.ndim == 1 else labels.to(checks.at_least_float32(logits).dtype)
                total = F.cross_entropy(checks.at_least_float32(logits), targets, reduction="sum")
            else:
                total = label_scores(logits, labels).sum()
            gradient = None
            if total.requires_grad:
                (gradient,) = torch.autograd.grad(total, images, retain_graph=keep_graph, allow_unused=True)
        if gradient is None:
            raise ValueError(
                "model must pass gradients to its images for the source 'input-gradient', got none, as from layers "
                "under torch.no_grad(): name another source by saliency_source="
            )
        return logits, gradient


def _leaf(images: Tensor) -> Tensor:
    """The images as leaves of a graph, copied if they were created in inference mode."""
    return (images.clone() if images.is_inference() else images.detach()).requires_grad_()
