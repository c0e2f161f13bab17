"""Random choice among batch mixers, per batch or per sample; itself a batch mixer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.grafting import spread
from saligraft.methods.base import BatchMixer
from saligraft.methods.compose import Compose
from saligraft.methods.kinds import FeatureMixer, ImageTransform, StepStrategy


def join_parts(images: Tensor, labels: Tensor, indices: Sequence[Tensor], parts: Sequence[MixedBatch]) -> MixedBatch:
    """Put parts of a batch, mixed by themselves, back in order. Pure.

    `indices` holds for each part the places (n,) of its samples in the batch, all places once. Masks of different
    resolutions come together at the image's, and become float where one of them blends.
    """
    order = torch.cat(list(indices)).argsort()
    height, width = images.shape[2:]
    if len({(part.mask.shape[1:], part.mask.dtype) for part in parts}) == 1:
        masks = [part.mask for part in parts]
    else:
        kind = torch.bool if all(part.mask.dtype == torch.bool for part in parts) else torch.float32
        spreads = [spread(part.mask, height, width).to(kind) for part in parts]
        masks = [mask.expand(len(mask), height, width) for mask in spreads]
    partner = torch.cat([index[part.partner] for index, part in zip(indices, parts, strict=True)])[order]
    return MixedBatch(
        images=torch.cat([part.images for part in parts])[order],
        source_labels=labels,
        destination_labels=labels[partner],
        source_weight=torch.cat([part.source_weight for part in parts])[order],
        mask=torch.cat(masks)[order],
        partner=partner,
    )


class Part(NamedTuple):
    """Some samples of the batch and what was drawn for them."""

    method: BatchMixer[Any] | None
    """None for samples that are left as they were."""
    places: Tensor
    """(n,) their places in the batch."""
    drawn: Any


@dataclass(frozen=True, kw_only=True)
class RandomChoice(BatchMixer[tuple[Part, ...]]):
    """Draw one of several methods, then mix by it: ``RandomChoice([Mixup(), CutMix()], probabilities=[0.3, 0.7])``.

    With `per="sample"` each method mixes its own part of the batch: partners are found inside that part, and given as
    places in the whole batch. `probability` and `per` of the members hold as well. Image transforms may be among them,
    and None, which leaves samples as they are; `MethodChoice` takes the other kinds, per batch. All members that need
    saliency are given the same map; where their authors' sources differ, the step must name one.
    """

    methods: Sequence[BatchMixer[Any] | ImageTransform[Any] | None] = field(kw_only=False)
    probabilities: Sequence[float] | None = None  # one per method, together 1; all alike if None
    per: draws.Per = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.methods, Sequence) or isinstance(self.methods, str):
            raise TypeError(
                f"methods must be a sequence such as [Mixup(), CutMix()], got {type(self.methods).__name__}"
            )
        methods = tuple(Compose([one]) if isinstance(one, ImageTransform) else one for one in self.methods)
        for method in methods:
            if method is not None and not isinstance(method, BatchMixer):
                kinds = "batch mixers or image transforms such as CutMix() or Cutout()"
                hint = ": MethodChoice takes it, per batch" if isinstance(method, FeatureMixer | StepStrategy) else ""
                raise TypeError(f"methods must be {kinds}, got {type(method).__name__}{hint}")
        if not methods:
            raise ValueError("methods must name at least one method, got none")
        object.__setattr__(self, "methods", methods)
        if self.probabilities is not None:
            object.__setattr__(self, "probabilities", checks.probabilities(self.probabilities, len(methods)))
        mixers = [method for method in self.mixers if method is not None]
        needing = {method.saliency_source: None for method in mixers if method.needs_saliency}
        using = {method.saliency_source: None for method in mixers if method.uses_saliency}
        object.__setattr__(self, "needs_saliency", bool(needing))
        object.__setattr__(self, "uses_saliency", bool(using))
        # Where members differ this names no source, so that a step asks for one instead of taking either.
        object.__setattr__(self, "saliency_source", " or ".join(needing or using) or type(self).saliency_source)
        object.__setattr__(self, "with_originals", any(method.with_originals for method in mixers))

    @property
    def moves_pixels(self) -> bool:
        return any(method is not None and method.moves_pixels for method in self.mixers)

    @property
    def mixers(self) -> tuple[BatchMixer[Any] | None, ...]:
        """The members, each a batch mixer by now, or None."""
        return tuple(method if isinstance(method, BatchMixer) else None for method in self.methods)

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> tuple[Part, ...]:
        self._check_draw(images, generator)
        methods = self.mixers
        weights = checks.probabilities(self.probabilities, len(methods))
        choice = draws.choices(weights, self._count(images), probability=self.probability, generator=generator)
        choice = choice.expand(len(images))
        parts = []
        for place, method in enumerate([*methods, None]):
            index = (choice == place).nonzero()[:, 0]
            if len(index):
                # Draws look at the shape and the device alone, so any n images stand for those of the part.
                drawn = None if method is None else method.draw(images[: len(index)], generator=generator)
                parts.append(Part(method, draws.to_device(index, images.device), drawn))
        return tuple(parts)

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: tuple[Part, ...]) -> MixedBatch:
        maps = [saliency if self._takes(part.method) else None for part in drawn]
        if len(drawn) == 1:
            return _mixed(images, labels, maps[0], drawn[0])
        parts = [
            _mixed(images[part.places], labels[part.places], None if given is None else given[part.places], part)
            for part, given in zip(drawn, maps, strict=True)
        ]
        return join_parts(images, labels, [part.places for part in drawn], parts)

    def _takes(self, method: BatchMixer[Any] | None) -> bool:
        """Whether a member is given the batch's map; one that can do without, as SaliencyMix, only if it is its own."""
        if method is None:
            return False
        return method.needs_saliency or (method.uses_saliency and method.saliency_source == self.saliency_source)


def _mixed(images: Tensor, labels: Tensor, saliency: Tensor | None, part: Part) -> MixedBatch:
    if part.method is None:
        return MixedBatch.unmixed(images, labels)
    return part.method.apply(images, labels, saliency, part.drawn)
