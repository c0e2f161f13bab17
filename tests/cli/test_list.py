"""`saligraft list` shows what the dictionaries hold."""

import re

import pytest

from saligraft.cli import run
from saligraft.cli.list import TOPICS
from saligraft.config.schedule import SCHEDULES
from saligraft.config.sections import OptimizerSection
from saligraft.data import DATASETS
from saligraft.methods import REGISTRY
from saligraft.networks import NETWORKS
from saligraft.saliency.sources import SALIENCY_SOURCES
from saligraft.training import bundled_recipes

NAMES = {
    "methods": ["none", *REGISTRY, "random-choice"],
    "saliency": SALIENCY_SOURCES,
    "networks": NETWORKS,
    "data": DATASETS,
    "recipes": ["shapes-wrn-10-2", "shapes-pyramidnet-20-24"],
    "schedules": SCHEDULES,
    "settings": [
        "seed",
        "method.saliency.name",
        *(f"optimizer.{name}" for name in OptimizerSection.model_fields),
        "schedule.milestones",
    ],
}


@pytest.mark.parametrize("topic", TOPICS)
def test_each_topic_shows_all_its_names(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", topic]) == 0
    shown = capsys.readouterr().out
    for name in NAMES[topic]:
        assert f" {name} " in shown


def test_each_protocol_shows_its_rows_with_table_and_expected_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "recipes"]) == 0
    shown, protocol = {}, ""
    for indent, name, rest in re.findall(r"^ (  )?(\S+) +(\S.*?) *$", capsys.readouterr().out, flags=re.MULTILINE):
        protocol = protocol if indent else name
        shown[f"{protocol}-{name}" if indent else name] = rest
    assert shown.keys() >= bundled_recipes().keys()
    assert shown["cifar100-wrn-28-10-saliency-grafting"] == "Table 3: 15.32 ± 0.13 / 3.54 ± 0.03"
    assert shown["cifar100-pyramidnet-200-240-cutmix"] == "Table 2†: 14.47 / 2.97"
    assert shown["shapes-wrn-10-2"] == "Shapes, WRN-10-2, plain training"
    assert shown["cub-resnet-50-mixup"] == "Table 10: localization 32.94 ± 0.11"
    assert shown["shapes-wrn-10-2-puzzlemix"].startswith("ours, ")
    assert shown["shapes-wrn-10-2-puzzlemix"].endswith(" epochs: 26.1")
    assert shown["cifar100-wrn-10-2-cutmix"] == "ours, 15 epochs: 80.9"


def test_without_a_topic_all_but_the_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list"]) == 0
    shown = capsys.readouterr().out
    for title in ("Methods", "Saliency sources", "Networks", "Data sets", "Recipes", "Schedules"):
        assert title in shown
    assert "Settings" not in shown


def test_the_methods_table_shows_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "methods"]) == 0
    shown = capsys.readouterr().out
    for name, passes in (("mixup", "1 + 1"), ("saliency-grafting", "2 + 2"), ("attentive-cutmix", "2 + 1")):
        assert passes in next(line for line in shown.splitlines() if line.startswith(f" {name} "))
    assert "×" not in shown
    assert "To compare methods" in shown
    assert "saligraft bench methods" in " ".join(shown.split())
