"""`saligraft list`: what there is to choose from."""

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saligraft.checks import one_of

if TYPE_CHECKING:
    from rich.table import Table

TopicArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPIC]", help="methods, networks, data, recipes, schedules or settings.", show_default="all"
    ),
]


def list_choices(topic: TopicArgument = None) -> None:
    """Show the methods, networks, data sets, recipes, schedules and settings there are.

    Examples:

    [bold]saligraft list[/bold]   everything but the settings

    [bold]saligraft list networks[/bold]   one topic alone

    [bold]saligraft list settings[/bold]   what --set can change, with each setting's default and meaning
    """
    from rich.console import Console

    if topic is not None:
        one_of("topic", topic, TOPICS)
    console = Console()
    chosen = [topic] if topic else [name for name in TOPICS if name != "settings"]
    for place, name in enumerate(chosen):
        if place:
            console.print()
        console.print(TOPICS[name]())


def _methods() -> "Table":
    from saligraft.methods import METHODS

    table = _table("Methods", "name", "passes", "what it does")
    table.add_row("none", "1", "Plain training: crop and flip only.")
    for name, method in METHODS.items():
        table.add_row(name, "2" if method.needs_saliency else "1", _first_sentence(method))
    return table


def _networks() -> "Table":
    from saligraft.networks import NETWORKS

    return _rows("Networks", ((name, _first_sentence(build)) for name, build in NETWORKS.items()))


def _data() -> "Table":
    from saligraft.data import DATASETS

    return _rows("Data sets", ((name, _first_sentence(load)) for name, load in DATASETS.items()))


def _recipes() -> "Table":
    from saligraft.training import bundled_recipes, load_recipe

    return _rows("Recipes", ((name, load_recipe(name).title) for name in bundled_recipes()))


def _schedules() -> "Table":
    from saligraft.training.sections import SCHEDULES

    return _rows("Schedules", ((name, _first_sentence(kind)) for name, kind in SCHEDULES.items()))


def _settings() -> "Table":
    """Every setting of a recipe, from its fields' own descriptions."""
    from saligraft.training.recipe import Recipe

    table = _table("Settings", "key", "default", "meaning")
    fields = Recipe.model_fields
    for name, field in fields.items():
        if field.description:
            table.add_row(name, _shown(field), field.description)
    for section, field in fields.items():
        if not field.description:
            table.add_section()
            for row in _schedule_rows() if section == "schedule" else _section_rows(field.default):
                table.add_row(f"{section}.{row[0]}", *row[1:])
    return table


def _section_rows(section: Any) -> Iterable[tuple[str, str, str]]:
    """The keys of a section, and of those inside it."""
    from saligraft.training.sections import Section

    for key, field in type(section).model_fields.items():
        if isinstance(field.default, Section):
            for inner, shown, meaning in _section_rows(field.default):
                yield f"{key}.{inner}", shown, meaning
        else:
            yield key, _shown(field), field.description


def _schedule_rows() -> Iterable[tuple[str, str, str]]:
    """The schedules' common keys, then each one's own."""
    from saligraft.training.recipe import Recipe
    from saligraft.training.sections import SCHEDULES, ScheduleSection

    common = ScheduleSection.model_fields
    yield "name", Recipe.model_fields["schedule"].default.name, f"One of {', '.join(SCHEDULES)}."
    for key, field in common.items():
        yield key, _shown(field), field.description or ""
    for name, kind in SCHEDULES.items():
        for key, field in kind.model_fields.items():
            if key not in common and key != "name":
                yield key, _shown(field), f"{name}: {field.description}"


TOPICS: dict[str, Callable[[], "Table"]] = {
    "methods": _methods,
    "networks": _networks,
    "data": _data,
    "recipes": _recipes,
    "schedules": _schedules,
    "settings": _settings,
}


def _rows(title: str, rows: Iterable[tuple[str, str]]) -> "Table":
    table = _table(title, "name", "what it is")
    for row in rows:
        table.add_row(*row)
    return table


def _table(title: str, first: str, *others: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, style="cyan", no_wrap=True)
    for name in others:
        table.add_column(name)
    return table


def _first_sentence(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def _shown(field: Any) -> str:
    """A default as one would write it after `--set`."""
    from saligraft.training.recipe_file import toml_value

    if field.is_required():
        return "(required)"
    default = field.get_default(call_default_factory=True)
    return "(none)" if default in (None, "", {}) else toml_value(default)
