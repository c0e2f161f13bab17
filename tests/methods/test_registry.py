"""The registry is true: kinds, sources and the passes that a training step makes."""

import dataclasses
import importlib.util

import pytest
import torch

from saligraft.methods import REGISTRY
from saligraft.methods.base import Applied
from saligraft.methods.registry import KINDS, methods_of
from saligraft.names import METHODS
from saligraft.saliency.sources import SALIENCY_SOURCES
from saligraft.steps import training_step

EXTRAS = {"augmix": "torchvision", "puzzlemix": "scipy"}


class CountingNetwork(torch.nn.Module):
    """Counts the images that go through it forwards and backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU())
        self.head = torch.nn.Linear(4, 2)
        self.forward_images = self.backward_images = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.forward_images += len(images)
        logits = self.head(self.features(images).mean(dim=(2, 3)))
        if logits.requires_grad:
            logits.register_hook(lambda gradient: self._count(len(gradient)))
        return logits

    def _count(self, images: int) -> None:
        self.backward_images += images


def test_the_list_of_names_groups_methods_by_their_kind() -> None:
    assert [list(methods) for methods in METHODS.values()] == [list(methods_of(kind)) for kind in KINDS]


@pytest.mark.parametrize("name", REGISTRY)
def test_passes_are_those_that_a_step_makes(name: str) -> None:
    if not importlib.util.find_spec(EXTRAS.get(name, "torch")):
        pytest.skip("needs an extra")
    method = REGISTRY[name].method()
    if name == "manifold-mixup":
        method = dataclasses.replace(method, layers=["features"])
    network, batch = CountingNetwork(), 4
    step = training_step(network, method, generator=torch.Generator().manual_seed(0))
    images, labels = torch.rand(batch, 3, 16, 16), torch.tensor([0, 1, 1, 0])
    step(images, labels)  # a source may look for its layer in the first step
    network.forward_images = network.backward_images = 0
    step(images, labels).loss.backward()
    assert (network.forward_images / batch, network.backward_images / batch) == REGISTRY[name].passes


def test_every_method_is_of_one_kind_and_names_a_source_if_it_needs_one() -> None:
    assert sorted(name for kind in KINDS for name in methods_of(kind)) == sorted(REGISTRY)
    for entry in REGISTRY.values():
        assert entry.method.saliency_source in (None, *SALIENCY_SOURCES)
        assert entry.method.saliency_source is not None or not entry.method.needs_saliency
        assert entry.title
        assert entry.purpose[0].isupper()
        assert entry.purpose.endswith(".")


def test_what_a_method_has_from_the_data_are_fields_of_it() -> None:
    for entry in REGISTRY.values():
        options = entry.method.data_options((0.5,) * 3, (0.2,) * 3)
        assert set(options) <= {field.name for field in dataclasses.fields(entry.method)}
        assert isinstance(entry.method(**options), Applied)
