"""The tables in docs/results, and the intervals on its page, follow from the runs that are published beside them."""

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from saligraft.experiments.demo import DEMO, demo_rows, demo_tables
from saligraft.experiments.experiment import rows_of
from saligraft.experiments.paper import EXPERIMENTS, regime
from saligraft.experiments.results import RowResult, difference_table, result_table, write_files

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PUBLISHED = sorted(path.parent for path in RESULTS.glob("*/results.json"))
SECTIONS = re.split(r"\n(?=##)", (RESULTS / "README.md").read_text(encoding="utf-8").replace("−", "-"))
INTERVAL = re.compile(r"(?:([+-]?\d+\.\d+) )?\[([+-]?\d+\.\d+), ([+-]?\d+\.\d+)\]")  # "-1.4 [-2.1, -0.6]"
DATA_SETS = ("cifar100", "cub", "tiny-imagenet")  # folders of --data-root data


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_published_tables_follow_from_the_published_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (folder / "table.md").read_text(encoding="utf-8").splitlines()[2].strip("`")
    _, kind, *words = shlex.split(command)
    options: dict[str, list[str]] = {}
    for name, value in pairwise(words):
        if name.startswith("--"):
            options.setdefault(name, []).append(value)
    for name in DATA_SETS:
        (tmp_path / "data" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    if kind == "demo":
        experiment, rows = DEMO, demo_rows("laptop")
    else:
        assert kind == "reproduce"
        experiment = EXPERIMENTS[folder.name.partition("-with-")[0]]
        root = Path(options["--data-root"][0]) if "--data-root" in options else None
        methods = options.get("--methods", [""])[0].split(",") if "--methods" in options else []
        rows = rows_of(experiment, "laptop", regime, root, options.get("--set", []), methods)
    records = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert list(records) == [row.name for row in rows]
    results = [
        RowResult(
            row=row,
            variant="",
            folders={},
            records={int(seed.removeprefix("seed-")): run for seed, run in records[row.name].items()},
        )
        for row in rows
    ]
    tables = [result_table(experiment, results), difference_table(experiment, results)]
    write_files(
        experiment,
        results,
        demo_tables(results) if kind == "demo" else list(filter(None, tables)),
        scale="laptop",
        seeds=int(options["--seeds"][0]),
        folder=tmp_path,
        out=Path(options.get("--out", ["runs/demo"])[0]),
        command=command,
    )
    for file in ("table.md", "table.csv", "results.json", "commands.sh"):
        assert (tmp_path / file).read_text(encoding="utf-8") == (folder / file).read_text(encoding="utf-8"), file


def measures(tree: dict[str, Any], row: str = "") -> Iterator[tuple[str, str, np.ndarray]]:
    """Every row, measure and values by seed in a file of runs; a "row" has seeds, whatever it is nested in."""
    if not all(name.startswith("seed-") for name in tree):
        for name, part in tree.items():
            yield from measures(part, f"{row}/{name}")
        return
    runs = [dict(numbers(run)) for run in tree.values()]
    for measure in runs[0]:
        if all(measure in run for run in runs):
            yield row, measure, np.array([run[measure] for run in runs])


def numbers(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    for name, part in tree.items():
        if isinstance(part, dict):
            yield from numbers(part, f"{path}/{name}")
        elif isinstance(part, int | float):
            yield f"{path}/{name}", part


def intervals(folder: Path) -> np.ndarray:
    """(N, 2): 95 % intervals of each measure's mean, and of differences between rows or between measures of a row."""
    ends = []
    for file in sorted(folder.glob("*.json")):
        found = list(measures(json.loads(file.read_text(encoding="utf-8"))))
        for seeds in {len(values) for _, _, values in found} - {1}:
            same = [each for each in found if len(each[2]) == seeds]
            pairs = [(a, b) for a, b in permutations(same, 2) if a[0] == b[0] or a[1] == b[1]]
            samples = np.stack([values for _, _, values in same] + [a[2] - b[2] for a, b in pairs])
            half = stats.t.ppf(0.975, seeds - 1) * stats.sem(samples, axis=1)
            ends.append(np.stack([samples.mean(1) - half, samples.mean(1) + half], axis=1))
    return np.concatenate(ends)


@pytest.mark.parametrize(
    "section",
    [section for section in SECTIONS if INTERVAL.search(section)],
    ids=lambda section: section.splitlines()[0],
)
def test_intervals_on_the_page_are_those_of_the_runs_that_their_section_links(section: str) -> None:
    linked = set(re.findall(r"\]\(([\w-]+)/", section))
    candidates = np.concatenate([intervals(RESULTS / name) for name in sorted(linked)])
    for mean, *ends in INTERVAL.findall(section):
        unit = 10.0 ** -len(ends[0].partition(".")[2])
        low, high = map(float, ends)
        distances = [np.abs(candidates - pair).max(1).min() for pair in ((low, high), (-high, -low))]  # "points below"
        assert min(distances) <= unit / 2 + 1e-9, ends
        assert not mean or abs(float(mean) - (low + high) / 2) <= unit, (mean, *ends)
