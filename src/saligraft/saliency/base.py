"""What a saliency source is: images and labels in, one map per image out.

Any source goes with any method that needs saliency. Called by itself, ``source(images, labels)``, it leaves nothing
behind: no `.grad`, no batch-norm statistics, no step in a random stream, no changed mode, no hook, also after an error.
`with_logits` is the training pass of a model together with the maps of its images: sources that look at that very
model take them from that very pass.
Shapes: B batch, C channels, H W pixels, K classes, h w cells of the map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, get_args

import torch
from torch import Tensor, nn

from saligraft import checks
from saligraft.saliency.capture import logits_of, wrappers_of
from saligraft.saliency.find_layer import Mode as Mode
from saligraft.saliency.find_layer import Site
from saligraft.saliency.find_layer import without_trace as without_trace
from saligraft.threads import exclusive_use


class Passes(NamedTuple):
    """How many whole passes through the network a batch of maps costs."""

    forward: int
    backward: int


class SaliencySource(ABC):
    """``source(images, labels) -> saliency`` (B, h, w), >= 0, float32 (float64 stays), detached."""

    alone: ClassVar[Passes]  # passes of a call by itself
    shared: ClassVar[Passes]  # passes that `with_logits` adds to the training pass

    @property
    def site(self) -> Site | None:
        """Where in the network the maps come from, once that is known; None for sources that read no layer."""
        return None

    @abstractmethod
    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Maps of images (B, C, H, W) for labels (B,) or (B, K), which class-agnostic sources do not need."""

    def with_logits(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """A training pass of `model`: its logits, with gradient, and the images' maps."""
        saliency = self(images, labels)
        return logits_of(model(images), model), saliency


class NetworkSource(SaliencySource):
    """A source that asks a network: the one in training, or another, say a frozen one.

    By itself it runs the network in evaluation mode: no dropout, batch norm by its running statistics, so that an
    image's map depends on no other image and a batch of one is as good as any. ``mode="current"`` runs it as it stands:
    while it trains, with batch statistics and dropout, as in the training pass. Both work on copies of the buffers.
    Under DDP a call by itself runs the inner network, without any exchange between processes.
    """

    def __init__(self, model: nn.Module, mode: Mode = "eval") -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        checks.one_of("mode", mode, get_args(Mode))
        self.model = model
        self.mode = mode

    @property
    def network(self) -> nn.Module:
        """The model without what DDP or torch.compile wrap around it."""
        return wrappers_of(self.model)[-1]

    @abstractmethod
    def training_pass(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and maps from one pass of the model as it stands."""

    def with_logits(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if wrappers_of(model)[-1] is self.network:
            with exclusive_use(model):
                return self.training_pass(images, labels)
        return super().with_logits(model, images, labels)


def checked_labels(labels: Tensor | None, images: Tensor, source: str) -> Tensor:
    """The labels that a class-discriminative source cannot do without."""
    if labels is None:
        raise ValueError(f"labels must be given to {source}, which shows the evidence for a class; got None")
    checks.labels(labels, len(images))
    checks.same_device("labels", labels, images)
    return labels


def check_classes(labels: Tensor, num_classes: int) -> None:
    """Raise unless the labels name classes that the network has logits for."""
    if labels.ndim == 2 and labels.shape[1] != num_classes:
        raise ValueError(f"labels must have one column per class of the network, {num_classes}, got {labels.shape[1]}")
    checks.label_values(labels, num_classes)


def refuse_inference_mode(source: str) -> None:
    """Raise where torch records nothing to take a gradient of, whatever `enable_grad` says."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(f"{source} takes a gradient, which torch.inference_mode() rules out: use torch.no_grad()")


def label_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,): the logit of each true class; for rows of probabilities or several classes, weighed by them."""
    check_classes(labels, logits.shape[1])
    if labels.ndim == 1:
        return logits.gather(1, labels[:, None].long())[:, 0]
    return (logits * labels.to(logits.dtype)).sum(dim=1)
