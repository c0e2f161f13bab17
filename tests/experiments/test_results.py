"""Tables, differences and files of an experiment, from result files that the test writes."""

import csv
import io
import json
from pathlib import Path

import pytest
from tests.reports.pages import assert_self_contained

from saligraft.experiments.experiment import MEASURES, Experiment, Metric, Row, rows_of, run_folder
from saligraft.experiments.paper import EXPERIMENTS, regime
from saligraft.experiments.results import (
    collect,
    compared_pairs,
    csv_text,
    difference_table,
    progress_of,
    result_table,
    write_results,
)
from saligraft.training.run_folder import RESULT

SEEDS = 3


def rows_at(name: str, scale: str = "smoke") -> list[Row]:
    return rows_of(EXPERIMENTS[name], scale, regime, None)


def write_run(row: Row, out: Path, seed: int, error: float, variant: str = "") -> None:
    folder = run_folder(row.load(seed, variant), out)
    folder.mkdir(parents=True, exist_ok=True)
    errors = {"best": error, "last10_mean": error + 1, "final": error + 2}
    (folder / RESULT).write_text(json.dumps({"top1_error": errors, "top5_error": errors}))
    run = {"seconds": 12.0, "forward": 2, "backward": 2, "map": "8×8"}
    (folder / MEASURES).write_text(json.dumps({"run": run}))


@pytest.fixture
def speech(tmp_path: Path) -> tuple[Experiment, list[Row], Path]:
    rows = rows_at("table-speech")
    for row in rows:
        for seed in range(SEEDS):
            shift = {"saliency-grafting": -2.0 + 0.1 * (seed - 1), "cutmix": 3.0 * (seed - 1)}.get(row.method, 0.0)
            write_run(row, tmp_path, seed, 40.0 + seed + shift)
    return EXPERIMENTS["table-speech"], rows, tmp_path


def test_the_papers_value_stands_beside_ours(speech) -> None:
    experiment, rows, out = speech
    table = result_table(experiment, collect(experiment, rows, SEEDS, out))
    lines = {row[0]: row[1:] for row in table.rows}
    assert lines["Saliency Grafting"][:3] == ("39.00 ± 0.64", "2.51 ± 0.04", "40.00 ± 0.64")
    assert lines["Plain training, equal passes"][1] == "–"
    assert lines["Plain training"][-4:] == ("3", "12", "2 + 2", "8×8")


def test_differences_are_paired_by_seed(speech) -> None:
    experiment, rows, out = speech
    table = difference_table(experiment, collect(experiment, rows, SEEDS, out))
    assert table is not None
    lines = {row[0]: row[1] for row in table.rows}
    assert lines["Saliency Grafting minus Plain training"] == "-2.00 [-2.25, -1.75] better"
    assert lines["Saliency Grafting minus CutMix"].endswith("not resolved")
    assert len(lines) == 4


def test_only_seeds_that_both_have_are_compared(speech) -> None:
    experiment, rows, out = speech
    plain = next(row for row in rows if row.name == "none")
    (run_folder(plain.load(1), out) / RESULT).unlink()
    results = collect(experiment, rows, SEEDS, out)
    pair = next(pair for pair in compared_pairs(experiment, results) if pair[1].row is plain)
    difference = pair[0].difference(pair[1], experiment.metrics[0])
    assert difference is not None
    assert difference.seeds == 2
    assert progress_of(experiment, rows, SEEDS, out) == (14, 15)


@pytest.mark.parametrize("damaged", ["", '{"top1_error": {"best": 4', "[]", '{"top1_error": 3}', '{"epochs": 1}'])
def test_a_damaged_result_is_no_finished_seed(speech, damaged: str) -> None:
    experiment, rows, out = speech
    grafting = next(row for row in rows if row.method == "saliency-grafting")
    (run_folder(grafting.load(1), out) / RESULT).write_text(damaged)
    lines = {row[0]: row[1:] for row in result_table(experiment, collect(experiment, rows, SEEDS, out)).rows}
    assert lines["Saliency Grafting"][-4] == "2"
    assert lines["Plain training"][-4] == "3"
    done, count = progress_of(experiment, rows, SEEDS, out)
    assert done == count - 1  # it is trained again, or the runner says why not


