"""Random choice among methods of any kind, once per batch; each trains by the step of its own kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from saligraft import checks, draws
from saligraft.methods.base import Applied
from saligraft.methods.kinds import Method


@dataclass(frozen=True, kw_only=True)
class MethodChoice(Applied):
    """Draw one of several methods of any kind for each batch: ``MethodChoice([None, ManifoldMixup(), Mixup()])``.

    ``training_step(model, MethodChoice([...]))`` trains by it. None is plain training; a sequence is image transforms
    with a method after them, as in ``[Cutout(), ManifoldMixup()]``. A feature mixer changes a whole pass and a step
    strategy a whole loss, so that no choice per sample has a meaning; `RandomChoice` makes that among batch mixers.
    """

    methods: Sequence[Method | MethodChoice | Sequence[Method | MethodChoice] | None] = field(kw_only=False)
    probabilities: Sequence[float] | None = None  # one per method, together 1; all alike if None
    per: draws.Per = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per != "batch":
            kinds = "batch mixers and image transforms, by RandomChoice"
            raise ValueError(
                f"per must be 'batch' in a choice among all kinds (per 'sample': {kinds}), got {self.per!r}"
            )
        if not isinstance(self.methods, Sequence) or isinstance(self.methods, str):
            raise TypeError(f"methods must be a sequence such as [None, Mixup()], got {type(self.methods).__name__}")
        if not self.methods:
            raise ValueError("methods must name at least one method, got none")
        members = tuple(
            () if one is None else tuple(one) if isinstance(one, Sequence) else (one,) for one in self.methods
        )
        for method in (method for member in members for method in member):
            if not isinstance(method, Applied):
                raise TypeError(f"methods must be methods such as Mixup(), got {type(method).__name__}")
        object.__setattr__(self, "methods", members)
        if self.probabilities is not None:
            object.__setattr__(self, "probabilities", checks.probabilities(self.probabilities, len(members)))

    @property
    def members(self) -> tuple[tuple[Method | MethodChoice, ...], ...]:
        """What is chosen from, each as the methods that follow on each other; none of them for plain training."""
        return tuple(tuple(one) for one in self.methods if isinstance(one, tuple))

    @property
    def needs_saliency(self) -> bool:
        return self._any("needs_saliency")

    @property
    def uses_saliency(self) -> bool:
        return self._any("uses_saliency")

    @property
    def with_originals(self) -> bool:
        return self._any("with_originals")

    def draw(self, *, generator: torch.Generator | None = None) -> int | None:
        """The place of the member that trains this batch; None where the batch is passed over."""
        checks.generator(generator)
        weights = checks.probabilities(self.probabilities, len(self.methods))
        place = int(draws.choices(weights, 1, probability=self.probability, generator=generator))
        return place if place < len(self.methods) else None

    def _any(self, trait: str) -> bool:
        return any(getattr(method, trait, False) for member in self.members for method in member)
