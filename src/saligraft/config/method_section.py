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

Each of several methods has its own table of options, under its name, so that `--set method.options.mixup.alpha=0.2`
works. "cutout+mixup" is another way to write the list, and the only one in `choices`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args, get_type_hints

from pydantic import Field, field_validator

from saligraft.config.saliency_section import Normalization, SaliencySection
from saligraft.config.sections import RecipeSection, complete_options
from saligraft.import_path import is_import_path
from saligraft.names import METHODS, did_you_mean

if TYPE_CHECKING:
    from saligraft.methods import MethodChoice, RandomChoice
    from saligraft.methods.base import Applied
    from saligraft.methods.kinds import Method

NONE = "none"  # TOML has no null: plain training as a method, None as an option that has another default
RANDOM_CHOICE = "random-choice"
AND = "+"  # between the parts of a composition
METHOD_NAMES = (NONE, *(name for methods in METHODS.values() for name in methods))
ANY_DATA = Normalization((0.5,) * 3, (0.5,) * 3)  # for validation before the data is loaded

Share = Annotated[float, Field(gt=0, le=1)]


class MethodSection(RecipeSection):
    """[method]: how training images are mixed or changed."""

    name: str = NONE
    """A method of `saligraft list methods`, several in order, "random-choice", "none", or "package.module:Name"."""
    choices: dict[str, Share] = Field(default_factory=dict)
    """For random-choice: the methods to choose from and their probabilities, which sum to 1."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Fields of the method, such as temperature; one table per method if there are several."""
    saliency: SaliencySection = SaliencySection()
    """Where saliency maps come from."""

    @field_validator("name", mode="before")
    @classmethod
    def _joined(cls, name: Any) -> Any:
        """Join a list of names to one name; empty and other lists fail as the wrong type."""
        is_list = isinstance(name, tuple) and name and all(isinstance(part, str) for part in name)
        return AND.join(name) if is_list else name

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name != RANDOM_CHOICE:
            _refuse_unknown(name)
        return name

    @field_validator("choices")
    @classmethod
    def _known_choices(cls, choices: dict[str, float]) -> dict[str, float]:
        for name in choices:
            _refuse_unknown(name)
        return choices

    def check(self) -> Self:
        from saligraft.steps import resolve_step

        if self.choices and self.name != RANDOM_CHOICE:
            raise ValueError(
                f"choices must be left out for method {self.name}: they belong to name = {RANDOM_CHOICE!r}"
            )
        if self.name == RANDOM_CHOICE:
            _complete_choices(self.options, self.choices)
        else:
            _complete_method(self.name, self.options)
        try:
            methods = self.build(ANY_DATA)
            resolve_step(methods)  # refuses combinations that no step can train
        except TypeError as error:  # pydantic reports only ValueErrors as the user's mistake
            raise ValueError(str(error)) from error
        self._complete_saliency(methods)
        return self

    def _complete_saliency(self, methods: "Sequence[Applied]") -> None:
        from saligraft.methods.base import saliency_sources
        from saligraft.saliency.sources import SALIENCY_SOURCES

        sources = saliency_sources(methods)
        if not sources:
            if self.saliency != SaliencySection():
                raise ValueError(f"saliency must be left out for method {self.name}, which uses none")
            return
        if len(sources) > 1 and self.saliency.name is None:
            names, valid = ", ".join(sources), ", ".join(SALIENCY_SOURCES)
            raise ValueError(
                f"saliency.name must be given for methods whose own sources differ ({names}); valid: {valid}"
            )
        complete = self.saliency.complete(sources[0], in_training_pass=self.with_originals)
        object.__setattr__(self, "saliency", complete)  # frozen for others

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of all methods."""
        names = self.choices if self.name == RANDOM_CHOICE else [self.name]
        return tuple(part for name in names for part in name.split(AND) if part != NONE)

    @property
    def with_originals(self) -> bool:
        """Whether training uses the originals as well as mixed images."""
        from saligraft.methods.registry import find_method

        return any(find_method(name).method.with_originals for name in self.parts)

    def build(self, data: Normalization | None = None) -> "Sequence[Method | MethodChoice]":
        """Build the methods in order, for `training_step`; none for plain training.

        Args:
            data: How the loader normalises images; None for the methods' defaults.
        """
        if self.name == RANDOM_CHOICE:
            choice_options = {name: value for name, value in self.options.items() if name not in self.choices}
            members = [_built(name, self.options[name], data) for name in self.choices]
            return [_choice(members, probabilities=tuple(self.choices.values()), **choice_options)]
        return _built(self.name, self.options, data)


def _refuse_unknown(name: str) -> None:
    """Refuse an unknown method, or part of a composition; the user's own are imported later."""
    parts = name.split(AND)
    for part in parts:
        known = METHOD_NAMES if len(parts) == 1 else METHOD_NAMES[1:]  # plain training is no part
        if part not in known and not is_import_path(part):
            names = (*known, RANDOM_CHOICE) if len(parts) == 1 else known
            raise ValueError(f"unknown method {part!r}; valid: {', '.join(names)}{did_you_mean(part, names)}")


