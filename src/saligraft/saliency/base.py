"""What a saliency source is: images and labels in, one map per image out.

Any source works with any method that needs saliency. A separate call ``source(images, labels)`` has no side effects: no
`.grad`, batch-norm statistics, random state, mode or hook is changed, even after an error. `with_logits` makes a
training pass and computes the maps of its images; sources that read the model in training take the maps from that pass.
Shapes: B batch, C channels, H W pixels, K classes, h w cells of the map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, get_args

import torch
from torch import Tensor, nn

from saligraft import checks
from saligraft.hooks import Mode, exclusive_use, unwrapped
from saligraft.saliency.capture import logits_of
from saligraft.saliency.find_layer import Site


class Passes(NamedTuple):
    """How many full passes through the network a batch of maps costs.

    Args:
        forward: forward passes.
        backward: backward passes.
    """

    forward: int
    backward: int


class SaliencySource(ABC):
    """A function ``source(images, labels) -> saliency``: (B, h, w), >= 0, float32 or float64, detached.

    `alone` counts the passes of a separate call, `shared` those that `with_logits` adds to the training pass.

    Example:
        >>> class Brightness(SaliencySource):
        ...     def __call__(self, images, labels=None):
        ...         return images.mean(dim=1)
        >>> Brightness()(torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 8, 8])
    """

    alone: ClassVar[Passes] = Passes(0, 0)
    shared: ClassVar[Passes] = Passes(0, 0)

    @property
    def site(self) -> Site | None:
        """Where in the network the maps come from, once that is known; None for sources that read no layer."""
        return None

    @property
    def where(self) -> str | None:
        """Where the maps come from, in words, also before the first call; None for sources that read no layer."""
        return None

    @abstractmethod
    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Compute the maps of images.

        Args:
            images: (B, C, H, W).
            labels: (B,) or (B, K); class-agnostic sources do not need them.

        Returns:
            Saliency (B, h, w).
        """

    def with_logits(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Make a training pass and compute the maps of its images.

        Args:
            model: the model in training.
            images: (B, C, H, W).
            labels: (B,) or (B, K).

        Returns:
            Logits (B, K), with gradient, and saliency (B, h, w).
        """
        saliency = self(images, labels)
        return logits_of(model(images), model), saliency


class NetworkSource(SaliencySource):
    """A source that reads a network: the one in training, or another, for example a frozen one.

    A separate call runs the network inside DDP and other wrappers, on copies of its buffers and without communication
    between processes.

    Args:
        model: the network.
        mode: mode of a separate call. "eval" disables dropout and uses running statistics, so that an image's map does
            not depend on other images; "current" keeps the network's mode: in training, batch statistics and dropout.
    """

    alone: ClassVar[Passes] = Passes(1, 0)

    def __init__(self, model: nn.Module, mode: Mode = "eval") -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        checks.one_of("mode", mode, get_args(Mode))
        self.model = model
        self.mode = mode

    @property
    def network(self) -> nn.Module:
        """The model without wrappers."""
        return unwrapped(self.model)

    @abstractmethod
    def training_pass(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, K) and maps (B, h, w) from one pass of the source's model, in whatever wrappers it is given."""

    def with_logits(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if unwrapped(model) is self.network:
            with exclusive_use(model):
                return self.training_pass(model, images, labels)
        return super().with_logits(model, images, labels)


def checked_labels(labels: Tensor | None, images: Tensor, source: str, *, gradient: bool) -> Tensor:
    """Check what a class-discriminative source needs: images, labels and, with `gradient`, autograd."""
    checks.images(images)
    if gradient and torch.is_inference_mode_enabled():
        raise RuntimeError(f"{source} needs a gradient, which torch.inference_mode() disables: use torch.no_grad()")
    if labels is None:
        raise ValueError(f"labels must be given to {source}, which shows the evidence for a class; got None")
    checks.labels(labels, len(images), images, classes=True)
    return labels


def check_classes(labels: Tensor, num_classes: int) -> None:
    """Check that the labels, (B,) or (B, K), are classes of the network."""
    if labels.ndim == 2 and labels.shape[1] != num_classes:
        raise ValueError(f"labels must have one column per class, {num_classes}, got {labels.shape[1]}")
    checks.label_values(labels, num_classes)


def label_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of each true class, (B,); rows of labels (B, K) weight the logits."""
    check_classes(labels, logits.shape[1])
    if labels.ndim == 1:
        return logits.gather(1, labels[:, None].long())[:, 0]
    return (logits * labels.to(logits.dtype)).sum(dim=1)
