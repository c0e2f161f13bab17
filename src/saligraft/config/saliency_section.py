"""[method.saliency] of a recipe: where the maps come from, for methods that look at them."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from pydantic import Field
from torch import nn

from saligraft.config.sections import RecipeSection, complete_options
from saligraft.saliency.base import SaliencySource
from saligraft.saliency.sources import SALIENCY_SOURCES, saliency_source


class Normalization(NamedTuple):
    """What the loader normalises images by; of values in [0, 1], one entry per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class SaliencySection(RecipeSection):
    """[method.saliency]: where the maps come from, for methods that look at them."""

    name: str | None = None
    """A saliency source of `saligraft list saliency`; by default the one of the method's authors."""
    layer: str | None = None
    """Module of the network whose features are looked at; by default the last spatial map is found."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the source, such as of and over; what is not given gets its default, mean and std are the data's."""

    def complete(self, own: str, *, in_training_pass: bool) -> Self:
        """With its name, by default the method's own, and all options that have a meaning written out."""
        name = self.name or own
        if name not in SALIENCY_SOURCES:
            raise ValueError(f"unknown saliency source {name!r}; valid: {', '.join(SALIENCY_SOURCES)}")
        accepted = _arguments(name)
        if self.layer is not None and "layer" not in accepted:
            raise ValueError(f"layer must be left out for {name}, which looks at no layer, got {self.layer!r}")
        # A map that the training pass yields comes in that pass's mode.
        others = ("model", "layer", "mean", "std", *(("mode",) if in_training_pass else ()))
        defaults = {option: p.default for option, p in accepted.items() if option not in others}
        options = dict(self.options)
        owner = f"saliency source {name}" + (" in the training pass" if in_training_pass else "")
        complete_options(options, defaults, owner)
        given = {option: value for option, value in options.items() if value is not None}  # TOML has no null
        return self.model_copy(update={"name": name, "options": given})

    def build(self, model: nn.Module, data: Normalization) -> SaliencySource:
        """The source, looking at `model` if it looks at any network; bottom-up ones undo the normalisation first."""
        undone = data._asdict() if self.name and "mean" in _arguments(self.name) else {}
        return saliency_source(self.name, model, layer=self.layer, **self.options, **undone)


def own_source(methods: Sequence[type[Any]], named: bool) -> str | None:
    """The source that the authors of those methods use which need maps, or else can use them; None where none looks.

    Methods whose authors differ need one named.
    """
    needing, using = (
        [method for method in methods if getattr(method, f"{trait}_saliency", False)] for trait in ("needs", "uses")
    )
    sources = list(dict.fromkeys(str(method.saliency_source) for method in needing or using))
    if len(sources) > 1 and not named:
        valid = ", ".join(SALIENCY_SOURCES)
        raise ValueError(
            f"saliency.name must be given for methods whose own sources differ ({', '.join(sources)}); valid: {valid}"
        )
    return sources[0] if sources else None


def _arguments(source: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(SALIENCY_SOURCES[source]).parameters
