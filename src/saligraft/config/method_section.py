"""[method] of a recipe: one method, several composed, or a random choice; and where their saliency comes from.

```toml
[method]                           # one
name = "saliency-grafting"
options.temperature = 0.1
saliency.name = "cam"

[method]                           # several, in this order
name = ["cutout", "mixup"]
options.cutout.size = 8

[method]                           # one of several, drawn for each batch or sample
name = "random-choice"
choices = { mixup = 0.3, cutmix = 0.7 }
options.per = "sample"
options.mixup.alpha = 0.2
```

Several methods have one table of options each, under their names, so that `--set method.options.mixup.alpha=0.2`
reaches them. "cutout+mixup" is another way to write the list, and the only one among `choices`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from types import NoneType
from typing import Annotated, Any, Self, get_args, get_type_hints

from pydantic import Field, field_validator, model_validator
from torch import nn

from saligraft.config.saliency_section import Normalization as Normalization
from saligraft.config.saliency_section import SaliencySection as SaliencySection
from saligraft.config.saliency_section import own_source
from saligraft.config.sections import RecipeSection, complete_options
from saligraft.methods import (
    FEATURE_MIXERS,
    IMAGE_TRANSFORMS,
    METHODS,
    STEP_STRATEGIES,
    BatchMixer,
    Compose,
    ImageTransform,
    MethodChoice,
    PuzzleMix,
    RandomChoice,
)
from saligraft.step import TrainingStep
from saligraft.strategies import Method, training_step

NO_METHOD = "none"
RANDOM_CHOICE = "random-choice"
AND = "+"  # between the parts of a composition
NOTHING = "none"  # TOML has no null: this is None, where a method's field may be None but is not by default
KINDS: dict[str, Mapping[str, type[Any]]] = {
    "batch mixers": METHODS,
    "image transforms": IMAGE_TRANSFORMS,
    "feature mixers": FEATURE_MIXERS,
    "step strategies": STEP_STRATEGIES,
}
BY_NAME: dict[str, type[Any]] = {name: method for kind in KINDS.values() for name, method in kind.items()}
METHOD_NAMES = (NO_METHOD, *BY_NAME)
# What the data decides and no recipe says: the loader normalises, and AugMix must undo just that.
OF_THE_DATA = {"augmix": ("mean", "std", "normalized")}
# What the data decides unless a recipe says otherwise.
UNLESS_SET = dict.fromkeys(("puzzlemix", "saliencymix"), ("pixel_mean", "pixel_std"))
ANY_DATA = Normalization((0.5,) * 3, (0.5,) * 3)  # for checks before the data is there

Share = Annotated[float, Field(gt=0, le=1)]


class MethodSection(RecipeSection):
    """[method]: how training images are mixed or changed."""

    name: str = NO_METHOD
    """A method of `saligraft list methods`, several in order, "random-choice", or "none" for plain training."""
    choices: dict[str, Share] = Field(default_factory=dict)
    """Of random-choice: the methods to choose from, and the probability of each; together 1."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Fields of the method, such as temperature; a table for each method where there are several."""
    saliency: SaliencySection = SaliencySection()
    """Where saliency maps come from."""

    @field_validator("name", mode="before")
    @classmethod
    def _joined(cls, name: Any) -> Any:
        """A list of names as one name; empty and other lists fail as the wrong type."""
        is_list = isinstance(name, tuple) and name and all(isinstance(part, str) for part in name)
        return AND.join(name) if is_list else name

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.choices and self.name != RANDOM_CHOICE:
            raise ValueError(
                f"choices must be left out for method {self.name}: they belong to name = {RANDOM_CHOICE!r}"
            )
        if self.name == RANDOM_CHOICE:
            _complete_choices(self.options, self.choices)
        else:
            _complete_method(self.name, self.options)
        try:
            self._checked_step()  # what no step can train is refused now
        except TypeError as error:  # pydantic takes only a ValueError for the user's mistake
            raise ValueError(str(error)) from error
        self._complete_saliency()
        return self

    def _complete_saliency(self) -> None:
        given = self.saliency
        own = own_source([BY_NAME[name] for name in self.parts], named=given.name is not None)
        if own is None and given != SaliencySection():
            raise ValueError(f"saliency must be left out for method {self.name}, which looks at none")
        if own is not None:
            complete = given.complete(own, in_training_pass=self.with_originals)
            object.__setattr__(self, "saliency", complete)  # frozen for others

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of all methods that take part."""
        names = self.choices if self.name == RANDOM_CHOICE else [self.name]
        return tuple(part for name in names for part in name.split(AND) if part != NO_METHOD)

    @property
    def with_originals(self) -> bool:
        """True where the originals are trained on too, beside one or more copies of mixed images."""
        return self._checked_step().with_originals

    def _checked_step(self) -> TrainingStep:
        """The step of these methods, before data, network and source are there."""
        looks = any(getattr(BY_NAME[name], "needs_saliency", False) for name in self.parts)
        any_source = {"saliency_source": "input-gradient"} if looks else {}
        return training_step(nn.Identity(), self.build(ANY_DATA), **any_source)

    def build(self, data: Normalization | None = None) -> Sequence[Method | MethodChoice]:
        """The methods in order, for `training_step`; none for plain training. `data` says what the loader did."""
        if self.name == RANDOM_CHOICE:
            own = {name: value for name, value in self.options.items() if name not in self.choices}
            members = [_built(name, self.options[name], data) for name in self.choices]
            return [_choice(members, probabilities=tuple(self.choices.values()), **own)]
        return _built(self.name, self.options, data)


def _complete_choices(options: dict[str, Any], choices: Mapping[str, float]) -> None:
    if not choices:
        raise ValueError(f"choices must name the methods of {RANDOM_CHOICE}, such as {{ mixup = 0.3, cutmix = 0.7 }}")
    own = {name: value for name, value in _defaults(RandomChoice).items() if name not in ("methods", "probabilities")}
    complete_options(options, {**own, **{name: {} for name in choices}}, f"method {RANDOM_CHOICE}")
    for name in choices:
        _complete_method(name, _table(options, name))


def _complete_method(name: str, options: dict[str, Any]) -> None:
    """Write out every option of one method, or of each part of a composition under its name."""
    parts = name.split(AND)
    for part in parts:
        if part not in (BY_NAME if len(parts) > 1 else METHOD_NAMES):
            valid = ", ".join((*METHOD_NAMES, RANDOM_CHOICE))
            raise ValueError(f"unknown method {part!r}; valid: {valid}")
    if len(parts) == 1:
        _complete_fields(name, options)
        return
    if len(set(parts)) < len(parts):
        raise ValueError(f"name must hold each method once, got {name!r}")
    complete_options(options, {part: {} for part in parts}, f"method {name}")
    for part in parts:
        _complete_fields(part, _table(options, part))


def _complete_fields(name: str, options: dict[str, Any]) -> None:
    method = BY_NAME.get(name)
    defaults = {} if method is None else _defaults(method)
    known = {field: value for field, value in defaults.items() if field not in OF_THE_DATA.get(name, ())}
    for field in UNLESS_SET.get(name, ()):
        known[field] = ...  # left out unless given
    complete_options(options, known, f"method {name}")
    may_be_none = set() if method is None else _may_be_none(method)
    for field in may_be_none & options.keys():
        if options[field] in (None, NOTHING):
            options[field] = NOTHING
            if known[field] is None:
                del options[field]


def _table(options: dict[str, Any], name: str) -> dict[str, Any]:
    """The table of one method's options, a copy of its own; anything else in its place is refused."""
    if not isinstance(options[name], Mapping):
        raise ValueError(f"options.{name} must be a table of options, got {options[name]!r}")
    options[name] = dict(options[name])
    table: dict[str, Any] = options[name]
    return table


