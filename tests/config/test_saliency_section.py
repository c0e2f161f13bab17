"""[method.saliency]: every source can be named, sees what it should, and is asked for where methods differ."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from saligraft.config.method_section import MethodSection
from saligraft.config.saliency_section import Normalization, SaliencySection
from saligraft.networks import build_network
from saligraft.saliency.bottom_up import FineGrained
from saligraft.saliency.feature_map import feature_saliency
from saligraft.saliency.sources import SALIENCY_SOURCES, FeatureMap
from saligraft.training import SilentReporter, dump_recipe, load_recipe, make_recipe, train

DATA = Normalization(mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3))


@pytest.mark.parametrize("source", SALIENCY_SOURCES)
def test_every_source_can_be_named_and_built(source: str) -> None:
    section = MethodSection(name="saliency-grafting", saliency={"name": source})
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))
    model.extend([torch.nn.Flatten(), torch.nn.Linear(4, 2)])
    assert type(section.saliency.build(model, DATA)) is SALIENCY_SOURCES[source]


def test_bottom_up_sources_see_pixels_as_before_normalisation() -> None:
    assert SaliencySection(name="fine-grained").build(torch.nn.Identity(), DATA) == FineGrained(**DATA._asdict())


def test_layer_and_options_reach_the_source() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 5, 3), torch.nn.ReLU())
    model.append(torch.nn.Flatten())
    section = MethodSection(name="attentive-cutmix", saliency={"layer": "1", "options": {"mode": "current"}})
    source = section.saliency.build(model, DATA)
    assert isinstance(source, FeatureMap)
    assert source.mode == "current"
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(source(images), feature_saliency(model[:2](images)))


def test_a_frozen_network_makes_the_maps(tmp_path: Path) -> None:
    """As Attentive CutMix's authors have it: another network, with weights of its own, which sees larger images."""
    torch.manual_seed(1)
    frozen = build_network("wrn-10-1", 7).eval()
    save_file(frozen.state_dict(), tmp_path / "frozen.safetensors")
    network = {"name": "wrn-10-1", "weights": str(tmp_path / "frozen.safetensors")}
    section = MethodSection(name="attentive-cutmix", saliency={"network": network, "size": 32})
    model, images = build_network("wrn-10-1", 5), torch.rand(2, 3, 16, 16)
    with pytest.warns(UserWarning, match="has 7 classes, not 5"):
        source = section.saliency.build(model, DATA)
    larger = F.interpolate(images, (32, 32), mode="bilinear", antialias=True)
    with torch.no_grad():
        expected = feature_saliency(frozen.forward_features(larger))
    torch.testing.assert_close(source(images), expected)
    logits, saliency = source.with_logits(model, images, torch.tensor([0, 1]))  # of two networks
    assert logits.shape == (2, 5)
    torch.testing.assert_close(saliency, expected)


def test_a_recipe_with_a_frozen_network_can_be_written_read_and_trained(tmp_path: Path) -> None:
    save_file(build_network("wrn-10-1", 10).state_dict(), tmp_path / "frozen.safetensors")
    network = {"name": "wrn-10-1", "weights": str(tmp_path / "frozen.safetensors")}
    table = {
        "data": {"name": "shapes", "options": {"size": 16, "per_class": 2}},
        "network": network,  # starts from these weights, too
        "training": {"epochs": 1, "batch_size": 10},
        "optimizer": {"lr": 1e-6},
    }
    for method in ("attentive-cutmix", "saliency-grafting"):
        recipe = make_recipe({**table, "method": {"name": method, "saliency": {"network": network, "size": 24}}})
        (tmp_path / "r.toml").write_text(dump_recipe(recipe))
        assert load_recipe(tmp_path / "r.toml") == recipe
        assert recipe.passes_per_step == ((2, 1) if method == "attentive-cutmix" else (3, 2))
        trained = train(recipe, reporter=SilentReporter()).network
        start = load_file(tmp_path / "frozen.safetensors")["stem.weight"]
        torch.testing.assert_close(trained.stem.weight.detach(), start, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("saliency", "message"),
    [
        ({"size": 64}, "size must be left out where no network is named, got 64"),
        ({"network": {"name": "wrn-11-1"}}, "depth must be 6n"),
        ({"name": "fine-grained", "network": {"name": "wrn-10-1"}}, "network must be left out for fine-grained"),
    ],
)
def test_a_frozen_network_that_cannot_be_is_refused(saliency: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_recipe({"method": {"name": "attentive-cutmix", "saliency": saliency}})


def test_absent_weights_of_a_frozen_network_are_named_by_their_setting() -> None:
    network = {"name": "wrn-10-1", "weights": "none.pt"}
    section = make_recipe({"method": {"name": "attentive-cutmix", "saliency": {"network": network}}}).method.saliency
    with pytest.raises(ValueError, match=r"method\.saliency\.network\.weights must be a file of weights, got none\.pt"):
        section.build(build_network("wrn-10-1", 2), DATA)


def test_remembered_maps_are_those_of_the_network_in_training() -> None:
    saliency = {"network": {"name": "wrn-10-1"}}
    method = {"name": "saliency-grafting", "saliency": saliency}
    with pytest.raises(ValueError, match="'remembered', without a network of its own"):
        make_recipe({"method": method, "training": {"passes": "remembered"}})
