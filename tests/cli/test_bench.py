"""`saligraft bench`: a small run from end to end, and mistakes refused before anything is measured."""

import json
from pathlib import Path

import pytest

from saligraft.cli import run
from saligraft.experiments import bench_page
from saligraft.experiments.bench import SECTIONS
from saligraft.experiments.bench_page import END, START
from saligraft.names import BENCH_SECTIONS


@pytest.mark.slow
def test_a_quick_run_measures_every_section(tmp_path: Path) -> None:
    assert run(["bench", "--quick", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(dict.fromkeys(row["section"] for row in results["rows"])) == list(SECTIONS)
    assert all(row["median"] > 0 for row in results["rows"] if row["verdict"] != "not measured")
    assert {row["note"] for row in results["rows"] if row["verdict"] == "not measured"} <= {"not installed"}
    assert (tmp_path / "report.html").is_file()


def test_sections_run_alone(tmp_path: Path) -> None:
    assert run(["bench", "memory", "--quick", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["section"] for row in rows} == {"memory"}


def test_write_puts_the_tables_between_the_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"# Title\n{START}\nold\n{END}\n## Misses\n")
    monkeypatch.setattr(bench_page, "run_bench", lambda *_, **__: {})
    monkeypatch.setattr(bench_page, "markdown", lambda _: "new")
    assert run(["bench", "--write", str(document)]) == 0
    assert document.read_text() == f"# Title\n{START}\n\nnew\n\n{END}\n## Misses\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "section must be one of 'operations', "),
        (["--quick", "--write", "FILE"], "--write needs a complete run"),
        (["memory", "--write", "FILE"], "--write needs a complete run"),
        (["--write", "FILE"], "must hold the lines"),
        (["--out", "FILE"], "--out must be a folder, got the file"),
        (["--threads", "0"], "--threads"),
    ],
)
def test_mistakes_are_refused_before_measuring(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("no markers")
    arguments = [str(tmp_path / "page.md") if argument == "FILE" else argument for argument in arguments]
    assert run(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_every_section_may_be_named() -> None:
    assert tuple(SECTIONS) == BENCH_SECTIONS
