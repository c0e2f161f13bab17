"""Finished runs on one page: a table, the settings that differ, learning curves, and differences paired by seed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from saligraft.config.recipe_file import MARKER, PLAIN
from saligraft.experiments.experiment import BEST, BEST_TOP5, LAST, Metric, passes_of, read_result, training_seconds
from saligraft.experiments.results import SeedRuns
from saligraft.experiments.show import view_of_run
from saligraft.names import listed, plural
from saligraft.reports.page import versions, write_page
from saligraft.reports.run_report import method_title
from saligraft.reports.statistics import Difference, Estimate, estimate
from saligraft.reports.tables import ResultTable
from saligraft.training import Recipe, load_recipe
from saligraft.training.results import LAST_EPOCHS, has_top5
from saligraft.training.run_folder import METRICS, RECIPE, RESULT, TIMING, read_marker

METRICS_SHOWN = (BEST, LAST, BEST_TOP5)
SETTINGS = "Settings that differ"
NOT_SETTINGS = ("seed", "title", "paper", "data.root")  # of which runs of one group may differ


@dataclass(frozen=True, kw_only=True)
class Group(SeedRuns):
    """Runs of one recipe.

    Args:
        name: Name on the page.
        recipe: The recipe of its first run.
    """

    name: str
    recipe: Recipe

    def estimate(self, metric: Metric) -> Estimate:
        """The metric's mean over seeds."""
        return estimate(list(self.values(metric).values()))

    def values(self, metric: Metric) -> dict[int, float]:
        """The metric by seed; nothing for the top-5 error of five classes or fewer."""
        classes = self._data.get("classes")
        shown = metric != BEST_TOP5 or has_top5(None if classes is None else len(classes))
        return super().values(metric) if shown else {}

    @property
    def tested_on(self) -> str:
        """Digest of the test images, or the name of the data set where the run did not record it."""
        return str(self._data.get("test", {}).get("digest", self.recipe.data.name))

    @property
    def _data(self) -> dict[str, Any]:
        """What the first run recorded of its data."""
        return _recorded_data(next(iter(self.folders.values())))

    def difference(self, baseline: SeedRuns, metric: Metric) -> Difference | None:
        """The paired difference to another group; also None on other test images."""
        same_data = isinstance(baseline, Group) and self.tested_on == baseline.tested_on
        return super().difference(baseline, metric) if same_data else None


