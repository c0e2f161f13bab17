"""`saligraft compare`, as typed."""

import shutil
from pathlib import Path

import pytest
from tests.experiments.invented_runs import finished, write_runs
from tests.reports.pages import assert_self_contained

from saligraft.cli import run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_runs(Path("runs"))


def test_two_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "runs/none-0", "runs/cutmix-0"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split(" | ")[0] for line in printed.splitlines() if line.startswith("| ")]
    assert rows.index("| Plain training") < rows.index("| CutMix")  # in the order given
    assert "| Plain training | 40.00 |" in printed
    assert "| CutMix | **38.00** |" in printed
    assert printed.endswith("38.00 %. One seed each: no interval.\nPage: runs/compare.html\n")
    assert (runs / "compare.html").is_file()


def test_a_folder_of_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path("new/c.html")
    assert run(["compare", str(runs / "none-0"), str(runs), "--out", "new/c"]) == 0
    printed = capsys.readouterr().out
    assert "| CutMix | Best | -2.00 | -3.24 to -0.76 | better |" in printed
    assert f"Page: {page}" in printed
    shown = assert_self_contained(page.read_text(encoding="utf-8"))
    for words in ("CutMix has the lowest error", "Settings that differ", "−3.24 to −0.76", "Learning curves"):
        assert words in shown.text
    assert len(shown.named("svg")) == 2


def test_runs_that_are_left_out_are_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("again", "third"):
        shutil.copytree(runs / "none-0", runs / name)
    shutil.copytree(runs / "none-1", runs / "stopped")
    (runs / "stopped" / "result.json").unlink()
    (runs / "stopped" / "run.json").write_text("")
    assert run(["compare", "runs"]) == 0
    left_out = (
        "2 repeats of the same recipe and seed and 1 unfinished run left out: runs/none-0, runs/third, runs/stopped."
    )
    assert left_out in capsys.readouterr().out
    assert left_out in assert_self_contained(Path("runs/compare.html").read_text(encoding="utf-8")).text


def test_the_note_on_folded_options_is_for_the_terminal(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished(runs / "grafts", "saliency-grafting", 0, 30.0)
    assert run(["compare", "runs/none-0", "runs/grafts"]) == 0
    assert "the page lists them" in capsys.readouterr().out
    assert "the page lists them" not in Path("runs/compare.html").read_text(encoding="utf-8")


def test_mistakes_are_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    shutil.copytree(runs / "none-0", "copy")
    for arguments, words in (
        (["empty"], "run must be the folder of a finished run, or hold some"),
        ([str(runs), "gone"], "gone"),
        (["runs/none-0"], "compare needs at least two runs, got only runs/none-0"),
        (["runs/none-0", "runs/../runs/none-0"], "compare needs at least two runs, got only runs/none-0"),
        (["runs/none-0", "copy"], "runs must differ in recipe or seed, got the same in runs/none-0 and copy"),
        ([str(runs), "--out", "empty"], "--out must be the file to write, got the folder empty"),
    ):
        assert run(["compare", *arguments]) == 2
        message = capsys.readouterr().err
        assert words in message
        assert message.count("\n") == 1
    assert not Path("runs/compare.html").exists()
