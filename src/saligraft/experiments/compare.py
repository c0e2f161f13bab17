"""Finished runs on one page: a table, the settings that differ, learning curves, and differences paired by seed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saligraft.experiments.experiment import BEST, BEST_TOP5, LAST, Metric, passes_of, read_json, training_seconds
from saligraft.reports.figures import Curve
from saligraft.reports.page import versions, write_page
from saligraft.reports.run_report import method_title
from saligraft.reports.statistics import Difference, Estimate, estimate, paired_difference
from saligraft.reports.tables import ResultTable, lowest
from saligraft.training import Recipe, load_recipe
from saligraft.training.run_folder import METRICS, RECIPE, RESULT, TIMING

METRICS_SHOWN = (BEST, LAST, BEST_TOP5)
TITLES = ("Best", "Last 10", "Top-5")
NOT_SETTINGS = ("seed", "title", "paper", "data.root")  # of which runs of one group may differ


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one recipe, which differ in nothing but the seed.

    Args:
        name: Name on the page.
        recipe: The recipe of its first run.
        folders: Run folders by seed.
    """

    name: str
    recipe: Recipe
    folders: Mapping[int, Path]

    def values(self, metric: Metric) -> dict[int, float]:
        """A metric of each run, by seed."""
        section, _, key = metric.key.partition("/")
        return {seed: float(read_json(folder / RESULT)[section][key]) for seed, folder in self.folders.items()}

    def estimate(self, metric: Metric) -> Estimate:
        """Its mean over seeds."""
        return estimate(list(self.values(metric).values()))

    def difference(self, baseline: "Group", metric: Metric) -> Difference | None:
        """The paired difference to another group over the seeds that both have; None without any."""
        own, other = self.values(metric), baseline.values(metric)
        seeds = sorted(own.keys() & other.keys())
        return paired_difference([own[seed] for seed in seeds], [other[seed] for seed in seeds]) if seeds else None

    def curve(self) -> Curve:
        """The test error after every epoch."""
        texts = [(folder / METRICS).read_text(encoding="utf-8") for folder in self.folders.values()]
        return Curve(
            name=self.name,
            runs=tuple(tuple(json.loads(line)["top1_error"] for line in text.splitlines()) for text in texts),
        )


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """List finished runs: the given run folders, and those below other folders.

    Args:
        paths: Run folders, and folders of them.

    Returns:
        Run folders, each once, in the order given.
    """
    found: dict[Path, None] = {}
    for path in paths:
        below = [path] if (path / RESULT).is_file() else sorted(file.parent for file in path.rglob(RESULT))
        runs = [folder for folder in below if (folder / RECIPE).is_file() and (folder / METRICS).is_file()]
        if not runs:
            raise ValueError(f"run must be the folder of a finished run, or hold some, got {path}")
        found.update(dict.fromkeys(runs))
    return list(found)


def group_runs(folders: Sequence[Path]) -> list[Group]:
    """Group runs by recipe, and name each group by what differs.

    Args:
        folders: Run folders.

    Returns:
        Groups in the order of their first runs; of runs with the same recipe and seed, the first counts.
    """
    recipes = {folder: load_recipe(folder / RECIPE) for folder in folders}
    groups: dict[str, dict[int, Path]] = {}
    for folder, recipe in recipes.items():
        key = json.dumps(_settings(recipe), sort_keys=True, default=str)
        groups.setdefault(key, {}).setdefault(recipe.seed, folder)
    first = [recipes[next(iter(runs.values()))] for runs in groups.values()]
    return [
        Group(name=name, recipe=recipe, folders=dict(sorted(runs.items())))
        for name, recipe, runs in zip(_names(first), first, groups.values(), strict=True)
    ]


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
        The value of each recipe, by setting; a dash where a recipe has no such setting.
    """
    tables = [_settings(recipe) for recipe in recipes]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = {key: [str(table[key]) if key in table else "–" for table in tables] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _names(recipes: Sequence[Recipe]) -> list[str]:
    """The method's title; where several have the same, with as many differing settings as it takes, or a number."""
    names = [method_title(recipe.method.name) for recipe in recipes]
    for key, values in differing(recipes).items():
        if len(set(names)) == len(names):
            break
        if not key.startswith("method.name"):
            short = key.rpartition(".")[2]
            longer = [f"{n}, {short} {v}" if names.count(n) > 1 else n for n, v in zip(names, values, strict=True)]
            names = longer if len(set(longer)) > len(set(names)) else names
    methods = {method_title(recipe.method.name) for recipe in recipes}
    # What all have in common tells nothing, and would push the numbers off the page.
    return [name.removeprefix(f"{next(iter(methods))}, ") if len(methods) == 1 else name for name in names]