def _recorded_data(folder: Path) -> dict[str, Any]:
    """What a run recorded of its data."""
    return (read_marker(folder) or {}).get("data") or {}


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """List finished runs: the given run folders, and those below other folders.

    Args:
        paths: Run folders, and folders of them.

    Returns:
        Run folders, each once, in the order given; at least two.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        below = [path] if (path / RESULT).is_file() else sorted(file.parent for file in path.rglob(RESULT))
        runs = [folder for folder in below if (folder / RECIPE).is_file() and (folder / METRICS).is_file()]
        if not runs:
            raise ValueError(f"run must be the folder of a finished run, or hold some, got {path}")
        for folder in runs:
            if not read_result(folder):
                raise ValueError(f"{folder / RESULT} is damaged: saligraft train {folder} --resume writes it again")
            folders.setdefault(folder.resolve(), folder)
    if len(folders) < 2:
        raise ValueError(f"compare needs at least two runs, got only {next(iter(folders.values()))}")
    return list(folders.values())


def group_runs(folders: Sequence[Path]) -> list[Group]:
    """Group runs by recipe, and name each group by what differs.

    Args:
        folders: Run folders.

    Returns:
        Groups in the order of their first runs, plain training first; of runs with the same recipe and seed, the first
        counts.

    Raises:
        ValueError: All runs have the same recipe and seed, or those of one recipe were tested on different images.
    """
    recipes = {folder: load_recipe(folder / RECIPE) for folder in folders}
    groups: dict[str, dict[int, Path]] = {}
    for folder, recipe in recipes.items():
        key = json.dumps(_settings(recipe), sort_keys=True, default=str)
        groups.setdefault(key, {}).setdefault(recipe.seed, folder)
    if sum(map(len, groups.values())) < 2:
        raise ValueError(f"runs must differ in recipe or seed, got the same in {' and '.join(map(str, folders))}")
    for runs in groups.values():
        tested = {_recorded_data(folder).get("test", {}).get("digest"): folder for folder in runs.values()}
        tested.pop(None, None)
        if len(tested) > 1:
            one, other, *_ = tested.values()
            raise ValueError(f"runs of one recipe must be tested on the same images, got others in {one} and {other}")
    first = [recipes[next(iter(runs.values()))] for runs in groups.values()]
    unordered = [
        Group(
            name=name,
            recipe=recipe,
            folders=dict(sorted(runs.items())),
            records={seed: read_result(folder) for seed, folder in sorted(runs.items())},
        )
        for name, recipe, runs in zip(_names(first), first, groups.values(), strict=True)
    ]
    return sorted(unordered, key=lambda group: group.recipe.method.name != PLAIN)


def _settings(recipe: Recipe) -> dict[str, Any]:
    """All settings of a recipe, "section.key" to value."""

    def flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, Mapping) and value:
                yield from flat(value, f"{path}{key}.")
            else:
                yield f"{path}{key}", value

    return {key: value for key, value in flat(recipe.model_dump(mode="json")) if key not in NOT_SETTINGS}


def differing(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """List the settings in which recipes differ.

    Args:
        recipes: Any recipes.

    Returns:
        The value of each recipe, by setting, as a recipe spells it; a dash where a recipe has none.
    """
    tables = [_settings(recipe) for recipe in recipes]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = {key: [_spelled(table.get(key)) for table in tables] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _spelled(value: Any) -> str:
    """A setting's value as a recipe spells it; a dash for none."""
    if isinstance(value, list):
        return ", ".join(map(_spelled, value)) or "–"
    if isinstance(value, bool):
        return str(value).lower()
    return "–" if value is None or value == {} else str(value)


def _names(recipes: Sequence[Recipe]) -> list[str]:
    """The method's title; where several have the same, with as many differing settings as it takes, or a number."""
    names = [method_title(recipe.method.name) for recipe in recipes]
    for key, values in differing(recipes).items():
        if len(set(names)) == len(names):
            break
        if not key.startswith("method.name"):
            section, _, last = key.rpartition(".")
            words = "{} epochs" if last == "epochs" else f"{section if last == 'name' else last} {{}}"
            pairs = list(zip(names, values, strict=True))
            alike = {name: {value for other, value in pairs if other == name} for name in names}
            names = [f"{name}, {words.format(value)}" if len(alike[name]) > 1 else name for name, value in pairs]
    methods = {method_title(recipe.method.name) for recipe in recipes}
    # What all have in common distinguishes none, and would push the numbers off the page.
    return [name.removeprefix(f"{next(iter(methods))}, ") if len(methods) == 1 else name for name in names]


