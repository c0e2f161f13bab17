"""`saligraft list` shows what the dictionaries hold."""

import re
from pathlib import Path

import pytest

from saligraft.cli import run
from saligraft.cli.list import TOPICS
from saligraft.config.method_section import METHOD_NAMES
from saligraft.config.schedule import SCHEDULES
from saligraft.config.sections import OptimizerSection
from saligraft.data import DATASETS
from saligraft.methods import FEATURE_MIXERS, IMAGE_TRANSFORMS, METHODS, STEP_STRATEGIES
from saligraft.networks import NETWORKS
from saligraft.saliency.sources import SALIENCY_SOURCES
from saligraft.training import bundled_recipes, method_cost
from saligraft.training.method_cost import Costs, Spread, load_costs

NAMES = {
    "methods": ["none", *METHODS, *IMAGE_TRANSFORMS, *FEATURE_MIXERS, *STEP_STRATEGIES, "random-choice"],
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
    assert shown["shapes-wrn-10-2-puzzlemix"] == "measured here: 26.1"


def test_without_a_topic_all_but_the_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list"]) == 0
    shown = capsys.readouterr().out
    for title in ("Methods", "Saliency sources", "Networks", "Data sets", "Recipes", "Schedules"):
        assert title in shown
    assert "Settings" not in shown


def test_the_methods_table_shows_passes_and_the_shipped_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "methods"]) == 0
    shown = capsys.readouterr().out
    costs = load_costs()
    for name, passes in (("mixup", "1 + 1"), ("saliency-grafting", "2 + 2"), ("attentive-cutmix", "2 + 1")):
        line = next(line for line in shown.splitlines() if line.startswith(f" {name} "))
        assert passes in line
        assert f"{costs.ratios[name].median:.2f}×" in line
    assert "saligraft list methods --measure" in " ".join(shown.split())


def test_measure_shows_and_saves_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Costs({name: Spread(7.25, 7.0, 7.5) for name in METHOD_NAMES}, load_costs().facts)
    monkeypatch.setattr(method_cost, "measure_costs", lambda: found)
    assert run(["list", "methods", "--measure", "--save", str(tmp_path / "costs.json")]) == 0
    assert capsys.readouterr().out.count("7.25×") == len(METHOD_NAMES)
    assert load_costs(tmp_path / "costs.json") == found


@pytest.mark.parametrize("arguments", [["--measure"], ["networks", "--measure"], ["methods", "--save", "x.json"]])
def test_measuring_goes_with_methods_alone(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", *arguments]) == 2
    assert "--measure goes with `list methods`" in capsys.readouterr().err
