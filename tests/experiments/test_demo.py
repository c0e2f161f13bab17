"""The demo's rows, order, verdict, tables and page, from result files that the test writes and one real run."""

import json
from pathlib import Path

import pytest
from tests.reports.pages import assert_self_contained

from saligraft.experiments import demo
from saligraft.experiments.demo import (
    DEMO,
    GRAFTING,
    LABELS,
    PLAIN,
    demo_jobs,
    demo_rows,
    demo_tables,
    verdict,
    work,
    write_demo,
)
from saligraft.experiments.experiment import EQUAL_PASSES, MEASURES, passes_of, run_folder
from saligraft.experiments.results import RowResult, collect
from saligraft.reports.page import minus
from saligraft.training.run_folder import RESULT

SEEDS = 3
PLAIN_EQUAL = f"{PLAIN}-{EQUAL_PASSES}"
# Error minus that of plain training, whole and with 25 % hidden: clearly lower, clearly higher, or in doubt.
SHIFTS = {PLAIN: (0.0, 0.0), PLAIN_EQUAL: (-9.0, 0.0), "cutmix": (-4.0, -8.0), GRAFTING: (-4.0, -8.0)}
NAMES = {
    PLAIN: "Plain training",
    PLAIN_EQUAL: "Plain at equal passes",
    "cutmix": "CutMix",
    GRAFTING: "Saliency Grafting",
}


@pytest.fixture
def results(tmp_path: Path) -> list[RowResult]:
    """Invented runs: paired differences of Saliency Grafting to plain training vary little, those to CutMix a lot."""
    rows = demo_rows("smoke")
    for row in rows:
        for seed in range(SEEDS):
            folder = run_folder(row.load(seed), tmp_path)
            folder.mkdir(parents=True)
            whole, hidden = SHIFTS[row.method]
            spread = {GRAFTING: 0.1, "cutmix": 9.0}.get(row.method, 0.0) * (seed - 1)
            measures = {
                "run": {"seconds": 12.0, "forward": 3, "backward": 3, "map": "4×4"},
                "occlusion": {"0": 40 + whole + spread, "12.5": 50 + spread, "25": 60 + hidden + spread},
                "label_truth": {f"{key} labels": 10.0 + place for place, key in enumerate(LABELS.values())},
            }
            (folder / RESULT).write_text('{"top1_error": {"best": 40.0}}')
            (folder / MEASURES).write_text(json.dumps(measures))
    return collect(DEMO, rows, SEEDS, tmp_path)


def test_rows_differ_in_method_and_passes_alone() -> None:
    tables, recipes = {}, {row.method: row.load(1) for row in demo_rows("laptop")}
    assert [row.title for row in demo_rows("laptop")] == list(NAMES.values())
    assert passes_of(recipes[PLAIN_EQUAL]) == passes_of(recipes[GRAFTING])
    assert recipes[GRAFTING].training.warmup_epochs == 5
    for method, recipe in recipes.items():
        tables[method] = recipe.model_dump(exclude={"method": True, "training": {"epochs", "warmup_epochs"}})
        assert recipe.data.name == "shapes"
        assert not recipe.data.held_out
        assert (recipe.training.epochs == recipes[PLAIN].training.epochs) == (method != PLAIN_EQUAL)
    assert all(table == tables[PLAIN] for table in tables.values())
    assert recipes["cutmix"].method.options["probability"] == 0.5  # as the notes say


def test_the_longest_runs_of_a_seed_start_first_and_only_grafts_have_labels_to_check(tmp_path: Path) -> None:
    jobs = demo_jobs(demo_rows("laptop"), 2, tmp_path)
    assert [job.recipe.seed for job in jobs] == [0] * 4 + [1] * 4
    passes = [passes_of(job.recipe).forward for job in jobs[:4]]
    assert passes == sorted(passes, reverse=True)
    assert [job.recipe.method.name for job in jobs if "label_truth" in job.measures] == [GRAFTING] * 2
    assert all("occlusion" in job.measures for job in jobs)


def test_the_verdict_states_wins_losses_and_doubt(results: list[RowResult]) -> None:
    assert verdict(results) == (
        "Over 3 paired seeds, the error with Saliency Grafting is lower than with plain training (-4.0 points), is "
        "higher than with plain at equal passes (+5.0), and cannot be distinguished from that with CutMix (+0.0); "
        "with the most salient 25 % hidden, it is lower than with plain training (-8.0) or plain at equal passes "
        "(-8.0), and cannot be distinguished from that with CutMix (+0.0)."
    )


def test_tables_hold_errors_cost_differences_and_label_truth(results: list[RowResult]) -> None:
    errors, differences, labels = demo_tables(results)
    assert errors.rows[-1] == ("Saliency Grafting", "36.00 ± 0.06", "50.00 ± 0.06", "52.00 ± 0.06", "12", "3")
    assert "4×4 cells" in errors.notes[0]
    assert len(differences.rows) == 9
    assert differences.rows[0] == ("Plain training", "Error", "-4.00", "-4.25 to -3.75", "better")
    assert differences.rows[2][-1] == "not resolved"
    assert [row[1] for row in labels.rows] == ["10.00 ± 0.00", "11.00 ± 0.00", "12.00 ± 0.00"]


def test_tables_fit_a_terminal_of_80_columns(results: list[RowResult]) -> None:
    for table in demo_tables(results):
        cells = zip(table.columns, *table.rows, strict=True)
        assert sum(max(map(len, column)) + 2 for column in cells) - 2 <= 80


@pytest.mark.slow
def test_a_run_gets_its_page_and_the_demo_links_to_it(tmp_path: Path) -> None:
    rows = demo_rows("smoke")
    for job in demo_jobs(rows, 1, tmp_path):
        work(job)
        assert job.done
    path, sentence, tables = write_demo(rows, 1, tmp_path, "saligraft demo --seeds 1", "smoke")
    assert json.loads((tmp_path / "results.json").read_text())["cutmix"].keys() == {"seed-0"}
    assert (tmp_path / "commands.sh").read_text().count("\nsaligraft train ") == len(rows)
    assert "scale smoke\n\n`saligraft demo --seeds 1`" in (tmp_path / "table.md").read_text()
    links = [(run_folder(row.load(0), tmp_path) / "report.html").relative_to(tmp_path).as_posix() for row in rows]
    assert all((tmp_path / link).is_file() for link in links)
    page = assert_self_contained(path.read_text(encoding="utf-8"), links)
    for words in (minus(sentence), "Over 1 paired seed,", "saligraft demo --seeds 1", *NAMES.values()):
        assert words in page.text
    assert len(page.named("article")) == 6
    assert len(page.named("table")) == len(tables)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = demo_jobs(demo_rows("smoke"), 1, tmp_path)[0]
    job.folder.mkdir(parents=True)
    (job.folder / RESULT).write_text('{"top1_error": {"best": 1.0}}')
    measured = []
    monkeypatch.setattr(demo, "run_job", measured.append)
    monkeypatch.setattr(demo, "train", None)
    work(job)
    assert measured == [job]
