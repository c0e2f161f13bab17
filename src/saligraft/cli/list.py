"""`saligraft list`: the available choices."""

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.table import Table

COMPARING = """\
  saligraft show --methods all            pictures of each on the same pairs
  saligraft demo                          plain, CutMix, Saliency Grafting
  saligraft train RECIPE --method NAME    one run of each
  saligraft compare RUN RUN...            finished runs, in a table and a page
  saligraft reproduce table-wrn           a table of the paper, over seeds"""
Topic = Literal["methods", "saliency", "networks", "data", "recipes", "schedules", "settings"]


def list_choices(
    topic: Annotated[
        Topic | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="methods, saliency, networks, data, recipes, schedules or settings.",
            show_default="all but settings",
        ),
    ] = None,
) -> None:
    """List the available methods, saliency sources, networks, data sets, recipes, schedules and settings.

    Examples:

    [bold]saligraft list[/bold]   everything but the settings

    [bold]saligraft list networks[/bold]   a single topic

    [bold]saligraft list settings[/bold]   what --set can change, with each setting's default and meaning
    """
    from rich.console import Console

    console = Console()
    chosen = [topic] if topic else [name for name in TOPICS if name != "settings"]
    for place, name in enumerate(chosen):
        if place:
            console.print()
        console.print(TOPICS[name]())
    if topic in (None, "methods"):
        console.print(f"\n[bold]To compare methods[/bold]\n{COMPARING}", highlight=False)


def _methods() -> "Table":
    """All methods, kind by kind, then the two ways to combine them."""
    from saligraft.config.method_section import AND, NONE, RANDOM_CHOICE
    from saligraft.methods import REGISTRY, Compose, RandomChoice
    from saligraft.names import METHODS

    table = _table("Methods", "name", "passes per step", "what it does")
    table.add_row(NONE, "1 + 1", "Plain training: crop and flip only.")
    for kind, names in METHODS.items():
        table.add_section()
        table.add_row(f"[dim]{kind}[/]")
        for name in names:
            table.add_row(name, "{} + {}".format(*REGISTRY[name].passes), REGISTRY[name].purpose)
    table.add_section()
    table.add_row("[dim]several at once[/]")
    table.add_row(f"cutout{AND}mixup", "as mixup", f"{_first_sentence(Compose)}")
    table.add_row(RANDOM_CHOICE, "as drawn", f"{_first_sentence(RandomChoice)}")
    table.caption = (
        "Passes: forward + backward of one step over a batch, those for saliency included; fine-grained saliency needs "
        "none, AugMix shows three views at once. With training.passes=mixed saliency-grafting has 2 + 1, with "
        "remembered 1 + 1. `saligraft bench methods` times them."
    )
    return table


def _saliency() -> "Table":
    from saligraft.saliency.sources import SALIENCY_SOURCES

    table = _table("Saliency sources", "name", "passes added", "passes alone", "what it is")
    for name, source in SALIENCY_SOURCES.items():
        added, alone = ("{} + {}".format(*passes) for passes in (source.shared, source.alone))
        table.add_row(name, added, alone, _first_sentence(source))
    table.caption = (
        "Passes: full forward + backward passes of the network, added to a training pass over the same images, or "
        "alone. Grad-CAM's backward pass runs through the head only and is not counted."
    )
    return table


def _networks() -> "Table":
    from saligraft.networks import NETWORKS

    table = _rows("Networks", ((name, _first_sentence(build)) for name, build in NETWORKS.items()))
    table.caption = (
        "Replace the capitals by numbers or a name: wrn-28-10, pyramidnet-200-240, resnet-18-small, "
        "timm:convnext_tiny. Options are set as network.options.NAME."
    )
    return table


def _data() -> "Table":
    from saligraft.data import DATASETS

    return _rows("Data sets", ((name, _first_sentence(load)) for name, load in DATASETS.items()))


