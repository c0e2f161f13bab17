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
from saligraft.training.results import LAST_EPOCHS
from saligraft.training.run_folder import METRICS, RECIPE, RESULT, TIMING

METRICS_SHOWN = (BEST, LAST, BEST_TOP5)
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
        """The paired difference to another group over the seeds that both have; None without any, or on other data."""
        if self.recipe.data.name != baseline.recipe.data.name:
            return None
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
        Run folders, each once, in the order given; at least two.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        below = [path] if (path / RESULT).is_file() else sorted(file.parent for file in path.rglob(RESULT))
        runs = [folder for folder in below if (folder / RECIPE).is_file() and (folder / METRICS).is_file()]
        if not runs:
            raise ValueError(f"run must be the folder of a finished run, or hold some, got {path}")
        for folder in runs:
            found.setdefault(folder.resolve(), folder)
    if len(found) < 2:
        raise ValueError(f"runs must be at least two, got {next(iter(found.values()))} alone")
    return list(found.values())


def group_runs(folders: Sequence[Path]) -> list[Group]:
    """Group runs by recipe, and name each group by what differs.

    Args:
        folders: Run folders.

    Returns:
        Groups in the order of their first runs; of runs with the same recipe and seed, the first counts.

    Raises:
        ValueError: All runs have the same recipe and seed.
    """
    recipes = {folder: load_recipe(folder / RECIPE) for folder in folders}
    groups: dict[str, dict[int, Path]] = {}
    for folder, recipe in recipes.items():
        key = json.dumps(_settings(recipe), sort_keys=True, default=str)
        groups.setdefault(key, {}).setdefault(recipe.seed, folder)
    if sum(map(len, groups.values())) < 2:
        raise ValueError(f"runs must differ in recipe or seed, got the same in {' and '.join(map(str, folders))}")
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
        The value of each recipe, by setting, as a recipe spells it; a dash where a recipe has none.
    """

    def spelled(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(spelled, value)) or "–"
        if isinstance(value, bool):
            return str(value).lower()
        return "–" if value is None or value == {} else str(value)

    tables = [_settings(recipe) for recipe in recipes]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = {key: [spelled(table.get(key)) for table in tables] for key in keys}
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
    estimates = [[group.estimate(metric) for metric in METRICS_SHOWN] for group in groups]
    rows = []
    for group, values in zip(groups, estimates, strict=True):
        passes = passes_of(group.recipe)
        timed = [training_seconds(folder) for folder in group.folders.values() if (folder / TIMING).is_file()]
        cost = f"{sum(timed) / len(timed):.0f}" if timed else "–"
        count = str(len(group.folders))
        rows.append((group.name, *map(str, values), count, f"{passes.forward} + {passes.backward}", cost))
    best = {(row, at + 1) for at in range(3) for row in lowest([round(value[at].mean, 2) for value in estimates])}
    span = f"{last} epochs{' (all of a shorter run)' * (len(lengths) > 1)}" if last > 1 else "epoch"
    notes = [
        f"Test error in %, mean ± standard error over seeds: of the best epoch, over the last {span}, and top-5 at "
        "the best epoch. Passes: forward + backward over the training images, in epochs. CPU s: training of one run."
    ]
    unpaired = [group.name for group in groups[1:] if group.difference(groups[0], BEST) is None]
    if unpaired:
        notes.append(
            f"No paired difference to {groups[0].name}, for lack of a common seed or data set: {_and(unpaired)}."
        )
    columns: tuple[str, ...] = ("Run", *titles, "Seeds", "Passes", "CPU s")
    tables = {"Result": ResultTable(columns=columns, rows=tuple(rows), notes=tuple(notes), best=frozenset(best))}
    differences = [
        (group.name, title, f"{d.mean:+.2f}", f"{d.low:+.2f} to {d.high:+.2f}" if d.seeds > 1 else "–", d.verdict)
        for group in groups[1:]
        for metric, title in zip(METRICS_SHOWN, titles, strict=True)
        if (d := group.difference(groups[0], metric))
    ]
    if differences:
        note = f"Minus {groups[0].name} on the same seeds, with Student's t interval; resolved if it excludes zero."
        columns = ("Run", "Error", "Difference", "95 % interval", "Verdict")
        tables["Differences, paired by seed"] = ResultTable(columns=columns, rows=tuple(differences), notes=(note,))
    settings = differing([group.recipe for group in groups])
    if settings:
        columns = ("Setting", *(group.name for group in groups))
        lines = tuple((key, *values) for key, values in settings.items())
        tables["Settings that differ"] = ResultTable(columns=columns, rows=lines)
    return tables


def comparison_verdict(groups: Sequence[Group]) -> str:
    """Say which group has the lowest error at its best epoch, and what of that is resolved.

    Args:
        groups: At least one group.

    Returns:
        One or two sentences; groups whose errors read the same are level.
    """
    if len({group.recipe.data.name for group in groups}) > 1:
        return "The runs are on different data sets, so their errors are not ranked."
    means = [round(group.estimate(BEST).mean, 2) for group in groups]
    first = [group for group, mean in zip(groups, means, strict=True) if mean == min(means)]
    rest = [group for group in groups if group not in first]
    if len(first) > 1:
        below = f", below {_and([group.name for group in rest])}" if rest else ""
        return f"{_and([group.name for group in first])} are level at their best epoch{below}: {min(means):.2f} %."
    best = first[0]
    if not rest:
        return f"The error at the best epoch is {best.estimate(BEST)} % over {len(best.folders)} seeds."
    found = {group.name: best.difference(group, BEST) for group in rest}
    open_ = [name for name, difference in found.items() if difference is None or difference.verdict != "better"]
    paired = f"its lead over {_and(open_)} is not resolved" if open_ else f"it is better than {_and(list(found))}"
    return f"{best.name} has the lowest error at its best epoch: {best.estimate(BEST)} %. Paired by seed, {paired}."


def _and(names: Sequence[str]) -> str:
    """Names as in a sentence."""
    comma = "; " if any("," in name for name in names) else ", "
    return " and ".join([comma.join(names[:-1]), names[-1]] if len(names) > 1 else names)


def write_compared(paths: Sequence[Path], out: Path, command: str) -> dict[str, ResultTable]:
    """Write the page of finished runs.

    Args:
        paths: Run folders, and folders of them.
        out: File to write.
        command: What the user typed.

    Returns:
        The tables, by title.
    """
    groups = group_runs(find_runs(paths))
    tables = comparison_tables(groups)
    write_page(
        out,
        "compare.html",
        title=f"{len(groups)} recipes side by side" if len(groups) > 1 else f"{groups[0].name}, seed by seed",
        verdict=comparison_verdict(groups),
        tables=tables,
        curves=[group.curve() for group in groups],
        runs={group.name: ", ".join(f"seed {s}: {f}" for s, f in group.folders.items()) for group in groups},
        facts={"Command": command, **versions()},
    )
    return tables