def comparison_tables(groups: Sequence[Group]) -> dict[str, ResultTable]:
    """Tabulate errors and cost, paired differences to the first group, and the settings that differ.

    Args:
        groups: At least one group.

    Returns:
        One to three tables, by title.
    """
    lengths = {min(LAST_EPOCHS, group.recipe.training.epochs) for group in groups}
    last = max(lengths)
    titles = ("Best", f"Last {last}", "Top-5")
    estimates = [
        [group.estimate(metric) if group.values(metric) else None for metric in METRICS_SHOWN] for group in groups
    ]
    rows = []
    for group, values in zip(groups, estimates, strict=True):
        passes = passes_of(group.recipe)
        timed = [training_seconds(folder) for folder in group.folders.values() if (folder / TIMING).is_file()]
        cost = f"{sum(timed) / len(timed):.0f}" if timed else "–"
        count = str(len(group.folders))
        rows.append(
            (group.name, *(str(value or "–") for value in values), count, f"{passes.forward} + {passes.backward}", cost)
        )
    best: set[tuple[int, int]] = set()
    same_images = len({group.tested_on for group in groups}) == 1
    for column, of_groups in enumerate(zip(*estimates, strict=True), start=1):
        means = {row: round(value.mean, 2) for row, value in enumerate(of_groups) if value}
        if len(means) > 1 and same_images:
            best |= {(row, column) for row, mean in means.items() if mean == min(means.values())}
    span = "epoch" if last == 1 else f"{last} epochs"
    if len(lengths) > 1:
        span += " (all of a shorter run)"
    notes = [
        f"Test error in %, mean ± standard error over seeds: of the best epoch, over the last {span}, and top-5 at "
        "the best epoch. Passes: forward + backward over the training images, in epochs. CPU s: training of one run."
    ]
    unpaired = [group for group in groups[1:] if group.difference(groups[0], BEST) is None]
    for reason, tested_alike in (("tested on other images", False), ("no seed in common", True)):
        names = [group.name for group in unpaired if (group.tested_on == groups[0].tested_on) == tested_alike]
        if names:
            notes.append(f"No paired difference to {groups[0].name} ({reason}): {_and(names)}.")
    columns: tuple[str, ...] = ("Run", *titles, "Seeds", "Passes", "CPU s")
    tables = {"Result": ResultTable(columns=columns, rows=tuple(rows), notes=tuple(notes), best=frozenset(best))}
    differences = [
        (group.name, title, f"{d.mean:+.2f}", d.interval, d.verdict)
        for group in groups[1:]
        for metric, title in zip(METRICS_SHOWN, titles, strict=True)
        if (d := group.difference(groups[0], metric))
    ]
    if differences:
        note = (
            f"Difference: this run minus {groups[0].name}, same seeds; resolved if Student's t interval excludes zero."
        )
        columns = ("Run", "Error", "Difference", "95 % interval", "Verdict")
        tables["Differences, paired by seed"] = ResultTable(columns=columns, rows=tuple(differences), notes=(note,))
    settings, folded = differing([group.recipe for group in groups]), own_options(groups)
    if settings:
        columns = ("Setting", *(group.name for group in groups))
        hidden = {key for options in folded.values() for key in options}
        lines = tuple((key, *values) for key, values in settings.items() if key not in hidden)
        note = "Options that not every method has are left out of this table; the page lists them."
        tables[SETTINGS] = ResultTable(columns=columns, rows=lines, notes=(note,) if hidden else ())
    return tables


