"""`saligraft list` shows what the dictionaries hold."""

import pytest

from saligraft.cli import run
from saligraft.cli.list import TOPICS
from saligraft.data import DATASETS
from saligraft.methods import METHODS
from saligraft.networks import NETWORKS
from saligraft.training import bundled_recipes
from saligraft.training.sections import SCHEDULES, OptimizerSection

NAMES = {
    "methods": ["none", *METHODS],
    "networks": NETWORKS,
    "data": DATASETS,
    "recipes": bundled_recipes(),
    "schedules": SCHEDULES,
    "settings": ["seed", *(f"optimizer.{name}" for name in OptimizerSection.model_fields), "schedule.milestones"],
}


@pytest.mark.parametrize("topic", TOPICS)
def test_each_topic_shows_all_its_names(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", topic]) == 0
    shown = capsys.readouterr().out
    for name in NAMES[topic]:
        assert f" {name} " in shown


def test_without_a_topic_all_but_the_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list"]) == 0
    shown = capsys.readouterr().out
    for title in ("Methods", "Networks", "Data sets", "Recipes", "Schedules"):
        assert title in shown
    assert "Settings" not in shown
