"""What a run of the benchmark writes: JSON with its facts, a page, tables between a document's markers."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from saligraft.experiments import bench_page
from saligraft.experiments.bench import SECTIONS, Row, Setting
from saligraft.experiments.bench_page import END, START, TITLES, around_markers, markdown, run_bench

ROWS = [
    Row(section="steps", name="fast", against="floor", values=(1.0, 1.25, 1.5), at_most=2.0),
    Row(section="steps", name="slow", against="floor", values=(3.0,), at_most=2.0, note="3 / 1 ms"),
    Row(section="operations", name="mixer", values=(41,), at_most=45),
    Row(section="steps", name="absent", against="floor", note="not installed"),
]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    def of(name: str) -> list[Row]:
        return [row for row in ROWS if row.section == name]

    for name in SECTIONS:
        monkeypatch.setitem(SECTIONS, name, lambda _: torch.rand(1) and [])  # draws
    for name in ("operations", "steps"):
        monkeypatch.setitem(SECTIONS, name, lambda _, name=name: iter(of(name)))
    state = torch.get_rng_state()
    written = run_bench(tmp_path, command="saligraft bench", console=Console(quiet=True))
    assert torch.equal(torch.get_rng_state(), state)
    return written


def test_results_hold_rows_and_what_they_depend_on(results: dict, tmp_path: Path) -> None:
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored == json.loads(json.dumps(results))
    facts = {"command", "commit", "processor", "system", "load", "threads", "versions", "date", "seconds"}
    assert stored.keys() >= facts
    assert (stored["command"], stored["threads"], stored["quick"]) == ("saligraft bench", 1, False)
    assert [(row["name"], row["median"], row["verdict"]) for row in stored["rows"]] == [
        ("mixer", 41, "met"),
        ("fast", 1.25, "met"),
        ("slow", 3.0, "missed"),
        ("absent", None, "not measured"),
    ]


def test_losses_stand_beside_wins(results: dict, tmp_path: Path) -> None:
    text = markdown(json.loads(json.dumps(results)))
    assert "2 of 3 targets are met." in text
    assert "| fast | floor | 1.25× | 1.12× – 1.38× | ≤ 2 | met |  |" in text
    assert "| slow | floor | 3× |  | ≤ 2 | **missed** | 3 / 1 ms |" in text
    assert "| mixer |  | 41 |  | ≤ 45 | met |  |" in text
    assert "not installed" in text
    page = (tmp_path / "report.html").read_text()
    assert page.count("missed") == 1
    assert "saligraft bench" in page
    assert "Load average at the start" in page


def test_every_section_has_a_title() -> None:
    assert TITLES.keys() == SECTIONS.keys()


def test_markers_are_needed_once_and_in_order(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n{START}\nold\n{END}\nafter\n")
    assert around_markers(document) == (f"before\n{START}", f"{END}\nafter\n")
    for text in ("", START, f"{END} {START}", f"{START} {END} {END}"):
        document.write_text(text)
        with pytest.raises(ValueError, match="must hold the lines"):
            around_markers(document)


def test_a_quick_run_is_small_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[Setting] = []
    for name in SECTIONS:
        monkeypatch.setitem(SECTIONS, name, lambda setting: settings.append(setting) or [])
    run_bench(tmp_path, quick=True, data_root=tmp_path, console=Console(quiet=True))
    assert {(each.large.batch, each.data_root) for each in settings} == {(4, tmp_path)}
    assert "Quick run" in (tmp_path / bench_page.REPORT).read_text()
