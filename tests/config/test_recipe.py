"""Recipes: checked as a whole, and told in one line what is wrong."""

from typing import Any

import pytest

from saligraft.config.recipe import Recipe, make_recipe


def test_an_empty_recipe_is_complete() -> None:
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
def test_errors_take_one_line(table: dict[str, Any], message: str) -> None:
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


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"training": {"epochs": 10**10}}, "training.epochs must be less than or equal to 1000000, got 10000000000"),
        ({"training": {"batch_size": 2**63}}, "training.batch_size must be less than or equal to 1000000"),
        ({"method": {"name": "saliency-grafting"}, "training": {"copies": 10**9}}, "training.copies must be less than"),
        ({"training": {"phases": [{"from_epoch": 0, "size": 10**5, "batch_size": 1}]}}, "size must be less than or"),
        ({"seed": 2**63}, "seed must be less than 9223372036854775808"),
        ({"data": {"workers": 10**5}}, "data.workers must be less than or equal to 256, got 100000"),
        ({"data": {"subset_seed": 10**30}}, "data.subset_seed must be less than"),
        ({"optimizer": {"lr": 1e300}}, r"optimizer.lr must be less than or equal to 1000000, got 1e\+300"),
        ({"optimizer": {"weight_decay": 1e300}}, "optimizer.weight_decay must be less than or equal to 1000000"),
        ({"schedule": {"name": "step", "milestones": [1], "decay": 1e300}}, "schedule.decay must be less"),
        ({"schedule": {"name": "piecewise-linear", "epochs": [0], "factors": [1e300]}}, "factors.0 must be less"),
        ({"network": {"name": "wrn-999994-1"}}, r"\[network\] depth must be <= 2000, got 999994"),
        ({"network": {"name": "wrn-10-99999999999999999999"}}, "width must be <= 1000, got 99999999999999999999"),
        ({"network": {"name": "wrn-10-1000"}}, "wrn-10-1000 must have at most 10,000,000,000 parameters, got 73,9"),
        ({"network": {"name": "pyramidnet-9999992-1"}}, "depth must be <= 2000, got 9999992"),
        ({"network": {"name": "pyramidnet-20-99999999999"}}, "alpha must be <= 1000000, got 99999999999"),
        ({"network": {"name": "resnet-10-small", "options": {"width": 10**9}}}, "width must be between -10000"),
        ({"method": {"name": "mixup", "options": {"alpha": 1e308}}}, r"alpha must be between -1e\+30 and 1e\+30"),
        ({"method": {"name": "augmix", "options": {"alpha": 1e308}}}, r"alpha must be between .*, got 1e\+308"),
        ({"method": {"name": "augmix", "options": {"width": 10**9}}}, "width must be <= 100, got 1000000000"),
        ({"method": {"name": "cutout", "options": {"size": 10**30}}}, "size must be <= 1000000"),
        ({"method": {"name": "cutout", "options": {"fill": 1e308}}}, r"fill must be between -1e\+30 and 1e\+30"),
        ({"method": {"name": "puzzlemix", "options": {"levels": 10**9}}}, "levels must be <= 1000, got 1000000000"),
        ({"method": {"name": "saliency-grafting", "options": {"norm": 10**400}}}, "norm must be between"),
        ({"method": {"name": "saliencymix", "options": {"pixel_mean": [float("nan")] * 3}}}, "each of pixel_mean"),
    ],
)  # fmt: skip
def test_absurd_settings_are_refused_in_one_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make_recipe(table)
    assert "\n" not in str(caught.value)


def test_saliency_grafting_may_have_copies() -> None:
    recipe = make_recipe({"method": {"name": "saliency-grafting"}, "training": {"copies": 3}})
    assert recipe.training.copies == 3


def test_two_mistakes_are_both_reported() -> None:
    with pytest.raises(ValueError, match=r"training.epochs .* got 0; optimizer.lr .* got -1"):
        make_recipe({"training": {"epochs": 0}, "optimizer": {"lr": -1}})
