"""The summary of a run."""

import pytest

from saligraft.config.recipe import Recipe
from saligraft.training.results import EpochMetrics, summarize


def lines(errors: list[float]) -> list[EpochMetrics]:
    return [EpochMetrics(i + 1, 0.1, 1.0, 2.0 + i, error, error / 2) for i, error in enumerate(errors)]


def test_best_last_ten_and_final_are_all_there() -> None:
    summary = summarize(Recipe(seed=5), lines([50.0, 10.0, *range(30, 42)]), parameters=7)
    assert summary["top1_error"] == {"best": 10.0, "last10_mean": pytest.approx(36.5), "final": 41}
    assert summary["top5_error"]["best"] == summary["top5_error"]["lowest"] == 5.0
    assert summary["best_epoch"] == 2
    assert summary["test_loss"] == 15.0
    assert (summary["epochs"], summary["parameters"], summary["seed"]) == (14, 7, 5)
    assert (summary["method"], summary["data"], summary["network"]) == ("none", "shapes", "wrn-10-2")


def test_passes_are_named_where_they_are_not_the_method_s_own() -> None:
    assert "passes" not in summarize(Recipe(), lines([1.0]), 1)
    recipe = Recipe(method={"name": "saliency-grafting"}, training={"passes": "remembered"})
    assert summarize(recipe, lines([1.0]), 1)["passes"] == "remembered"


def test_top5_is_that_of_the_best_top1_epoch() -> None:
    """The authors keep the top-5 error of the last epoch at which top-1 was lowest (train.py of CutMix)."""
    errors = [(30.0, 9.0), (20.0, 8.0), (25.0, 5.0), (20.0, 7.0), (21.0, 6.0)]
    metrics = [EpochMetrics(i + 1, 0.1, 1.0, 2.0, top1, top5) for i, (top1, top5) in enumerate(errors)]
    best1, best5 = 100.0, 100.0
    for top1, top5 in errors:  # as their loop does
        best5 = top5 if top1 <= best1 else best5
        best1 = min(best1, top1)
    summary = summarize(Recipe(), metrics, 1)
    assert (summary["top1_error"]["best"], summary["top5_error"]["best"]) == (best1, best5) == (20.0, 7.0)
    assert summary["top5_error"]["lowest"] == 5.0
    assert summary["best_epoch"] == 4


def test_a_short_run_averages_what_it_has() -> None:
    assert summarize(Recipe(), lines([40.0, 20.0]), 1)["top1_error"]["last10_mean"] == 30.0