def test_a_run_whose_correlation_is_undefined_is_left_out_of_its_mean(speech) -> None:
    experiment, rows, out = speech
    for seed, value in enumerate((0.25, None, 0.75)):
        file = run_folder(rows[0].load(seed), out) / MEASURES
        file.write_text(json.dumps({**json.loads(file.read_text()), "labels": {"rank": value}}))
    result = collect(experiment, rows, SEEDS, out)[0]
    metric = Metric("labels/rank", "rank correlation")
    assert result.values(metric) == {0: 0.25, 2: 0.75}
    assert result.estimate(metric).mean == 0.5


def test_the_csv_has_a_line_for_each_row_metric_and_baseline(speech) -> None:
    experiment, rows, out = speech
    lines = list(csv.DictReader(io.StringIO(csv_text(experiment, "smoke", collect(experiment, rows, SEEDS, out)))))
    assert len(lines) == 2 * (4 + 4)  # metrics x (other rows + baselines of Saliency Grafting)
    line = next(line for line in lines if line["baseline"] == "none" and line["metric"] == "top1_error/best")
    assert (line["verdict"], line["paper_mean"]) == ("better", "2.51")
    assert float(line["difference"]) == pytest.approx(-2.0)


def test_of_two_variants_the_better_over_seeds_counts(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["table-saliency"]
    rows = rows_at("table-saliency", "paper")
    first, second = rows[0].variants
    for seed, (one, other) in enumerate([(20.0, 21.0), (30.0, 21.0)]):
        write_run(rows[0], tmp_path, seed, one, first)
        write_run(rows[0], tmp_path, seed, other, second)
    result = collect(experiment, rows, 2, tmp_path)[0]
    assert result.variant == second
    assert [record["top1_error"]["best"] for record in result.records.values()] == [21.0, 21.0]
    assert "Chosen on test error" in " ".join(result_table(experiment, [result]).notes)
    write_run(rows[0], tmp_path, 2, 0.0, first)  # while the second run of the other is missing
    assert collect(experiment, rows, 3, tmp_path)[0].variant == first
    write_run(rows[0], tmp_path, 3, 60.0, second)
    write_run(rows[0], tmp_path, 4, 60.0, second)
    assert collect(experiment, rows, 5, tmp_path)[0].variant == second


def test_tables_say_what_was_trained() -> None:
    for name, trained in (
        ("table-wrn", "wrn-10-2 on cifar100, 10 classes, 50 images a class"),
        ("table-scarcity", "wrn-10-2 on cifar100, 10 classes, 50 images a class or 100 images a class"),
    ):
        rows = rows_of(EXPERIMENTS[name], "laptop", regime, Path("data"))
        assert (
            f"Trained here: {trained}."
            in result_table(EXPERIMENTS[name], collect(EXPERIMENTS[name], rows, 1, Path("nowhere"))).notes
        )


def test_points_of_a_figure_are_compared_with_levels_and_with_their_own_place() -> None:
    experiment = EXPERIMENTS["figure-copies"]
    rows = rows_at("figure-copies")
    results = collect(experiment, rows, 1, Path("nowhere"))
    names = {(subject.row.name, other.row.name) for subject, other in compared_pairs(experiment, results)}
    levels = {(f"saliency-grafting-{k}", other) for k in (1, 2) for other in ("none", f"puzzlemix-{k}")}
    assert names == levels | {(f"{method}-2", f"{method}-1") for method in ("saliency-grafting", "puzzlemix")}
    scarcity = EXPERIMENTS["table-scarcity"]
    results = collect(scarcity, rows_at("table-scarcity"), 1, Path("nowhere"))
    assert all(a.row.group == b.row.group for a, b in compared_pairs(scarcity, results))


def test_all_files_are_written(speech) -> None:
    experiment, rows, out = speech
    write_results(experiment, rows, scale="smoke", seeds=SEEDS, out=out, command="saligraft reproduce table-speech")
    folder = out / "table-speech"
    assert (folder / "table.md").read_text(encoding="utf-8").count("| Saliency Grafting minus") == 4
    commands = (folder / "commands.sh").read_text(encoding="utf-8").splitlines()
    assert commands[0] == "# saligraft reproduce table-speech"
    assert sum(line.startswith("saligraft train shapes-wrn-10-2") for line in commands) == 15
    records = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert {row: list(seeds) for row, seeds in records.items()} == {
        row.name: [f"seed-{seed}" for seed in range(SEEDS)] for row in rows
    }
    page = assert_self_contained((folder / "report.html").read_text(encoding="utf-8"))
    assert ": wrn-10-1 on shapes." in page.text
    assert "2.51 ± 0.04" in page.text


def test_a_figure_is_drawn_from_the_points_that_are_finished(tmp_path: Path) -> None:
    experiment, rows = EXPERIMENTS["figure-temperature"], rows_at("figure-temperature")
    for row in rows:
        if row.x != 0.01:
            write_run(row, tmp_path, 0, 40.0)
    write_results(experiment, rows, scale="smoke", seeds=1, out=tmp_path, command="")
    assert (tmp_path / "figure-temperature" / "figure.png").is_file()
    page = (tmp_path / "figure-temperature" / "report.html").read_text(encoding="utf-8")
    assert_self_contained(page)
    assert 'src="data:image/png;base64,' in page
    assert "temperature T" in (tmp_path / "figure-temperature" / "figure.svg").read_text(encoding="utf-8")


def test_without_any_run_the_table_has_dashes(tmp_path: Path) -> None:
    experiment, rows = EXPERIMENTS["table-speech"], rows_at("table-speech")
    results = collect(experiment, rows, SEEDS, tmp_path)
    assert {row[1] for row in result_table(experiment, results).rows} == {"–"}
    assert difference_table(experiment, results) is None


def test_more_metrics_than_rows_make_a_table_with_a_line_per_metric(tmp_path: Path) -> None:
    experiment, rows = EXPERIMENTS["label-truth"], rows_at("label-truth")
    metric = experiment.metrics[0]
    for row in rows:
        for seed, value in enumerate((8.0, 10.0)):
            write_run(row, tmp_path, seed, 40.0)
            folder = run_folder(row.load(seed), tmp_path)
            measures = json.loads((folder / MEASURES).read_text())
            measures["label_truth"] = {metric.key.partition("/")[2]: value}
            (folder / MEASURES).write_text(json.dumps(measures))
    table = result_table(experiment, collect(experiment, rows, 2, tmp_path))
    assert table.columns == ("Method", *["Saliency Grafting"] * 3)
    lines = {line[0]: line[1:] for line in table.rows}
    margin = 12.7062  # t of 97.5 % with one degree of freedom, times a standard error of 1
    assert lines["Grafting, error of area labels"][0] == f"9.00 ± 1.00 [{9 - margin:.2f}, {9 + margin:.2f}]"
    assert lines["Group"] == (
        "shapes, true masks",
        "Tiny-ImageNet, boxes (here shapes)",
        "CUB, boxes (here shapes)",
    )
    assert lines["Grafting, diversity"] == ("–",) * 3
    assert lines["Passes"] == ("2 + 2",) * 3


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("figure-temperature", ("saliency-grafting-0.01", "saliency-grafting-0.2")),
        ("figure-copies", ("puzzlemix-4", "puzzlemix-1")),
        ("table-ablation", ("wrn-saliency-grafting-stochastic-area", "wrn-saliency-grafting-deterministic-area")),
    ],
)
def test_contrasts_compare_rows_of_one_method(name: str, pair: tuple[str, str]) -> None:
    experiment = EXPERIMENTS[name]
    results = collect(experiment, rows_at(name, "laptop"), 1, Path("nowhere"))
    names = [(one.row.name, other.row.name) for one, other in compared_pairs(experiment, results)]
    assert pair in names
    assert len(set(names)) == len(names)
    for one, other in experiment.contrasts:  # each exists where all of the experiment is run
        assert {one, other} <= {row.name for row in rows_at(name, "paper")}
