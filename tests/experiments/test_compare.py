"""Runs side by side: how they are found, grouped and named, and their numbers against a count by hand."""

import json
from pathlib import Path
from statistics import fmean

import pytest
from tests.reports.pages import assert_self_contained

from saligraft.cli import run
from saligraft.experiments.compare import comparison_tables, find_runs, group_runs
from saligraft.training import dump_recipe, make_recipe

ERRORS = {"none": (40.0, 42.0, 45.0), "cutmix": (38.0, 39.5, 43.5)}


def finished(folder: Path, method: str, seed: int, error: float, **training: int) -> Path:
    """An invented run of two epochs."""
    folder.mkdir(parents=True)
    table = {"seed": seed, "method": {"name": method}, "training": {"epochs": 2, "warmup_epochs": 0, **training}}
    (folder / "recipe.toml").write_text(dump_recipe(make_recipe(table)))
    lines = [{"epoch": epoch, "top1_error": value} for epoch, value in ((1, 80.0), (2, error))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "timing.jsonl").write_text(json.dumps({"epoch": 1, "cpu_seconds": 7.4}) + "\n")
    top1, top5 = {"best": error, "last10_mean": error + 1}, {"best": error / 2}
    (folder / "result.json").write_text(json.dumps({"top1_error": top1, "top5_error": top5}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for method, errors in ERRORS.items():
        for seed, error in enumerate(errors):
            finished(tmp_path / "runs" / f"{method}-{seed}", method, seed, error)
    return tmp_path / "runs"


def test_runs_that_differ_in_their_seed_alone_are_one_row(folder: Path) -> None:
    plain, cutmix = sorted(group_runs(find_runs([folder])), key=lambda group: group.name, reverse=True)
    assert (plain.name, cutmix.name) == ("Plain training", "CutMix")
    assert list(plain.folders) == list(cutmix.folders) == [0, 1, 2]
    table, settings, differences = comparison_tables([plain, cutmix])
    assert table.rows[0][1].startswith(f"{fmean(ERRORS['none']):.2f} ± ")
    assert table.rows[1][4:] == ("3", "2 + 2", "7")
    assert (1, 1) in table.best
    assert settings.columns == ("Setting", "Plain training", "CutMix")
    assert ("method.name", "none", "cutmix") in settings.rows
    # Differences -2, -2.5, -1.5: mean -2, standard error 0.2887, times 4.3027 for 95 %.
    assert differences.rows[0] == ("CutMix", "Best", "-2.00", "-3.24 to -0.76", "better")


def test_groups_of_one_method_are_told_apart_by_a_setting(folder: Path) -> None:
    more = finished(folder / "long", "cutmix", 0, 30.0, batch_size=7)
    names = [group.name for group in group_runs([folder / "cutmix-0", more])]
    assert len(set(names)) == 2
    assert all("batch_size" in name for name in names)


def test_seeds_that_do_not_pair_have_no_differences(folder: Path) -> None:
    tables = comparison_tables(group_runs([folder / "none-0", folder / "cutmix-1"]))
    assert [table.columns[-1] for table in tables] == ["CPU s", "CutMix"]


def test_the_command_prints_the_tables_and_writes_the_page(folder: Path, tmp_path: Path, capsys) -> None:
    page = tmp_path / "new" / "c.html"
    assert run(["compare", str(folder / "none-0"), str(folder), "--out", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "| CutMix | Best | -2.00 | -3.24 to -0.76 | better |" in printed
    assert f"Page: {page}" in printed
    shown = assert_self_contained(page.read_text(encoding="utf-8"))
    for words in ("CutMix has the lowest error", "Settings that differ", "-3.24 to -0.76", "Learning curves"):
        assert words in shown.text
    assert len(shown.named("svg")) == 2


def test_a_folder_without_runs_ends_in_one_line(tmp_path: Path, capsys) -> None:
    assert run(["compare", str(tmp_path), "--out", str(tmp_path / "c.html")]) == 2
    error = capsys.readouterr().err
    assert "run must be the folder of a finished run, or hold some" in error
    assert len(error.strip().splitlines()) == 1
