"""Results of an experiment: tables, figure, page, result files and commands, from its finished runs alone."""

import base64
import csv
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saligraft.experiments.experiment import (
    EQUAL_PASSES,
    Experiment,
    Metric,
    PaperValue,
    Row,
    ScaleName,
    jobs_of,
    read_measures,
    read_result,
    run_folder,
)
from saligraft.experiments.show import view_of_run
from saligraft.io.files import write_atomic
from saligraft.reports.figures import Curve, save_sweep
from saligraft.reports.page import versions, write_page
from saligraft.reports.statistics import Difference, Estimate, estimate, paired_difference
from saligraft.reports.tables import ResultTable, markdown_table
from saligraft.training.run_folder import METRICS, REPORT

Record = dict[str, Any]  # result.json and measures.json of one run


@dataclass(frozen=True, kw_only=True)
class SeedRuns:
    """Finished runs that differ in their seed alone.

    Args:
        folders: Run folders by seed.
        records: What was measured of each, by seed.
    """

    folders: Mapping[int, Path]
    records: Mapping[int, Record]

    def values(self, metric: Metric) -> dict[int, float]:
        """The metric of each run that has it, by seed."""
        section, _, key = metric.key.partition("/")
        entries = {seed: record.get(section) for seed, record in self.records.items()}
        values = {seed: entry.get(key) if isinstance(entry, dict) else entry for seed, entry in entries.items()}
        return {seed: value for seed, value in values.items() if value is not None}

    def estimate(self, metric: Metric) -> Estimate | None:
        """Its mean over seeds; None without runs."""
        values = list(self.values(metric).values())
        return estimate(values) if values else None

    def difference(self, baseline: "SeedRuns", metric: Metric) -> Difference | None:
        """The paired difference to other runs over the seeds that both have; None without any."""
        own, other = self.values(metric), baseline.values(metric)
        seeds = sorted(own.keys() & other.keys())
        if not seeds:
            return None
        pairs = [own[seed] for seed in seeds], [other[seed] for seed in seeds]
        return paired_difference(*pairs, higher_is_better=metric.higher_is_better)

    def curve(self, name: str) -> Curve:
        """The test error after every epoch."""
        texts = [(folder / METRICS).read_text(encoding="utf-8") for folder in self.folders.values()]
        runs = tuple(tuple(json.loads(line)["top1_error"] for line in text.splitlines()) for text in texts)
        return Curve(name=name, runs=runs)


@dataclass(frozen=True, kw_only=True)
class RowResult(SeedRuns):
    """What was measured for one row.

    Args:
        row: The row.
        variant: The setting that was best over seeds; empty where there is no choice.
    """

    row: Row
    variant: str

    def cost(self, key: str) -> str:
        """A fact of the runs: seconds as a mean, the others as they are."""
        facts = [record["run"][key] for record in self.records.values() if "run" in record]
        if not facts:
            return "–"
        return f"{sum(facts) / len(facts):.0f}" if key == "seconds" else str(facts[0])


def collect(experiment: Experiment, rows: Sequence[Row], seeds: int, out: Path) -> list[RowResult]:
    """Read the finished runs of an experiment.

    Args:
        experiment: The declaration.
        rows: Its rows at one scale.
        seeds: Number of seeds.
        out: Folder that holds the folder of runs.

    Returns:
        One result per row, possibly without runs. Of several variants, the one that is best on the first metric over
        seeds, as the paper chooses, on test error.
    """
    results = []
    for row in rows:
        variants = []
        for variant in row.variants:
            folders = {seed: run_folder(row.load(seed, variant), out) for seed in range(seeds)}
            folders = {seed: folder for seed, folder in folders.items() if read_result(folder)}
            records = {seed: {**read_result(folder), **read_measures(folder)} for seed, folder in folders.items()}
            variants.append(RowResult(row=row, variant=variant, folders=folders, records=records))
        metric = experiment.metrics[0]
        sign = -1 if metric.higher_is_better else 1
        most = max(len(result.records) for result in variants)  # fewer runs could win by a lucky seed
        measured = [
            (sign * value.mean, result)
            for result in variants
            if len(result.records) == most and (value := result.estimate(metric))
        ]
        results.append(min(measured, key=lambda pair: pair[0])[1] if measured else variants[0])
    return results