def comparison_tables(groups: Sequence[Group]) -> list[ResultTable]:
    """Tabulate errors and cost, the settings that differ, and paired differences to the first group.

    Args:
        groups: At least one group.

    Returns:
        One to three tables.
    """
    estimates = [[group.estimate(metric) for metric in METRICS_SHOWN] for group in groups]
    rows = []
    for group, values in zip(groups, estimates, strict=True):
        passes = passes_of(group.recipe)
        timed = [training_seconds(folder) for folder in group.folders.values() if (folder / TIMING).is_file()]
        cost = f"{sum(timed) / len(timed):.0f}" if timed else "–"
        count = str(len(group.folders))
        rows.append((group.name, *map(str, values), count, f"{passes.forward} + {passes.backward}", cost))
    best = {(row, column + 1) for column in range(3) for row in lowest([value[column].mean for value in estimates])}
    notes = (
        "Test error in %, mean ± standard error over seeds: of the best epoch, over the last 10 epochs, and top-5 at "
        "the best epoch. Passes: forward + backward over the training images, in epochs. CPU s: training of one run.",
    )
    columns: tuple[str, ...] = ("Run", *TITLES, "Seeds", "Passes", "CPU s")
    tables = [ResultTable(columns=columns, rows=tuple(rows), notes=notes, best=frozenset(best))]
    settings = differing([group.recipe for group in groups])
    if settings:
        columns = ("Setting", *(group.name for group in groups))
        tables.append(ResultTable(columns=columns, rows=tuple((key, *values) for key, values in settings.items())))
    differences = [
        (group.name, title, f"{d.mean:+.2f}", f"{d.low:+.2f} to {d.high:+.2f}" if d.seeds > 1 else "–", d.verdict)
        for group in groups[1:]
        for metric, title in zip(METRICS_SHOWN, TITLES, strict=True)
        if group.recipe.data.name == groups[0].recipe.data.name and (d := group.difference(groups[0], metric))
    ]
    if differences:
        note = f"Minus {groups[0].name} on the same seeds, with Student's t interval; resolved if it excludes zero."
        columns = ("Run", "", "Difference", "95 % interval", "Verdict")
        tables.append(ResultTable(columns=columns, rows=tuple(differences), notes=(note,)))
    return tables


def write_compared(paths: Sequence[Path], out: Path, command: str) -> list[ResultTable]:
    """Write the page of finished runs.

    Args:
        paths: Run folders, and folders of them.
        out: File to write.
        command: What the user typed.

    Returns:
        The tables.
    """
    groups = group_runs(find_runs(paths))
    tables = comparison_tables(groups)
    titles = {"Run": "Result", "Setting": "Settings that differ"}
    sections = [titles[table.columns[0]] for table in tables]
    if tables[-1].columns[-1] == "Verdict":
        sections[-1] = "Differences, paired by seed"
    best = min(groups, key=lambda group: group.estimate(BEST).mean)
    write_page(
        out,
        "compare.html",
        title=f"{len(groups)} recipes side by side" if len(groups) > 1 else f"{groups[0].name}, seed by seed",
        verdict=f"{best.name} has the lowest error at its best epoch: {best.estimate(BEST)} %.",
        tables=dict(zip(sections, tables, strict=True)),
        curves=[group.curve() for group in groups],
        runs={group.name: ", ".join(f"seed {s}: {f}" for s, f in group.folders.items()) for group in groups},
        facts={"Command": command, **versions()},
    )
    return tables