def _complete_choices(options: dict[str, Any], choices: Mapping[str, float]) -> None:
    if not choices:
        raise ValueError(f"choices must name the methods of {RANDOM_CHOICE}, such as {{ mixup = 0.3, cutmix = 0.7 }}")
    from saligraft.methods import RandomChoice

    set_by_choices = ("methods", "probabilities")
    defaults = {name: value for name, value in _defaults(RandomChoice).items() if name not in set_by_choices}
    complete_options(options, {**defaults, **{name: {} for name in choices}}, f"method {RANDOM_CHOICE}")
    for name in choices:
        _complete_method(name, _table(options, name))


def _complete_method(name: str, options: dict[str, Any]) -> None:
    """Fill in every option of one method, or of each part of a composition under its name."""
    parts = name.split(AND)
    if len(parts) == 1:
        _complete_fields(name, options)
        return
    if len(set(parts)) < len(parts):
        raise ValueError(f"name must contain each method once, got {name!r}")
    complete_options(options, {part: {} for part in parts}, f"method {name}")
    for part in parts:
        _complete_fields(part, _table(options, part))


def _complete_fields(name: str, options: dict[str, Any]) -> None:
    if name == NONE:
        complete_options(options, {}, f"method {name}")
        return
    from saligraft.methods.registry import find_method

    method = find_method(name).method
    known = _defaults(method)
    for field in method.data_options(*ANY_DATA):
        if method.data_decides:
            del known[field]
        else:
            known[field] = ...  # omitted unless set
    complete_options(options, known, f"method {name}")
    for field in _may_be_none(method) & options.keys():
        if options[field] in (None, NONE):
            options[field] = NONE
            if known[field] is None:
                del options[field]


def _table(options: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of one method's table of options; any other type is refused."""
    if not isinstance(options[name], Mapping):
        raise ValueError(f"options.{name} must be a table of options, got {options[name]!r}")
    options[name] = dict(options[name])
    table: dict[str, Any] = options[name]
    return table


def _built(name: str, options: Mapping[str, Any], data: Normalization | None) -> "list[Method]":
    parts = name.split(AND)
    if len(parts) > 1:
        return [method for part in parts for method in _built(part, options[part], data)]
    if name == NONE:
        return []
    from saligraft.methods.registry import find_method

    method = find_method(name).method
    may_be_none = _may_be_none(method)
    values = {f: None if value == NONE and f in may_be_none else value for f, value in options.items()}
    return [method(**{**({} if data is None else method.data_options(*data)), **values})]


def _choice(members: "Sequence[Sequence[Method]]", **options: Any) -> "RandomChoice | MethodChoice":
    """Build a batch mixer if all methods are batch mixers or image transforms, else a choice of steps."""
    from saligraft.methods import BatchMixer, Compose, ImageTransform, MethodChoice, RandomChoice

    mixers: list[Any] = []
    for member in members:
        parts = [part for part in member if isinstance(part, BatchMixer | ImageTransform) and not part.makes_noise]
        if len(parts) < len(member):
            return MethodChoice(members, **options)
        mixers.append(Compose(parts) if len(parts) > 1 else parts[0] if parts else None)
    return RandomChoice(mixers, **options)


def _defaults(method: type[Any]) -> dict[str, Any]:
    return {field.name: ... if field.default is MISSING else field.default for field in fields(method)}


def _may_be_none(method: type[Any]) -> set[str]:
    hints = get_type_hints(method)
    return {field.name for field in fields(method) if NoneType in get_args(hints[field.name])}