def _recipes() -> "Table":
    """Protocols, and under each its rows with their known results."""
    from saligraft.config.recipe_file import PLAIN, bundled_protocols

    table = _table("Recipes", "name", "what it is, expected error (%)")
    for protocol, rows in bundled_protocols().items():
        table.add_section()
        for row, settings in rows.items():
            epochs = settings.get("training", {}).get("epochs")
            expected = _expected(settings["expected"][0], epochs) if settings["expected"] else "–"
            table.add_row(*((protocol, f"{settings['title']}\n{expected}") if row == PLAIN else (f"  {row}", expected)))
    table.caption = (
        "Indented names are rows: saligraft train shapes-wrn-10-2 --method cutmix, or shapes-wrn-10-2-cutmix. Tables "
        "are the paper's: top-1 / top-5 error ± standard error; † quoted by the paper. Ours: measured here; see the "
        "comments in the recipe."
    )
    table.caption_justify = "left"
    return table


def _expected(result: dict[str, Any], epochs: int | None) -> str:
    """The source of a row's result, and its numbers."""
    here = "ours" if epochs is None else f"ours, {epochs} epochs"
    source, digits = (f"Table {result['table']}", 2) if "table" in result else (here, 1)
    numbers = [result[kind] for kind in ("top1", "top5", "localization") if kind in result]
    shown = " / ".join(" ± ".join(f"{part:.{digits}f}" for part in number) for number in numbers)
    accuracy = "localization " if "localization" in result else ""
    return f"{source}{'†' if 'quoted' in result else ''}: {accuracy}{shown}"


def _schedules() -> "Table":
    from saligraft.config.schedule import SCHEDULES

    return _rows("Schedules", ((name, _first_sentence(kind)) for name, kind in SCHEDULES.items()))


def _settings() -> "Table":
    """Every setting of a recipe, from the descriptions of its fields."""
    from saligraft.config.recipe import Recipe
    from saligraft.config.sections import section_class

    table = _table("Settings", "key", "default", "meaning")
    fields = Recipe.model_fields
    for name, field in fields.items():
        if field.description:
            table.add_row(name, _shown(field), field.description)
    for section, field in fields.items():
        if not field.description:
            table.add_section()
            for row in _schedule_rows() if section == "schedule" else _section_rows(section_class(field)):
                table.add_row(f"{section}.{row[0]}", *row[1:])
    return table


def _section_rows(section: Any) -> Iterable[tuple[str, str, str]]:
    """The keys of a section, and of those inside it."""
    from saligraft.config.sections import section_class

    for key, field in section.model_fields.items():
        if inside := section_class(field):
            for inner, shown, meaning in _section_rows(inside):
                yield f"{key}.{inner}", shown, meaning
        else:
            yield key, _shown(field), field.description


def _schedule_rows() -> Iterable[tuple[str, str, str]]:
    """The schedules' common keys, then each one's own."""
    from saligraft.config.recipe import Recipe
    from saligraft.config.schedule import SCHEDULES, ScheduleSection

    common = ScheduleSection.model_fields
    yield "name", Recipe.model_fields["schedule"].default.name, f"One of {', '.join(SCHEDULES)}."
    for key, field in common.items():
        yield key, _shown(field), field.description or ""
    for name, kind in SCHEDULES.items():
        for key, field in kind.model_fields.items():
            if key not in common and key != "name":
                yield key, _shown(field), f"{name}: {field.description}"


TOPICS: dict[Topic, Callable[[], "Table"]] = {
    "methods": _methods,
    "saliency": _saliency,
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

    look: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "caption_justify": "left"}
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, **look)
    table.add_column(first, style="cyan", no_wrap=True)
    for name in others:
        table.add_column(name)
    return table


def _first_sentence(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def _shown(field: Any) -> str:
    """A default as written after `--set`."""
    from saligraft.config.recipe_file import toml_value

    if field.is_required():
        return "(required)"
    default = field.get_default(call_default_factory=True)
    return "(none)" if default in (None, "", {}) else toml_value(default)