def compared_pairs(experiment: Experiment, results: Sequence[RowResult]) -> list[tuple[RowResult, RowResult]]:
    """Pair the experiment's subject with each baseline of its group, at the same place of a figure or at none.

    Args:
        experiment: The declaration.
        results: One per row.

    Returns:
        These pairs, then those of `experiment.contrasts`.
    """
    subjects = [result for result in results if result.row.method == experiment.subject]
    others = [result for result in results if result.row.method != experiment.subject]
    named = {result.row.name: result for result in results}
    return [
        *(
            (subject, other)
            for subject in subjects
            for other in others
            if other.row.group == subject.row.group and other.row.x in (None, subject.row.x)
        ),
        *((named[one], named[other]) for one, other in experiment.contrasts if {one, other} <= named.keys()),
    ]


def result_table(experiment: Experiment, results: Sequence[RowResult]) -> ResultTable:
    """Tabulate every row: our values beside the paper's, cost and map size.

    Args:
        experiment: The declaration.
        results: One per row.

    Returns:
        A table with one line per row; with one line per metric where there are more metrics than rows.
    """
    grouped = any(result.row.group_title for result in results)
    with_paper = {metric.key for metric in experiment.metrics if any(metric.key in r.row.expected for r in results)}
    columns = ["Method", *["Group"] * grouped]
    for metric in experiment.metrics:
        columns += [capitalized(metric.title), *["paper"] * (metric.key in with_paper)]
    columns += ["Seeds", "CPU seconds", "Passes", "Map"]
    by_metric = len(experiment.metrics) > len(results)
    rows = []
    for result in results:
        cells = [result.row.title, *[result.row.group_title] * grouped]
        for metric in experiment.metrics:
            value = result.estimate(metric)
            cells.append("–" if value is None else value.with_interval() if by_metric else str(value))
            if metric.key in with_paper:
                cells.append(paper_text(result.row.expected.get(metric.key), result.row.quoted))
        passes = f"{result.cost('forward')} + {result.cost('backward')}"
        cells += [str(len(result.records)), result.cost("seconds"), passes, result.cost("map")]
        rows.append(tuple(cells))
    quoted = "; † quoted by the paper" if any(result.row.quoted for result in results) else ""
    interval = ", with the 95 % interval of Student's t" if by_metric else ""
    notes = [
        f"Trained here: {trained_networks([result.row for result in results])}.",
        f"Mean ± standard error over seeds{interval}; errors in %{quoted}. Passes: forward + backward passes over the "
        "training images, in epochs. CPU seconds: of one run's training. Map: cells of the last feature map.",
    ]
    chosen = {result.row.title: result.variant for result in results if len(result.row.variants) > 1}
    if chosen:
        notes.append(f"Chosen on test error over seeds, as in the paper: {chosen}.")
    lines = [tuple(columns), *rows]
    heading, *body = zip(*lines, strict=True) if by_metric else lines
    return ResultTable(columns=heading, rows=tuple(body), notes=tuple(notes))


def trained_networks(rows: Sequence[Row]) -> str:
    """Name the networks and data of the rows, which at most scales are not those of the paper."""
    trained: dict[str, list[str]] = {}
    for recipe in [row.load(0, row.variants[0]) for row in rows]:
        data = recipe.data
        classes = f", {data.classes} classes" if data.classes else ""
        images = f"{data.per_class_subset} images a class" if data.per_class_subset else ""
        trained.setdefault(f"{recipe.network.name} on {data.name}{classes}", []).append(images)
    return "; ".join(
        ", ".join(filter(None, (what, " or ".join(filter(None, dict.fromkeys(images))))))
        for what, images in trained.items()
    )


