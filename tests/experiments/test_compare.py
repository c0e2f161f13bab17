"""Runs side by side: how they are found, grouped and named, and their numbers against a count by hand."""

import json
from pathlib import Path
from statistics import fmean

import pytest
from tests.experiments.invented_runs import ERRORS, finished, write_runs

from saligraft.experiments.compare import (
    comparison_tables,
    comparison_verdict,
    differing,
    find_runs,
    group_runs,
    own_options,
)
from saligraft.training import make_recipe


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_runs(tmp_path / "runs")


def test_runs_that_differ_in_their_seed_alone_are_one_row(folder: Path) -> None:
    plain, cutmix = sorted(group_runs(find_runs([folder])), key=lambda group: group.name, reverse=True)
    assert (plain.name, cutmix.name) == ("Plain training", "CutMix")
    assert list(plain.folders) == list(cutmix.folders) == [0, 1, 2]
    table, differences, settings = comparison_tables([plain, cutmix]).values()
    assert table.rows[0][1].startswith(f"{fmean(ERRORS['none']):.2f} ± ")
    assert table.rows[1][4:] == ("3", "2 + 2", "7")
    assert (1, 1) in table.best
    assert settings.columns == ("Setting", "Plain training", "CutMix")
    assert ("method.name", "none", "cutmix") in settings.rows
    # Differences -2, -2.5, -1.5: mean -2, standard error 0.2887, times 4.3027 for 95 %.
    assert differences.rows[0] == ("CutMix", "Best", "-2.00", "-3.24 to -0.76", "better")


def test_runs_tested_on_other_images_are_not_ranked(folder: Path) -> None:
    for place, name in enumerate(("cutmix-0", "none-0")):  # of one data set, but of other options
        data = {"test": {"digest": f"{place}"}}
        marker = {"format": "saligraft run 1", "run": f"{place}" * 32, "files": [], "data": data}
        (folder / name / "run.json").write_text(json.dumps(marker))
    groups = group_runs([folder / "cutmix-0", folder / "none-0"])
    assert [group.name for group in groups] == ["Plain training", "CutMix"]  # the one to compare with first
    assert comparison_verdict(groups).startswith("The runs were tested on different images, so their errors are not")
    tables = comparison_tables(groups)
    assert not tables["Result"].best
    assert tables["Result"].notes[-1] == "No paired difference to Plain training (tested on other images): CutMix."
    assert "Differences, paired by seed" not in tables


def test_runs_of_one_recipe_on_other_images_are_refused(folder: Path) -> None:
    for seed in (0, 1):
        data = {"test": {"digest": f"{seed}"}}  # as behind another data.root
        marker = {"format": "saligraft run 1", "run": "0" * 32, "files": [], "data": data}
        (folder / f"none-{seed}" / "run.json").write_text(json.dumps(marker))
    with pytest.raises(ValueError, match=r"must be tested on the same images, got others in .*none-0 and .*none-1$"):
        group_runs(find_runs([folder]))


def test_the_top5_error_of_five_classes_is_not_shown(folder: Path) -> None:
    for name in ("cutmix-0", "none-0"):
        data = {"classes": ["a", "b"], "test": {"digest": "1"}}
        marker = {"format": "saligraft run 1", "run": "1" * 32, "files": [], "data": data}
        (folder / name / "run.json").write_text(json.dumps(marker))
    tables = comparison_tables(group_runs([folder / "cutmix-0", folder / "none-0"]))
    assert [row[3] for row in tables["Result"].rows] == ["–", "–"]
    assert tables["Result"].best == {(1, 1), (1, 2)}
    assert [row[1] for row in tables["Differences, paired by seed"].rows] == ["Best", "Last 2"]


def test_a_damaged_result_is_named(folder: Path) -> None:
    (folder / "none-0" / "result.json").write_text('{"top1_err')
    with pytest.raises(ValueError, match=r"none-0/result\.json is damaged: saligraft train .*none-0 --resume"):
        find_runs([folder])


def test_groups_of_one_method_are_told_apart_by_a_setting(folder: Path) -> None:
    more = finished(folder / "long", "cutmix", 0, 30.0, batch_size=7)
    names = [group.name for group in group_runs([folder / "cutmix-0", more])]
    assert len(set(names)) == 2
    assert all("batch_size" in name for name in names)


