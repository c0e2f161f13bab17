"""Recipes: checked as a whole, and told in one line what is wrong."""

from typing import Any

import pytest

from saligraft.training.recipe import Recipe, make_recipe


def test_an_empty_recipe_is_a_whole_one() -> None:
    assert make_recipe({}) == Recipe()


def test_schedules_resolve_by_name() -> None:
    recipe = make_recipe({"schedule": {"name": "step", "milestones": [10, 20]}})
    assert recipe.schedule.factor(15, 30) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"optimzer": {}}, r"r.toml: unknown key 'optimzer'; valid: title, .*optimizer, schedule"),
        ({"training": {"epoch": 3}}, r"r.toml: \[training\] unknown key 'epoch'; valid: epochs, "),
        ({"training": {"epochs": 0}}, "r.toml: training.epochs must be greater than or equal to 1, got 0"),
        ({"training": {"epochs": 1.5}}, "r.toml: training.epochs must be a valid integer, got 1.5"),
        ({"training": 3}, "r.toml: training must be .*, got 3"),
        ({"schedule": {"name": "stepp"}}, "schedule.name must be one of .*'one-cycle', .*, got 'stepp'"),
        ({"schedule": {"final": 0.1}}, "r.toml: schedule.name is missing"),
        ({"schedule": {"name": "step"}}, "r.toml: schedule.milestones is missing"),
        ({"schedule": {"name": "cosine", "milestones": []}}, r"\[schedule\] unknown key 'milestones'; valid: .*final"),
        ({"training": {"copies": 2}}, "training.copies must be 1 for method 'none'.* got 2"),
        ({"training": {"copies": 2}, "method": {"name": "cutmix"}}, "training.copies must be 1 for method 'cutmix'"),
        ({"training": {"warmup_epochs": 31}}, r"warmup_epochs must be <= training.epochs \(30\), got 31"),
        ({"title": "caf\udce9"}, r"r.toml: title must be valid UTF-8, got 'caf\\udce9'"),
        ({"data": {"name": "folder:\udce9"}}, r"r.toml: \[data\] name must be valid UTF-8, got 'folder:\\udce9'"),
        ({"seed": -1}, "seed must be greater than or equal to 0, got -1"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make_recipe(table, origin="r.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "warmup", "never"),
    [("cutmix", 3, True), ("cutout", 3, True), ("cutmix", 2, False), ("none", 3, False)],
)
def test_a_warm_up_as_long_as_the_run_never_mixes(method: str, warmup: int, never: bool) -> None:
    table = {"method": {"name": method}, "training": {"epochs": 3, "warmup_epochs": warmup}}
    assert make_recipe(table).never_mixes == never


def test_saliency_grafting_may_have_copies() -> None:
    recipe = make_recipe({"method": {"name": "saliency-grafting"}, "training": {"copies": 3}})
    assert recipe.training.copies == 3


def test_two_mistakes_are_both_told() -> None:
    with pytest.raises(ValueError, match=r"training.epochs .* got 0; optimizer.lr .* got -1"):
        make_recipe({"training": {"epochs": 0}, "optimizer": {"lr": -1}})
