"""The pictures of a run's page, for every method."""

from typing import Any

import pytest
import torch
from tests.reports.pages import Page

from saligraft.config.method_section import METHOD_NAMES
from saligraft.methods import BatchMixer
from saligraft.methods.registry import methods_of
from saligraft.training import make_recipe
from saligraft.training.run_gallery import ROWS, pictures
from saligraft.training.setup import load_split, make_network

CPU = torch.device("cpu")
CHOICE = {"name": "random-choice", "choices": {"mixup": 0.5, "cutmix": 0.5}, "options": {"per": "sample"}}


def page_of(table: dict[str, Any], method: dict[str, Any]) -> Page:
    recipe = make_recipe({**table, "method": method})
    data = load_split(recipe, "test")
    network = make_network(recipe, data)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    section = pictures(recipe, network, data, CPU)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    return Page(f"{section.intro}{section.body}")


@pytest.mark.parametrize("method", [*({"name": name} for name in (*methods_of(BatchMixer), "cutout+mixup")), CHOICE])
def test_methods_that_mix_show_a_gallery(method: dict[str, Any], tiny_table: dict[str, Any]) -> None:
    page = page_of(tiny_table, method)
    assert len([tag for tag, _ in page.tags if tag == "article"]) == ROWS
    looks = method["name"] in ("saliency-grafting", "attentive-cutmix", "saliencymix", "puzzlemix")
    assert ("Saliency S" in page.text) == looks
    assert ("maps of the network" in page.text) == (looks and method["name"] != "saliencymix")


@pytest.mark.parametrize("name", [name for name in METHOD_NAMES if name not in methods_of(BatchMixer)])
def test_others_show_the_data(name: str, tiny_table: dict[str, Any]) -> None:
    page = page_of(tiny_table, {"name": name})
    assert "article" not in {tag for tag, _ in page.tags}
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 10  # a strip per class


@pytest.mark.parametrize("name", ["saliency-grafting", "cutmix", "cutout"])
def test_a_run_that_never_mixes_shows_the_data(name: str, tiny_table: dict[str, Any]) -> None:
    table = {**tiny_table, "training": {"epochs": 2, "warmup_epochs": 2}}
    page = page_of(table, {"name": name})
    assert "article" not in {tag for tag, _ in page.tags}
    assert "trained with" not in page.text
