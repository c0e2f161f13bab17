"""Manifold Mixup: blend two samples' features at a random layer, and their labels, in one proportion.

Verma et al., ICML 2019; Table 1 of the Saliency Grafting paper: λ h(x_i) + (1−λ) h(x_j).
The network needs no change: a hook on the drawn layer blends its output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from saligraft import checks, draws
from saligraft.batch import AlteredBatch, MixedBatch
from saligraft.grafting import blend
from saligraft.hooks import changed_output, exclusive_use, layer_name, refuse_compiled, refuse_replicas, unwrapped
from saligraft.methods.base import check_batch
from saligraft.methods.kinds import FeatureMixer
from saligraft.methods.manifold_mixup.layers import INPUT, mixing_layers


def mix_features(features: Tensor, *, partner: Tensor, source_weight: Tensor) -> Tensor:
    """Blend each sample's features with its partner's. Pure: nothing random, no input changed.

    Args:
        features: (B, ...), floating point.
        partner: (B,), each sample is blended with ``features[partner]``.
        source_weight: (B,), λ.

    Returns:
        λ h(x_i) + (1−λ) h(x_j), (B, ...).

    Example:
        >>> features = torch.tensor([[0.0], [4.0]])
        >>> mix_features(features, partner=torch.tensor([1, 0]), source_weight=torch.full((2,), 0.75)).tolist()
        [[1.0], [3.0]]
    """
    checks.tensor("features", features)
    checks.rank("partner", partner, "(B)", features, "features")
    if not _is_batch(features, len(partner)):
        raise ValueError(
            f"features must be floating point with one entry per image first: expected {len(partner)}, "
            f"got {features.dtype} {checks.shape_of(features)}"
        )
    checks.proportions("source_weight", source_weight, features)
    return blend(features, features[partner], source_weight.view(-1, *[1] * (features.ndim - 1)))


class ManifoldMixupDraws(NamedTuple):
    """The draws of one batch.

    Args:
        partner: (B,).
        source_weight: λ, (B,).
        layer: Name of the layer to mix at.
    """

    partner: Tensor
    source_weight: Tensor
    layer: str


@dataclass(frozen=True, kw_only=True)
class ManifoldMixup(FeatureMixer):
    """Draw partners, λ ~ Beta(alpha, alpha) and one layer for the batch, then blend there.

    Args:
        probability: Share of the samples (or batches) that are mixed.
        per: Whether λ and the decision to mix are drawn for each "sample" or for the "batch".
        alpha: Parameter of the Beta distribution; the authors use 2 for CIFAR and Tiny-ImageNet.
        layers: Names of modules of the model, or "input" for the images; None for the input and the ends of its first
            stages, by the rules of `saligraft.methods.manifold_mixup.layers`.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> images, labels = torch.rand(4, 3, 10, 10), torch.tensor([0, 1, 2, 3])
        >>> with ManifoldMixup(layers=("input", "0")).mixing(model, images, labels) as mixed:
        ...     logits = model(mixed.images)
        >>> logits.shape, mixed.targets(5).shape
        (torch.Size([4, 5]), torch.Size([4, 5]))
    """

    alpha: float = 2.0
    layers: Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("alpha", self.alpha)
        if self.layers is None:
            return
        if isinstance(self.layers, str) or not all(isinstance(name, str) for name in self.layers):
            raise TypeError(f"layers must be a sequence of names such as ('input', 'layer1'), got {self.layers!r}")
        if not self.layers:
            raise ValueError("layers must name at least one layer, got an empty sequence")
        object.__setattr__(self, "layers", tuple(self.layers))

    def layers_of(self, model: nn.Module, images: Tensor) -> tuple[str, ...]:
        """Return the names of the layers to draw from.

        Args:
            model: the model in training.
            images: (B, C, H, W); the default layers depend on their size.
        """
        if self.layers != (INPUT,):
            refuse_replicas(model)
        if self.layers is None:
            refuse_compiled(model)
            return mixing_layers(unwrapped(model), images)
        names = tuple(
            INPUT if name == INPUT else layer_name(name, unwrapped(model), also=(INPUT,)) for name in self.layers
        )
        for name in names:
            if name != INPUT:
                refuse_compiled(model, name)
        return names

    def draw(
        self, images: Tensor, layers: Sequence[str], *, generator: torch.Generator | None = None
    ) -> ManifoldMixupDraws:
        """Make all draws for this batch on the host.

        Args:
            images: (B, C, H, W); the draws are moved to their device.
            layers: from `layers_of`.
            generator: CPU generator for all random draws; None uses torch's global generator.
        """
        partner = self.draw_partners(images, generator)
        weight = self.draw_ratio(images, self.alpha, generator)
        layer = layers[int(torch.randint(len(layers), (), generator=generator, device="cpu"))]
        return ManifoldMixupDraws(partner, draws.to_device(weight, images.device), layer)

    @contextmanager
    def mixing(
        self, model: nn.Module, images: Tensor, labels: Tensor, *, generator: torch.Generator | None = None
    ) -> Iterator[MixedBatch]:
        """Mix in the one forward pass made inside: ``with method.mixing(...) as mixed: logits = model(mixed.images)``.

        The images of the mixed batch are blended if the input was drawn, else unchanged; its mask (B, 1, 1) is λ.

        Args:
            model: the model in training, uncompiled down to the mixed layers and without gradient checkpointing.
            images: (B, C, H, W).
            labels: (B,) or (B, K).
            generator: CPU generator for all random draws; None uses torch's global generator.
        """
        check_batch(images, labels)
        checks.label_values(labels)
        with exclusive_use(model):
            drawn = self.draw(images, self.layers_of(model, images), generator=generator)
            partner, weight = drawn.partner, drawn.source_weight
            mixed = AlteredBatch(images, labels, labels[partner], weight, weight[:, None, None], partner)
            if drawn.layer == INPUT:
                yield mixed._replace(images=mix_features(images, partner=partner, source_weight=weight))
                return
            with changed_output(unwrapped(model), drawn.layer, lambda output: _mix_all(output, drawn)):
                yield mixed


def _is_batch(value: Any, batch: int) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0 and len(value) == batch


def _mix_all(output: Any, drawn: ManifoldMixupDraws) -> Any:
    """Blend every tensor of a layer's output, which may be nested, that has one entry per image."""
    leaves, structure = pytree.tree_flatten(output)
    is_batch = [_is_batch(leaf, len(drawn.partner)) for leaf in leaves]
    if not any(is_batch):
        shown = checks.shape_of(output) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"layer {drawn.layer!r} must return features with the {len(drawn.partner)} images of the batch first, "
            f"got {shown}: name other layers by layers="
        )
    mixed = [
        mix_features(leaf, partner=drawn.partner, source_weight=drawn.source_weight) if mixable else leaf
        for leaf, mixable in zip(leaves, is_batch, strict=True)
    ]
    return pytree.tree_unflatten(mixed, structure)
