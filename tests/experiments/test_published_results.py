"""The tables in docs/results are what the code writes of the runs that are published beside them."""

import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from saligraft.experiments.demo import DEMO, demo_rows, demo_tables
from saligraft.experiments.experiment import rows_of
from saligraft.experiments.paper import EXPERIMENTS, regime
from saligraft.experiments.results import RowResult, difference_table, result_table, write_files

PUBLISHED = sorted(path.parent for path in Path(__file__).parents[2].glob("docs/results/*/results.json"))
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