def test_seeds_that_do_not_pair_have_no_differences(folder: Path) -> None:
    groups = group_runs([folder / "none-0", folder / "cutmix-1"])
    tables = comparison_tables(groups)
    assert list(tables) == ["Result", "Settings that differ"]
    reason = "No paired difference to Plain training (no seed in common): CutMix."
    assert tables["Result"].notes[-1] == reason
    assert comparison_verdict(groups).endswith("39.50 %. One seed each: no interval.")
    two = group_runs([folder / "none-0", folder / "cutmix-1", folder / "cutmix-2"])
    assert comparison_verdict(two).endswith("its lead over CutMix is not resolved.")


def test_the_verdict_says_no_more_than_the_differences(folder: Path) -> None:
    groups = group_runs(find_runs([folder]))
    assert comparison_verdict(groups).endswith("Paired by seed, it is better than Plain training.")
    one = [folder / "none-0", folder / "cutmix-0"]
    expected = "CutMix has the lowest error at its best epoch: 38.00 %. One seed each: no interval."
    assert comparison_verdict(group_runs(one)) == expected
    longer = finished(folder / "longer", "none", 0, 40.0, epochs=5)
    assert comparison_verdict(group_runs([one[1], longer])) == f"{expected} The runs differ in passes: 5 and 2."
    tied = finished(folder / "tied", "mixup", 0, 38.001)
    assert comparison_verdict(group_runs([one[1], tied])) == "CutMix and Mixup are level at their best epoch: 38.00 %."
    three = group_runs([one[1], tied, one[0]])
    assert "CutMix and Mixup are level at their best epoch, below Plain training: " in comparison_verdict(three)
    assert {row for row, column in comparison_tables(three)["Result"].best if column == 1} == {1, 2}
    seeds = group_runs([folder / "none-0", folder / "none-1"])
    assert comparison_verdict(seeds) == "The error at the best epoch is 41.00 ± 1.00 % over 2 seeds."
    assert not comparison_tables(seeds)["Result"].best


def test_headings_tell_how_many_epochs_are_averaged(folder: Path) -> None:
    short = finished(folder / "short", "mixup", 0, 30.0, epochs=1)
    for runs, heading, words in (
        ([folder / "none-0", folder / "cutmix-0"], "Last 2", "over the last 2 epochs,"),
        ([folder / "none-0", short], "Last 2", "over the last 2 epochs (all of a shorter run),"),
        ([short, finished(folder / "other", "none", 0, 30.0, epochs=1)], "Last 1", "over the last epoch,"),
        ([short, finished(folder / "long", "none", 0, 30.0, epochs=20)], "Last 10", "over the last 10 epochs (all"),
    ):
        table = comparison_tables(group_runs(runs))["Result"]
        assert table.columns[2] == heading
        assert words in table.notes[0]


def test_options_that_only_one_method_has_are_folded(folder: Path) -> None:
    grafts = [finished(folder / f"grafts-{k}", "saliency-grafting", 0, 30.0, batch_size=k) for k in (5, 6)]
    groups = group_runs([*grafts, folder / "cutmix-0"])
    options = own_options(groups)
    assert options[groups[0].name] == options[groups[1].name]
    assert options[groups[0].name]["method.options.temperature"] == "0.2"
    assert "CutMix" not in options
    table = comparison_tables(groups)["Settings that differ"]
    settings = [row[0] for row in table.rows]
    assert {"method.name", "training.batch_size"} <= set(settings)
    assert "method.options.alpha" in settings  # both have it, with different values
    assert not {key for own in options.values() for key in own} & set(settings)
    assert "left out of this table" in table.notes[0]


def test_settings_are_spelled_as_in_a_recipe() -> None:
    recipes = [
        make_recipe({"method": {"name": "none"}}),
        make_recipe({"method": {"name": "saliency-grafting"}, "optimizer": {"nesterov": True, "head_lr": 1.0}}),
    ]
    found = differing(recipes)
    assert found["method.options.grids"] == ["–", "4, 8"]
    assert found["optimizer.nesterov"] == ["false", "true"]
    assert found["optimizer.head_lr"] == ["–", "1.0"]
    assert not any(text in ("None", "{}", "[]", "True") for values in found.values() for text in values)
