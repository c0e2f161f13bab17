"""Random choice among methods: `RandomChoice` among batch mixers, per batch or sample, `MethodChoice` among all kinds.

`RandomChoice` is itself a batch mixer; in `MethodChoice` each method trains with the step of its own kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import AlteredBatch, MixedBatch
from saligraft.grafting import spread
from saligraft.methods.base import Applied, BatchMixer, saliency_sources
from saligraft.methods.compose import Compose
from saligraft.methods.kinds import FeatureMixer, ImageTransform, Method, StepStrategy


@dataclass(frozen=True, kw_only=True)
class Choice(Applied):
    """What both choices share.

    Args:
        methods: Methods to choose from.
        probabilities: One per method, summing to 1; all equal if None.
        probability: Probability that any method is applied.
        per: Whether the choice is made for each "sample" or once per "batch".
    """

    methods: Sequence[Any] = field(kw_only=False)
    probabilities: Sequence[float] | None = None
    per: draws.Per = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.methods, Sequence) or isinstance(self.methods, str):
            kind = type(self.methods).__name__
            raise TypeError(f"methods must be a sequence such as [Mixup(), CutMix()], got {kind}")
        if not self.methods:
            raise ValueError("methods must name at least one method, got none")
        object.__setattr__(self, "methods", tuple(self._member(method) for method in self.methods))
        if self.probabilities is not None:
            object.__setattr__(self, "probabilities", checks.probabilities(self.probabilities, len(self.methods)))
        self._inherit_traits()

    def _member(self, method: Any) -> Any:
        """One of `methods`, validated and in its usual form."""
        raise NotImplementedError

    def _choose(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw indices (count,) of methods; ``len(methods)`` where none is applied."""
        weights = checks.probabilities(self.probabilities, len(self.methods))
        return draws.choices(weights, count, probability=self.probability, generator=generator)


class Part(NamedTuple):
    """Some samples of a batch and their draws.

    Args:
        method: None for samples that are left unchanged.
        places: (n,), indices of the samples in the batch.
        drawn: The draws of the method.
    """

    method: BatchMixer[Any] | None
    places: Tensor
    drawn: Any


@dataclass(frozen=True, kw_only=True)
class RandomChoice(Choice, BatchMixer[tuple[Part, ...]]):
    """Draw one of several batch mixers, then mix with it.

    With ``per="sample"`` each method mixes its own part of the batch, with partners from that part. `probability` and
    `per` of each method apply as well. All methods that need saliency get the same map; if their authors' sources
    differ, the step must name one. `MethodChoice` accepts the other kinds, per batch.

    Args:
        methods: Batch mixers, image transforms, or None, which leaves samples unchanged.
        probabilities: One per method, summing to 1; all equal if None.
        probability: Probability that any method is applied.
        per: Whether the choice is made for each "sample" or once per "batch".

    Example:
        >>> import torch, saligraft as sg
        >>> method = sg.RandomChoice([sg.Mixup(), sg.CutMix()], probabilities=[0.3, 0.7], per="sample")
        >>> method(torch.rand(8, 3, 16, 16), torch.arange(8)).images.shape
        torch.Size([8, 3, 16, 16])
    """

    def _member(self, method: Any) -> BatchMixer[Any] | None:
        if isinstance(method, ImageTransform):
            return Compose([method])
        if method is not None and not isinstance(method, BatchMixer):
            kinds = "batch mixers or image transforms such as CutMix() or Cutout()"
            hint = ": MethodChoice takes it, per batch" if isinstance(method, FeatureMixer | StepStrategy) else ""
            raise TypeError(f"methods must be {kinds}, got {checks.kind_of(method)}{hint}")
        return method

    def singles(self) -> Iterator[Applied]:
        for method in self.methods:
            yield from () if method is None else method.singles()

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> tuple[Part, ...]:
        self._check_draw(images, generator)
        choice = self._choose(self._count(images), generator).expand(len(images))
        parts = []
        for place, method in enumerate([*self.methods, None]):
            index = (choice == place).nonzero()[:, 0]
            if len(index):
                # Draws depend only on shape and device, so any n images can represent the part.
                drawn = None if method is None else method.draw(images[: len(index)], generator=generator)
                parts.append(Part(method, draws.to_device(index, images.device), drawn))
        return tuple(parts)

    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: tuple[Part, ...]) -> MixedBatch:
        own = saliency_sources([self])
        mixed = []
        for part in drawn:
            # A method that can do without maps, such as SaliencyMix, gets the batch's maps only from its own source.
            uses_map = part.method is not None and (
                part.method.needs_saliency or (own and saliency_sources([part.method]) == own)
            )
            maps = saliency if uses_map else None
            if len(drawn) == 1:
                return _mix(images, labels, maps, part)
            at = part.places
            mixed.append(_mix(images[at], labels[at], None if maps is None else maps[at], part))
        return join_parts(images, labels, [part.places for part in drawn], mixed)


