"""A compiled step does what the uncompiled does, and leaves the network's own names alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saligraft.training import Recipe, SilentReporter, make_recipe, setup, train
from saligraft.training.compiled import compile_passes
from saligraft.training.setup import load_split, make_network, make_step


def gradients(recipe: Recipe, steps: int = 2) -> tuple[list[Tensor], nn.Module]:
    """Gradients of some steps together, each with its own batch, and the network that has them."""
    data = load_split(recipe, "train")
    network = make_network(recipe, data).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    step = make_step(recipe, network, data, torch.Generator().manual_seed(0))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    for number in range(steps):
        images = torch.randn(8, *data.image_shape, generator=torch.Generator().manual_seed(number))
        step(images, torch.arange(8)).loss.backward()
    return [parameter.grad for parameter in network.parameters()], network


@pytest.fixture
def _traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile without code generation, which takes a C++ compiler and most of the time."""

    def quick(model: nn.Module, source: Any) -> nn.Module:
        return compile_passes(model, source, backend="aot_eager")

    monkeypatch.setattr(setup, "compile_passes", quick)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize(("name", "graphs"), [("none", 1), ("saliency-grafting", 2)])
def test_a_compiled_step_equals_the_uncompiled(name: str, graphs: int, tiny_table: dict[str, Any]) -> None:
    table = {**tiny_table, "method": {"name": name}}
    expected, plain = gradients(make_recipe(table))
    table["training"]["compile"] = True
    own, network = gradients(make_recipe(table))
    # One graph for each pass of a step, and none anew in the second step: the first step's were compiled already.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    for ours, theirs in zip(own, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert list(network.state_dict()) == list(plain.state_dict())
    for name, buffer in network.named_buffers():
        torch.testing.assert_close(buffer, plain.get_buffer(name), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("_traced")
def test_a_compiled_run_in_bfloat16_is_saved_under_the_network_s_own_names(tiny_table: dict[str, Any]) -> None:
    tiny_table["training"].update(compile=True, precision="bf16", channels_last=True, epochs=1)
    recipe = make_recipe({**tiny_table, "method": {"name": "saliency-grafting"}})
    result = train(recipe, reporter=SilentReporter())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 2
    assert list(result.network.state_dict()) == list(make_network(recipe, load_split(recipe, "test")).state_dict())
