"""Runs side by side: how they are found, grouped and named, and their numbers against a count by hand."""

from pathlib import Path
from statistics import fmean

import pytest
from tests.experiments.invented_runs import ERRORS, finished, write_runs

from saligraft.experiments.compare import comparison_tables, find_runs, group_runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_runs(tmp_path / "runs")


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