def own_options(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """List the options of each method that another method does not have.

    Args:
        groups: At least one group.

    Returns:
        Settings and values by name of the group. Options that two groups set differently are left out.
    """
    tables = [_settings(group.recipe) for group in groups]
    own: dict[str, dict[str, str]] = {}
    for key, values in differing([group.recipe for group in groups]).items():
        having = [place for place, table in enumerate(tables) if key in table]
        if key.startswith("method.") and len(having) < len(groups) and len({values[place] for place in having}) == 1:
            for place in having:
                own.setdefault(groups[place].name, {})[key] = values[place]
    return own


def comparison_verdict(groups: Sequence[Group]) -> str:
    """Say which group has the lowest error at its best epoch, what of that is resolved, and whether the cost was equal.

    Args:
        groups: At least one group.

    Returns:
        One to three sentences; groups whose errors read the same are level.
    """
    costs = list(dict.fromkeys(passes_of(group.recipe) for group in groups))
    both = any(forward != backward for forward, backward in costs)
    texts = [f"{forward} + {backward}" if both else str(forward) for forward, backward in costs]
    unequal = f" The runs differ in passes: {_and(texts)}." if len(costs) > 1 else ""
    return f"{_ranking(groups)}{unequal}"


def _ranking(groups: Sequence[Group]) -> str:
    if len({group.tested_on for group in groups}) > 1:
        return "The runs were tested on different images, so their errors are not ranked."
    means = [round(group.estimate(BEST).mean, 2) for group in groups]
    first = [group for group, mean in zip(groups, means, strict=True) if mean == min(means)]
    rest = [group for group in groups if group not in first]
    if len(first) > 1:
        below = f", below {_and([group.name for group in rest])}" if rest else ""
        return f"{_and([group.name for group in first])} are level at their best epoch{below}: {min(means):.2f} %."
    best = first[0]
    if not rest:
        return f"The error at the best epoch is {best.estimate(BEST)} % over {len(best.folders)} seeds."
    lowest_error = f"{best.name} has the lowest error at its best epoch: {best.estimate(BEST)} %."
    if all(len(group.folders) == 1 for group in groups):
        return f"{lowest_error} One seed each: no interval."
    differences = {group.name: best.difference(group, BEST) for group in rest}
    unresolved = [
        name for name, difference in differences.items() if difference is None or difference.verdict != "better"
    ]
    paired = (
        f"its lead over {_and(unresolved)} is not resolved"
        if unresolved
        else f"it is better than {_and(list(differences))}"
    )
    return f"{lowest_error} Paired by seed, {paired}."


def _and(names: Sequence[str]) -> str:
    """Names as in a sentence."""
    comma = "; " if any("," in name for name in names) else ", "
    return " and ".join([comma.join(names[:-1]), names[-1]] if len(names) > 1 else names)


def left_out(paths: Sequence[Path], groups: Sequence[Group]) -> str:
    """Name the runs below some folders that no group has.

    Args:
        paths: Run folders, and folders of them.
        groups: The groups of their finished runs.

    Returns:
        One sentence; empty if every run is in a group.
    """
    below = {file.parent.resolve(): file.parent for path in paths for file in sorted(path.rglob(RECIPE))}
    finished = {folder.resolve(): folder for folder in find_runs(paths)}
    grouped = {folder.resolve() for group in groups for folder in group.folders.values()}
    repeats = [folder for place, folder in finished.items() if place not in grouped]
    unfinished = [folder for place, folder in below.items() if place not in finished and (folder / MARKER).is_file()]
    counts = []
    if repeats:
        counts.append(f"{plural(len(repeats), 'repeat')} of the same recipe and seed")
    if unfinished:
        counts.append(plural(len(unfinished), "unfinished run"))
    return f"{_and(counts)} left out: {listed([*repeats, *unfinished])}." if counts else ""


def write_compared(paths: Sequence[Path], out: Path, command: str) -> tuple[str, dict[str, ResultTable]]:
    """Write the page of finished runs.

    Args:
        paths: Run folders, and folders of them.
        out: File to write.
        command: What the user typed.

    Returns:
        The verdict, and the tables by title.
    """
    groups = group_runs(find_runs(paths))
    verdict, tables = comparison_verdict(groups), comparison_tables(groups)
    if missing := left_out(paths, groups):
        tables["Result"] = replace(tables["Result"], notes=(*tables["Result"].notes, missing))
    best = min(groups, key=lambda group: group.estimate(BEST).mean)
    write_page(
        out,
        "compare.html",
        title=f"{sum(len(group.folders) for group in groups)} runs side by side"
        if len(groups) > 1
        else f"{groups[0].name}, seed by seed",
        verdict=verdict,
        # The page lists the folded options below the table, so that the note on them is for the terminal.
        tables={name: replace(table, notes=()) if name == SETTINGS else table for name, table in tables.items()},
        options={
            name: "; ".join(
                f"{key.removeprefix('method.').removeprefix('options.')} = {text}" for key, text in own.items()
            )
            for name, own in own_options(groups).items()
        },
        curves=[group.curve(group.name) for group in groups],
        runs={group.name: ", ".join(f"seed {s}: {f}" for s, f in group.folders.items()) for group in groups},
        facts={"Command": command, **versions()},
        **view_of_run(next(iter(best.folders.values()))),
    )
    return verdict, tables
