"""The benchmark's run and what it writes: JSON, a page, tables for the terminal and for the documents."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from saligraft.checks import one_of
from saligraft.experiments.bench import QUICK, SECTIONS, Row, Setting
from saligraft.experiments.bench_instruments import facts, threads
from saligraft.io.files import write_atomic
from saligraft.reports.page import write_page
from saligraft.reports.tables import ResultTable

RESULTS, REPORT = "results.json", "report.html"
START, END = "<!-- bench: start -->", "<!-- bench: end -->"
COLUMNS = ("what", "against", "median", "quartiles", "target", "", "times")
TITLES = {
    "operations": "Torch operations of one `apply`, views not counted",
    "steps": "Steps 1–4: saliency, draws, mask, graft, label weight",
    "peers": "Mixers of other libraries, draws and dense label rows included",
    "share": "Steps 1–4 within a training step",
    "memory": "Peak of new memory, the mixed batch included",
    "solvers": "Speed against gco and OpenCV",
    "methods": "Training steps of every method, and maps of every source",
    "trainer": "Speed of the trainer",
}


def run_bench(
    out: Path,
    *,
    sections: Sequence[str] = (),
    quick: bool = False,
    thread_count: int = 1,
    data_root: Path | None = None,
    command: str = "",
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure, print each table as it is done, and write `results.json` and `report.html`.

    Args:
        out: Folder to write.
        sections: Keys of `SECTIONS`; all if empty.
        quick: Tiny sizes and few rounds: a smoke test; its numbers are meaningless.
        thread_count: Of torch and OpenCV.
        data_root: Folder of CIFAR-100's files for the trainer; None for rendered shapes of its size.
        command: As typed.
        console: Where to print.

    Returns:
        The content of `results.json`.
    """
    for name in sections:
        one_of("section", name, tuple(SECTIONS))
    console = console or Console()
    setting = replace(QUICK if quick else Setting(), data_root=data_root)
    rows: list[Row] = []
    start = time.perf_counter()
    with torch.random.fork_rng(), threads(thread_count):
        conditions = facts()
        for name in sections or SECTIONS:
            torch.manual_seed(0)
            rows += SECTIONS[name](setting)
            console.print(f"\n[bold]{TITLES[name]}[/bold]")
            for row in _of(rows, name):
                what, against, middle, _, target, verdict, note = _cells(row)
                line = f"{middle:>8} {target:>7} {verdict:<7} {' / '.join(filter(None, (what, against)))}  ({note})"
                console.print(line.removesuffix("  ()"), soft_wrap=True, markup=False, highlight=False)
        results = {
            "command": command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **conditions,
            "quick": quick,
            "seconds": round(time.perf_counter() - start),
            "rows": [asdict(row) | {"median": row.median, "verdict": row.verdict} for row in rows],
        }
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / RESULTS, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    tables = {}
    for name in SECTIONS:
        if own := _of(rows, name):
            met = frozenset((place, 5) for place, row in enumerate(own) if row.verdict == "met")
            tables[TITLES[name]] = ResultTable(columns=COLUMNS, rows=tuple(map(_cells, own)), best=met)
    write_page(out / REPORT, "bench.html", title="What it costs", tables=tables, facts=_facts(results), quick=quick)
    return results


def _of(rows: Iterable[Row], section: str) -> list[Row]:
    return [row for row in rows if row.section == section]


def _cells(row: Row) -> tuple[str, ...]:
    def shown(value: float) -> str:
        return f"{value:.3g}×" if row.against else f"{value:.0f}"

    middle, quartiles = row.median, row.quartiles
    target = (
        f"≤ {row.at_most:g}" if row.at_most is not None else f"≥ {row.at_least:g}" if row.at_least is not None else ""
    )
    return (
        row.name,
        row.against,
        "" if middle is None else shown(middle),
        "" if quartiles is None else f"{shown(quartiles[0])} – {shown(quartiles[1])}",
        target,
        row.verdict if target or middle is None else "",
        row.note,
    )


def _facts(results: dict[str, Any]) -> dict[str, str]:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return {
        "Command": results["command"],
        "Commit": results["commit"],
        "Machine": f"{results['processor']}, {results['system']}",
        "Load average at the start": str(results["load"]),
        "Threads": str(results["threads"]),
        "Versions": versions,
        "Date": results["date"],
        "Time": f"{results['seconds']} s",
    }


def markdown(results: dict[str, Any]) -> str:
    """Format results as Markdown: facts, how many targets are met, and a table for each section.

    Args:
        results: The content of `results.json`.
    """
    rows = [
        Row(
            **{key: value for key, value in row.items() if key not in ("median", "verdict", "values")},
            values=tuple(row["values"]),
        )
        for row in results["rows"]
    ]
    judged = [row.verdict for row in rows if row.verdict in ("met", "missed")]
    parts = [
        "\n".join(f"- {name}: {value}" for name, value in _facts(results).items()),
        f"{judged.count('met')} of {len(judged)} targets are met.",
    ]
    for name, title in TITLES.items():
        if own := _of(rows, name):
            table = [COLUMNS, ("---",) * len(COLUMNS), *(_cells(row) for row in own)]
            lines = ["| " + " | ".join(cell.replace("missed", "**missed**") for cell in line) + " |" for line in table]
            parts.append(f"### {title}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def around_markers(path: Path) -> tuple[str, str]:
    """Read what a document holds before and after the tables, both markers included.

    Args:
        path: The document.
    """
    document = path.read_text(encoding="utf-8")
    if document.count(START) != 1 or document.count(END) != 1 or document.index(START) > document.index(END):
        raise ValueError(f"{path} must hold the lines {START} and {END} once each, in this order")
    return document.split(START)[0] + START, END + document.split(END)[1]
