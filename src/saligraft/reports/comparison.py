"""What several methods make of the same pairs: pictures and labels, ready for a page or a figure.

In the manner of the paper's Figure 1: source and destination, then each method's results with their labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from saligraft.reports import tiles


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One result of a method; a `source_weight` of None means one image by itself, whose label stays."""

    picture: tiles.Picture
    source_weight: float | None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class MethodSamples:
    """What one method makes of one pair; `missing` says why there is nothing, where there is nothing."""

    name: str
    title: str
    note: str
    samples: tuple[Sample, ...] = ()
    maps: tuple[tiles.Picture, ...] = ()  # saliency of source and destination as this method saw them
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class ComparedPair:
    """One pair and what every method makes of it."""

    source: tiles.Picture
    destination: tiles.Picture
    source_class: str
    destination_class: str
    methods: tuple[MethodSamples, ...]

    @property
    def maps(self) -> tuple[tiles.Picture, ...]:
        """The maps of the first method that has any, for the whole pair to show."""
        return next((method.maps for method in self.methods if method.maps), ())

    def shares(self, sample: Sample) -> list[tuple[str, str, float]]:
        """The label as (kind, class, share) with shares that sum to one: `("source", "star", 0.62)`, ...."""
        if sample.source_weight is None or self.source_class == self.destination_class:
            return [("source", self.source_class, 1.0)]
        weight = sample.source_weight
        return [("source", self.source_class, weight), ("destination", self.destination_class, 1 - weight)]

    def in_words(self, sample: Sample) -> list[tuple[str, str]]:
        """The label as (kind, words): `star 62 %` and `ring 38 %`; the rounded shares sum to 100."""
        shares = self.shares(sample)
        first = round(100 * shares[0][2])
        return [
            (kind, f"{name} {number} %") for (kind, name, _), number in zip(shares, (first, 100 - first), strict=False)
        ]


def one_method(pairs: Sequence[ComparedPair], name: str) -> list[MethodSamples]:
    """The same method on every pair."""
    return [next(method for method in pair.methods if method.name == name) for pair in pairs]
