"""The running mean of the weights: against the formula, and beside a network that goes on training."""

import pytest
import torch
from torch import nn

from saligraft.training import Recipe, make_recipe
from saligraft.training.accelerator import make_accelerator
from saligraft.training.ema import Average


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))


def walk(network: nn.Module, steps: int, average: Average | None = None, seed: int = 1) -> list[torch.Tensor]:
    """Take steps as training would; returns the first weight after each."""
    torch.manual_seed(seed)
    seen = []
    for _ in range(steps):
        network(torch.randn(4, 3, 5, 5))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        if average is not None:
            average.update()
        seen.append(next(network.parameters()).detach().clone())
    return seen


def prepared_network() -> nn.Module:
    network = make_network()
    network(torch.randn(2, 3, 5, 5))
    return network


def test_the_mean_follows_the_formula_and_buffers_are_copied() -> None:
    network = prepared_network()
    average = Average(network, 0.9)
    first, *rest = walk(network, 5, average)
    expected = first.double()
    for weight in rest:
        expected = 0.9 * expected + 0.1 * weight.double()
    mean = next(average.network.parameters())
    torch.testing.assert_close(mean.double(), expected, rtol=1e-6, atol=1e-7)
    assert not mean.requires_grad
    assert next(network.parameters()).requires_grad
    for own, copied in zip(network.buffers(), average.network.buffers(), strict=True):
        assert torch.equal(own, copied)
        assert own is not copied


def test_its_state_goes_on_where_it_stood() -> None:
    network = prepared_network()
    average = Average(network, 0.9)
    walk(network, 3, average)
    state = {name: tensor.clone() for name, tensor in average.state_dict().items()}
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    walk(network, 2, average, seed=2)

    again = prepared_network()
    again.load_state_dict(weights)
    resumed = Average(again, 0.9)
    resumed.load_state_dict(state)
    walk(again, 2, resumed, seed=2)
    for name, tensor in average.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_mean_of_a_prepared_network_runs_on_its_own_weights(precision: str) -> None:
    recipe: Recipe = make_recipe({"training": {"precision": precision}})
    accelerator = make_accelerator(recipe)
    network = accelerator.unwrap_model(accelerator.prepare(prepared_network()))
    average = Average(network, 0.5)
    average.update()
    images = torch.randn(2, 3, 5, 5)
    average.network.eval()
    before = average.network(images)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert torch.equal(average.network(images), before)
    assert before.abs().sum() > 0


def test_a_decay_of_one_would_stand_still() -> None:
    with pytest.raises(ValueError, match=r"decay must lie in \[0, 1\), got 1.0"):
        Average(nn.Linear(1, 1), 1.0)