def join_parts(images: Tensor, labels: Tensor, indices: Sequence[Tensor], parts: Sequence[MixedBatch]) -> MixedBatch:
    """Put parts of a batch that were mixed separately back in order. Pure.

    Masks of different resolutions are brought to the image's, and to float if one of them blends.

    Args:
        images: (B, C, H, W), the batch.
        labels: (B,) or (B, K).
        indices: Places (n,) in the batch of each part's samples; every place occurs once.
        parts: The mixed parts.
    """
    order = torch.cat(list(indices)).argsort()
    height, width = checks.frame_size(images)
    if len({(part.mask.shape[1:], part.mask.dtype) for part in parts}) == 1:
        masks = [part.mask for part in parts]
    else:
        dtype = torch.bool if all(part.mask.dtype == torch.bool for part in parts) else torch.float32
        spreads = [spread(part.mask, height, width).to(dtype) for part in parts]
        masks = [mask.expand(len(mask), height, width) for mask in spreads]
    partner = torch.cat([index[part.partner] for index, part in zip(indices, parts, strict=True)])[order]
    kind = AlteredBatch if any(isinstance(part, AlteredBatch) for part in parts) else MixedBatch
    return kind(
        images=torch.cat([part.images for part in parts])[order],
        source_labels=labels,
        destination_labels=labels[partner],
        source_weight=torch.cat([part.source_weight for part in parts])[order],
        mask=torch.cat(masks)[order],
        partner=partner,
    )


def _mix(images: Tensor, labels: Tensor, saliency: Tensor | None, part: Part) -> MixedBatch:
    if part.method is None:
        return MixedBatch.unmixed(images, labels)
    return part.method.apply(images, labels, saliency, part.drawn)


@dataclass(frozen=True, kw_only=True)
class MethodChoice(Choice):
    """Draw one of several methods of any kind for each batch; `training_step` trains with it.

    A feature mixer changes an entire pass and a step strategy the loss, so a choice per sample is impossible;
    `RandomChoice` offers that for batch mixers. After construction `methods` holds a tuple of methods for each.

    Args:
        methods: Each a method of any kind, None for plain training, or a sequence of image transforms followed by a
            method.
        probabilities: One per method, summing to 1; all equal if None.
        probability: Probability that any method is applied.
        per: Must be "batch".

    Example:
        >>> import torch, saligraft as sg
        >>> choice = sg.MethodChoice([None, sg.Mixup(), [sg.Cutout(), sg.ManifoldMixup()]])
        >>> choice.draw(generator=torch.Generator().manual_seed(0)) in (0, 1, 2)
        True
    """

    def __post_init__(self) -> None:
        if self.per == "sample":
            kinds = "batch mixers and image transforms, by RandomChoice"
            raise ValueError(f"per must be 'batch' in a choice among all kinds (per 'sample': {kinds}), got 'sample'")
        super().__post_init__()

    def _member(self, method: Any) -> tuple[Method | MethodChoice, ...]:
        member = () if method is None else tuple(method) if isinstance(method, Sequence) else (method,)
        for each in member:
            if not isinstance(each, Applied):
                raise TypeError(f"methods must be methods such as Mixup(), got {checks.kind_of(each)}")
        return member

    def singles(self) -> Iterator[Applied]:
        for member in self.methods:
            for method in member:
                yield from method.singles()

    def draw(self, *, generator: torch.Generator | None = None) -> int | None:
        """Draw the index of the method that trains this batch; None for plain training.

        Args:
            generator: CPU generator for all random draws; None uses torch's global generator.
        """
        checks.generator(generator)
        place = int(self._choose(1, generator))
        return place if place < len(self.methods) else None