def difference_table(experiment: Experiment, results: Sequence[RowResult]) -> ResultTable | None:
    """Tabulate paired differences of the subject to each baseline; None without any.

    Args:
        experiment: The declaration.
        results: One per row.
    """
    metrics = [metric for metric in experiment.metrics if not metric.key.startswith(("maps/", "training/"))]
    rows = []
    for subject, other in compared_pairs(experiment, results):
        differences = [subject.difference(other, metric) for metric in metrics]
        if any(differences):
            group = f" ({subject.row.group_title})" if subject.row.group_title else ""
            name = f"{subject.row.title} minus {other.row.title}{group}"
            rows.append((name, *(str(difference or "–") for difference in differences)))
    if not rows:
        return None
    note = "Same seeds; 95 % interval of Student's t, each on its own. Better or worse: the interval excludes zero."
    if any(result.row.method.endswith(EQUAL_PASSES) for result in results):
        note += " Equal passes: trained for as many epochs as Saliency Grafting makes passes."
    columns = ("Difference", *(capitalized(metric.title) for metric in metrics))
    return ResultTable(columns=columns, rows=tuple(rows), notes=(note,))


def csv_text(experiment: Experiment, scale: ScaleName, results: Sequence[RowResult]) -> str:
    """Write all numbers, one line per row, metric and baseline.

    Args:
        experiment: The declaration.
        scale: Scale at which it was run.
        results: One per row.
    """
    names = ["experiment", "scale", "row", "group", "x", "variant", "metric", "seeds", "mean", "standard_error"]
    names += ["paper_mean", "paper_standard_error", "quoted", "baseline", "difference", "low", "high", "verdict"]
    names += ["cpu_seconds", "forward_passes", "backward_passes", "map"]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n", restval="")
    writer.writeheader()
    pairs = compared_pairs(experiment, results)
    for result in results:
        for metric in experiment.metrics:
            value = result.estimate(metric)
            if value is None:
                continue
            paper = (*result.row.expected.get(metric.key, ()), "", "")
            line: dict[str, Any] = {
                **{"experiment": experiment.name, "scale": scale, "row": result.row.name, "group": result.row.group},
                **{"x": "" if result.row.x is None else result.row.x, "variant": result.variant, "metric": metric.key},
                **{"seeds": value.seeds, "mean": value.mean, "standard_error": value.standard_error},
                **{"paper_mean": paper[0], "paper_standard_error": paper[1], "quoted": result.row.quoted},
                **{"cpu_seconds": result.cost("seconds"), "forward_passes": result.cost("forward")},
                **{"backward_passes": result.cost("backward"), "map": result.cost("map")},
            }
            baselines = [other for subject, other in pairs if subject is result]
            differences = [(other.row.name, result.difference(other, metric)) for other in baselines]
            for baseline, difference in differences or [("", None)]:
                compared = (
                    {}
                    if difference is None
                    else {
                        **{"baseline": baseline, "difference": difference.mean, "low": difference.low},
                        **{"high": difference.high, "verdict": difference.verdict},
                    }
                )
                writer.writerow({**line, **compared})
    return buffer.getvalue()


def write_results(
    experiment: Experiment, rows: Sequence[Row], *, scale: ScaleName, seeds: int, out: Path, command: str
) -> list[ResultTable]:
    """Write OUT/NAME: table.md, table.csv, figure, page, the results of every run, and the commands that train them.

    Args:
        experiment: The declaration.
        rows: Its rows at the scale.
        scale: Scale at which it was run.
        seeds: Number of seeds.
        out: Folder that holds the folder of runs.
        command: What the user typed.

    Returns:
        The tables.
    """
    folder = out / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    results = collect(experiment, rows, seeds, out)
    tables = [table for table in (result_table(experiment, results), difference_table(experiment, results)) if table]
    commands = write_files(
        experiment, results, tables, scale=scale, seeds=seeds, folder=folder, out=out, command=command
    )
    pictures = _figures(experiment, results, folder)
    write_page(
        folder / REPORT,
        "experiment.html",
        title=experiment.title,
        experiment=experiment,
        scale=scale,
        trained=trained_networks(rows),
        tables=tables,
        pictures=[base64.b64encode(path.read_bytes()).decode() for path in pictures if path.suffix == ".png"],
        facts={"Command": command, **versions()},
        commands="\n".join(commands),
        **_view(experiment, results),
    )
    return tables