def _built(name: str, options: Mapping[str, Any], data: Normalization | None) -> list[Method]:
    parts = name.split(AND)
    if len(parts) > 1:
        return [method for part in parts for method in _built(part, options[part], data)]
    if name == NO_METHOD:
        return []
    method = BY_NAME[name]
    may_be_none = _may_be_none(method)
    given = {f: None if value == NOTHING and f in may_be_none else value for f, value in options.items()}
    return [method(**{**_from_data(name, data), **given})]


def _from_data(name: str, data: Normalization | None) -> dict[str, Any]:
    if data is None:
        return {}
    if name == "augmix":
        return {**data._asdict(), "normalized": True}
    return {"pixel_mean": data.mean, "pixel_std": data.std} if name in UNLESS_SET else {}


def _choice(members: Sequence[Sequence[Method]], **options: Any) -> RandomChoice | MethodChoice:
    """A batch mixer where all members are such and image transforms; else a choice of whole steps."""
    mixers = [_as_mixer(methods) for methods in members if methods]
    if not all(mixers):
        return MethodChoice(members, **options)
    left = iter(mixers)
    return RandomChoice([next(left) if methods else None for methods in members], **options)


def _as_mixer(methods: Sequence[Method]) -> BatchMixer[Any] | None:
    """Methods that follow on each other as one batch mixer; None where only a step of their own can train them."""
    parts = [method for method in methods if isinstance(method, BatchMixer | ImageTransform)]
    with_noise = any(isinstance(part, PuzzleMix) and part.adversarial_probability for part in parts)
    if len(parts) < len(methods) or with_noise:
        return None
    return parts[0] if isinstance(parts[0], BatchMixer) else Compose(parts)


def _defaults(method: type[Any]) -> dict[str, Any]:
    return {field.name: ... if field.default is MISSING else field.default for field in fields(method)}


def _may_be_none(method: type[Any]) -> set[str]:
    hints = get_type_hints(method)
    return {field.name for field in fields(method) if NoneType in get_args(hints[field.name])}
