"""Manifold Mixup: blend two samples' features at a random layer, and their labels, in one proportion.

Verma et al., ICML 2019; Table 1 of the Saliency Grafting paper: λ h(x_i) + (1−λ) h(x_j).
Networks know nothing of it: a hook on the drawn layer blends what the layer gives.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.feature_hooks import changed_output, refuse_compiled, unwrapped
from saligraft.feature_layers import INPUT, SHOWN_NAMES, mixing_layers
from saligraft.grafting import blend
from saligraft.methods.base import check_batch
from saligraft.methods.kinds import FeatureMixer
from saligraft.threads import exclusive_use


def mix_features(features: Tensor, *, partner: Tensor, source_weight: Tensor) -> Tensor:
    """Blend each sample's features (B, ...) with its partner's; source_weight (B,) is λ. Pure."""
    checks.tensor("features", features)
    checks.same_device("partner", partner, features, "features")
    if not features.is_floating_point() or features.ndim < 1 or len(features) != len(partner):
        raise ValueError(
            f"features must be floating point with one entry per image first: expected {len(partner)}, "
            f"got {features.dtype} {checks.shape_of(features)}"
        )
    return blend(features, features[partner], source_weight.view(-1, *[1] * (features.ndim - 1)))


class ManifoldMixupDraws(NamedTuple):
    partner: Tensor
    source_weight: Tensor
    layer: str


@dataclass(frozen=True, kw_only=True)
class ManifoldMixup(FeatureMixer):
    """Draw partners, λ ~ Beta(alpha, alpha) and one layer for the batch, then blend there.

    `layers` names modules of the model, "input" among them for the images themselves; None finds the ends of its
    first stages (`saligraft.feature_layers` has the rules).
    """

    alpha: float = 2.0  # the authors' for CIFAR and Tiny-ImageNet
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
        """The layers that are drawn from, for this model and images of this shape."""
        network = unwrapped(model)
        if self.layers is None:
            refuse_compiled(model)
            layers = mixing_layers(network, images)
        else:
            layers = tuple(self.layers)
        for name in layers:
            if name != INPUT:
                _check_name(name, network)
                refuse_compiled(model, name)
        return layers

    def draw(
        self, images: Tensor, layers: Sequence[str], *, generator: torch.Generator | None = None
    ) -> ManifoldMixupDraws:
        """Make every random choice for this batch, on the host; moved to the device of `images`."""
        self._check_draw(images, generator)
        batch = len(images)
        partner = draws.partners(batch, probability=self.probability, per=self.per, generator=generator)
        weight = draws.beta(self.alpha, self._count(images), generator=generator).expand(batch)
        layer = layers[int(torch.randint(len(layers), (), generator=generator))]
        device = images.device
        return ManifoldMixupDraws(draws.to_device(partner, device), draws.to_device(weight, device), layer)

    @contextmanager
    def mixing(
        self, model: nn.Module, images: Tensor, labels: Tensor, *, generator: torch.Generator | None = None
    ) -> Iterator[MixedBatch]:
        """Around one pass: ``with method.mixing(model, images, labels) as mixed: logits = model(mixed.images)``.

        The images given are blended where the input was drawn, else as they came; the mask (B, 1, 1) is λ either way.
        """
        check_batch(images, labels)
        checks.label_values(labels)
        with exclusive_use(model):
            drawn = self.draw(images, self.layers_of(model, images), generator=generator)
            partner, weight = drawn.partner, drawn.source_weight
            mixed = MixedBatch(images, labels, labels[partner], weight, weight[:, None, None], partner)
            if drawn.layer == INPUT:
                yield mixed._replace(images=mix_features(images, partner=partner, source_weight=weight))
                return
            with changed_output(unwrapped(model), drawn.layer, lambda output: _mix_all(output, drawn)):
                yield mixed


def _mix_all(output: Any, drawn: ManifoldMixupDraws) -> Any:
    """Whatever a layer gives, with the features of all samples in it blended."""
    mixed, found = _mix_tree(output, drawn)
    if not found:
        shown = checks.shape_of(output) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"layer {drawn.layer!r} must give features with the {len(drawn.partner)} images of the batch first, "
            f"got {shown}: name other layers by layers="
        )
    return mixed


def _mix_tree(value: Any, drawn: ManifoldMixupDraws) -> tuple[Any, bool]:
    """The value with its tensors of one entry per image blended, and whether there was one."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or value.ndim < 1 or len(value) != len(drawn.partner):
            return value, False
        return mix_features(value, partner=drawn.partner, source_weight=drawn.source_weight), True
    if isinstance(value, dict):
        mixed = copy.copy(value)
        results = {key: _mix_tree(entry, drawn) for key, entry in value.items()}
        mixed.update({key: entry for key, (entry, _) in results.items()})
        return mixed, any(found for _, found in results.values())
    if isinstance(value, tuple | list):
        parts = [_mix_tree(entry, drawn) for entry in value]
        entries = [entry for entry, _ in parts]
        whole = type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
        return whole, any(found for _, found in parts)
    return value, False


def _check_name(name: str, network: nn.Module) -> None:
    names = [known for known, _ in network.named_modules(remove_duplicate=False) if known]
    if name in names:
        return
    close = difflib.get_close_matches(name, names, n=SHOWN_NAMES) or names[:SHOWN_NAMES]
    listed = ", ".join(map(repr, (INPUT, *close)))
    raise ValueError(f"layers must name modules of model, such as {listed}; got {name!r}")