def write_files(
    experiment: Experiment,
    results: Sequence[RowResult],
    tables: Sequence[ResultTable],
    *,
    scale: ScaleName,
    seeds: int,
    folder: Path,
    out: Path,
    command: str,
) -> list[str]:
    """Write table.md, table.csv, results.json and commands.sh.

    Args:
        experiment: The declaration.
        results: One per row.
        tables: Tables of table.md.
        scale: Scale at which it was run.
        seeds: Number of seeds.
        folder: Folder of the files.
        out: Folder that holds the folder of runs.
        command: What the user typed.

    Returns:
        The command of each run.
    """
    records = {result.row.name: {f"seed-{seed}": run for seed, run in result.records.items()} for result in results}
    write_atomic(folder / "results.json", json.dumps(records, indent=1) + "\n")
    commands = [shlex.join(words) for words in _commands([result.row for result in results], seeds, out)]
    write_atomic(folder / "commands.sh", "\n".join([f"# {command}", *commands, ""]))
    write_atomic(folder / "table.csv", csv_text(experiment, scale, results))
    heading = f"# {experiment.title} ({experiment.paper}), scale {scale}\n\n`{command}`\n\n"
    write_atomic(folder / "table.md", heading + "\n".join(markdown_table(table) for table in tables))
    return commands


def _view(experiment: Experiment, results: Sequence[RowResult]) -> dict[str, Any]:
    """The interactive view of the subject's network, or of another where it has no run of seed 0."""
    trained = [result for result in results if 0 in result.folders]
    subjects = [result for result in trained if result.row.method == experiment.subject]
    return view_of_run((subjects or trained)[0].folders[0]) if trained else {}


def _figures(experiment: Experiment, results: Sequence[RowResult], folder: Path) -> list[Path]:
    metric, files = experiment.metrics[0], []
    points = [(result.row, value) for result in results if (value := result.estimate(metric))]
    series: dict[str, list[tuple[float, Estimate]]] = {}
    for row, value in points:
        if row.x is not None:
            series.setdefault(row.title.partition(", ")[0], []).append((row.x, value))
    if experiment.x_title and series:
        levels = {row.title: value for row, value in points if row.x is None}
        titles = {"x_title": experiment.x_title, "y_title": f"{metric.title} (%)"}
        files += save_sweep(series, levels, folder / "figure", **titles)
    if experiment.draw is not None and all(0 in result.folders for result in results):
        files += experiment.draw({result.row.name: result.folders[0] for result in results}, folder)
    return files


def _commands(rows: Sequence[Row], seeds: int, out: Path) -> list[list[str]]:
    runs = [(row, seed, variant) for row in rows for variant in row.variants for seed in range(seeds)]
    return [row.command(seed, variant, run_folder(row.load(seed, variant), out)) for row, seed, variant in runs]


def progress_of(experiment: Experiment, rows: Sequence[Row], seeds: int, out: Path) -> tuple[int, int]:
    """Count the finished runs of an experiment in a folder, and all.

    Args:
        experiment: The declaration.
        rows: Its rows at the scale.
        seeds: Number of seeds.
        out: Folder that holds the folder of runs.
    """
    jobs = {job.folder: job for job in jobs_of(experiment, rows, seeds, out)}
    return sum(job.done for job in jobs.values()), len(jobs)


def paper_text(value: PaperValue | None, quoted: str) -> str:
    """Write the paper's value, with a dagger if it quotes it; a dash for none."""
    if value is None:
        return "–"
    return " ± ".join(f"{part:.2f}" for part in value) + ("†" if quoted else "")


def capitalized(text: str) -> str:
    """Return the text with a capital first letter, the others unchanged."""
    return text[:1].upper() + text[1:]
