"""Recipes are validated as a whole, and each error is one line."""

from typing import Any

import pytest

from saligraft.config.recipe import Recipe, make_recipe
from saligraft.methods import REGISTRY


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
        ({"network": {"options": {"num_classes": 3}}}, "options must not set 'num_classes', which comes from the data"),
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


def with_training(method: str, **training: Any) -> Recipe:
    return make_recipe({"method": {"name": method}, "training": training})


@pytest.mark.parametrize(
    ("method", "training", "passes", "originals", "weights"),
    [
        ("saliency-grafting", {"copies": 3}, None, True, (1 / 4,) * 4),
        ("saliency-grafting", {"originals": True}, None, True, (0.5, 0.5)),
        ("saliency-grafting", {"originals": False, "copies": 2}, "mixed", False, (0.5, 0.5)),
        ("saliency-grafting", {"passes": "remembered"}, "remembered", False, (1.0,)),
        ("saliency-grafting", {"passes": "joint"}, "joint", True, (0.5, 0.5)),
        ("puzzlemix", {"passes": "joint"}, "joint", True, (0.5, 0.5)),
        ("cutmix", {"originals": False}, None, False, (1.0,)),
        ("cutmix", {"originals": True, "copies": 2}, "both", True, (1 / 3,) * 3),
        ("puzzlemix", {"originals": True, "loss_combination": "sum"}, "both", True, (1.0, 1.0)),
        ("puzzlemix", {"passes": "both", "loss_weights": [1, 3]}, "both", True, (0.25, 0.75)),
        ("puzzlemix", {"originals": True, "loss_weights": [0.5, 2], "loss_combination": "sum"}, "both", True, (0.5, 2)),
        ("mixup", {"passes": "mixed", "copies": 2}, "mixed", False, (0.5, 0.5)),
    ],
)
def test_originals_passes_and_loss_weights_by_recipe(
    method: str, training: dict[str, Any], passes: str | None, originals: bool, weights: tuple[float, ...]
) -> None:
    recipe = with_training(method, **training)
    assert (recipe.passes, recipe.with_originals) == (passes, originals)
    assert recipe.loss_weights == weights
    assert make_recipe(recipe.model_dump(exclude_none=True)) == recipe


@pytest.mark.parametrize(
    ("method", "training", "message"),
    [
        ("saliency-grafting", {"passes": "all"}, "passes must be 'both', 'joint', 'mixed' or 'remembered', got 'all'"),
        ("saliency-grafting", {"passes": "mixed", "originals": True}, "originals must be left out for training.passes"),
        ("saliency-grafting", {"passes": "remembered", "copies": 2}, "copies must be 1 for passes='remembered'"),
        ("puzzlemix", {"passes": "remembered"}, "passes must not be 'remembered' for PuzzleMix, which moves pixels"),
        ("cutmix", {"passes": "remembered"}, "passes must not be 'remembered' for CutMix, which uses no maps"),
        ("saliencymix", {"passes": "remembered"}, "must be 'feature-map' for .* 'remembered', .*got 'fine-grained'"),
        (
            "none",
            {"originals": True},
            "training.originals must be left out for method 'none', which is trained by Mixi",
        ),
        ("manifold-mixup", {"passes": "both"}, "training.passes must be left out for method 'manifold-mixup'"),
        ("augmix", {"originals": True}, "must be left out for method 'augmix', which is trained by ViewsStep"),
        ("cutmix", {"loss_weights": [1, 1]}, "training.loss_weights must be left out for method 'cutmix'"),
        ("cutmix", {"loss_combination": "sum"}, "training.loss_combination must be left out for method 'cutmix'"),
        ("cutmix", {"originals": True, "loss_weights": [1]}, r"must have 2 entries \(originals, copies\), got 1"),
        ("cutmix", {"originals": True, "loss_weights": [0, 0]}, r"training.loss_weights must not all be 0, got \[0"),
    ],
)
def test_passes_that_make_no_sense_are_refused(method: str, training: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        with_training(method, **training)
    assert "\n" not in str(caught.value)


def test_a_map_from_the_training_pass_has_no_mode_of_its_own() -> None:
    assert with_training("puzzlemix").method.saliency.options["mode"] == "eval"
    assert "mode" not in with_training("puzzlemix", originals=True).method.saliency.options
    table = {"method": {"name": "puzzlemix", "saliency": {"options": {"mode": "current"}}}}
    with pytest.raises(ValueError, match="in the training pass has no option 'mode'"):
        make_recipe({**table, "training": {"originals": True}})
    noisy = {"name": "puzzlemix", "options": {"adversarial_probability": 0.1}}
    with pytest.raises(
        ValueError, match="'puzzlemix' with an adversarial_probability above 0, which is trained by Puz"
    ):
        make_recipe({"method": noisy, "training": {"originals": True}})


@pytest.mark.parametrize("method", REGISTRY)
def test_passes_per_step_are_those_of_the_registry(method: str) -> None:
    assert with_training(method).passes_per_step == REGISTRY[method].passes


def test_passes_per_step_follow_the_settings() -> None:
    assert with_training("none").passes_per_step == (1, 1)
    assert with_training("saliency-grafting", passes="mixed").passes_per_step == (2, 1)
    assert with_training("saliency-grafting", passes="joint").passes_per_step == (3, 2)
    assert with_training("saliency-grafting", passes="remembered").passes_per_step == (1, 1)
    assert with_training("saliency-grafting", copies=3).passes_per_step == (4, 4)
    assert with_training("puzzlemix", originals=True).passes_per_step == (2, 3)
    assert with_training("cutout+cutmix", originals=True, copies=2).passes_per_step == (3, 3)
    choice = {"name": "random-choice", "choices": {"augmix": 0.5, "mixup": 0.5}}
    assert make_recipe({"method": choice}).passes_per_step is None


def test_two_mistakes_are_both_reported() -> None:
    with pytest.raises(ValueError, match=r"training.epochs .* got 0; optimizer.lr .* got -1"):
        make_recipe({"training": {"epochs": 0}, "optimizer": {"lr": -1}})
