"""What methods cost: passes by their steps, times measured in turn."""

from pathlib import Path

import pytest
import torch

from saligraft.config.method_section import METHOD_NAMES, MethodSection
from saligraft.strategies import training_step
from saligraft.training.method_cost import (
    Costs,
    Spread,
    describe,
    load_costs,
    measure_costs,
    passes,
    save_costs,
)


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


@pytest.mark.parametrize("name", [*METHOD_NAMES, "cutout+mixup"])
def test_passes_are_those_that_a_step_makes(name: str) -> None:
    section = MethodSection(name=name)
    options = {} if name != "manifold-mixup" else {"layers": ["features"]}
    network, batch = CountingNetwork(), 4
    methods = MethodSection(name=name, options=options).build()
    source = {"saliency_source": section.saliency.name} if section.saliency.name else {}
    step = training_step(network, methods, generator=torch.Generator().manual_seed(0), **source)
    images, labels = torch.rand(batch, 3, 16, 16), torch.tensor([0, 1, 1, 0])
    for number in range(2):  # a source may look for its layer in the first step
        network.forward_images = network.backward_images = 0
        step(images, labels).loss.backward()
        if number:
            assert (network.forward_images / batch, network.backward_images / batch) == passes(section)


@pytest.mark.slow
def test_a_measurement_covers_all_methods_and_leaves_no_trace() -> None:
    torch.manual_seed(3)
    expected, threads = torch.rand(2), torch.get_num_threads()
    torch.manual_seed(3)
    costs = measure_costs(rounds=1)
    assert torch.equal(torch.rand(2), expected)
    assert torch.get_num_threads() == threads
    assert list(costs.ratios) == list(METHOD_NAMES)
    assert costs.ratios["none"] == Spread(1, 1, 1)
    assert costs.ratios["saliency-grafting"].median > 1.2  # two passes against one
    assert costs.facts["rounds"] == costs.facts["threads"] == 1


def test_a_measurement_reads_back_as_it_was_saved(tmp_path: Path) -> None:
    costs = Costs({"none": Spread(1.0, 1.0, 1.0), "mixup": Spread(1.125, 1.0, 1.25)}, {"rounds": 3})
    save_costs(costs, tmp_path / "new" / "costs.json")
    assert load_costs(tmp_path / "new" / "costs.json") == costs


def test_the_shipped_measurement_is_whole_and_says_where_it_comes_from() -> None:
    costs = load_costs()
    assert list(costs.ratios) == list(METHOD_NAMES), "measure again: saligraft list methods --measure --save ..."
    for fact in ("saligraft list methods --measure", "commit", costs.facts["torch"], costs.facts["network"]):
        assert fact in describe(costs.facts)
