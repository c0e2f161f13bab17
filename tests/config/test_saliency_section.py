"""[method.saliency]: every source can be named, sees what it should, and is asked for where methods differ."""

import pytest
import torch

from saligraft.config.method_section import MethodSection
from saligraft.config.saliency_section import Normalization, SaliencySection
from saligraft.saliency.bottom_up import FineGrained
from saligraft.saliency.feature_map import feature_saliency
from saligraft.saliency.sources import SALIENCY_SOURCES, FeatureMap

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
