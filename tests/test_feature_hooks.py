"""Changing a layer's output for one pass: nothing stays behind, and recomputed outputs are changed alike."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saligraft.feature_hooks import changed_output, unwrapped
from saligraft.saliency import SaliencyCapture


class Net(nn.Module):
    """Two parts and a head; `reentrant` checkpoints both parts together, None not at all."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6))
        self.second = nn.Sequential(nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)
        self.reentrant = reentrant

    def trunk(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.head(self.trunk(x))
        return self.head(checkpoint(self.trunk, x, use_reentrant=self.reentrant))


def hooks(network: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in network.modules())


def loss_of(network: nn.Module, x: Tensor, factor: float) -> Tensor:
    torch.manual_seed(0)  # dropout
    with changed_output(network, "first", lambda features: features * factor + features.flip(0)):
        return network(x).square().sum()


def test_changes_the_output_inside_only() -> None:
    network, x = Net().eval(), torch.randn(4, 5)
    plain = network(x)
    with changed_output(network, "first", lambda features: features.flip(0)):
        assert hooks(network) == 2
        torch.testing.assert_close(network(x), plain.flip(0))
    assert hooks(network) == 0
    torch.testing.assert_close(network(x), plain)


def test_no_hook_stays_after_an_error() -> None:
    network = Net(reentrant=False)
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied"),
        changed_output(network, "first", lambda f: f),
    ):
        network(torch.randn(4, 7))
    with pytest.raises(ZeroDivisionError), changed_output(network, "first", lambda f: f):
        _ = len(network(torch.randn(4, 5))) / 0
    gc.collect()
    assert hooks(network) == 0


def test_says_so_when_the_layer_ran_twice_or_not_at_all() -> None:
    network, x = Net(), torch.randn(4, 5)
    with pytest.raises(RuntimeError, match="layer 'first' ran twice"), changed_output(network, "first", lambda f: f):
        _ = network(x), network(x)
    with (
        pytest.raises(RuntimeError, match=r"layer 'second\.0' did not run"),
        changed_output(network, "second.0", lambda f: f),
    ):
        network.first(x)
    assert hooks(network) == 0


def test_a_search_for_a_layer_is_not_the_forward_pass() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(2, 3, 8, 8)
    expected = network[1](network[0](images).flip(0)).sum(dim=1).detach()
    capture = SaliencyCapture(network)
    for _ in range(2):  # the first call runs the network once more
        with changed_output(network, "0", lambda features: features.flip(0)):
            torch.testing.assert_close(capture(images)[1], expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("together", [True, False])
def test_recomputation_is_changed_alike(reentrant: bool, together: bool) -> None:
    """Two passes of the same input with different changes, in one backward pass or the earlier one first."""
    torch.manual_seed(1)
    plain = Net()
    x = torch.randn(4, 5)
    networks: dict[Any, Net] = {None: plain, reentrant: copy.deepcopy(plain)}
    networks[reentrant].reentrant = reentrant
    for network in networks.values():
        inputs = x.clone().requires_grad_()
        losses = [loss_of(network, inputs, factor) for factor in (0.5, 3.0)]
        if together:
            (losses[0] + 2 * losses[1]).backward()
        else:
            losses[0].backward()
            (2 * losses[1]).backward()
        network.eval()
        alone = network(x)  # an ordinary pass is left alone while the graphs live
        network.train()
        losses.clear()
        gc.collect()
        assert hooks(network) == 0
        torch.testing.assert_close(alone, network.eval()(x))
    for ours, theirs in zip(networks[reentrant].parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_without_checkpointing_nothing_outlives_the_context() -> None:
    network = Net()
    loss = loss_of(network, torch.randn(4, 5), 2.0)
    assert hooks(network) == 0
    loss.backward()
    checkpointed = Net(reentrant=False)
    with torch.no_grad():
        loss_of(checkpointed, torch.randn(4, 5), 2.0)
    assert hooks(checkpointed) == 0


@pytest.mark.parametrize("where", ["outside", "in place", "layer"])
def test_refuses_compiled_code(where: str) -> None:
    network = Net()
    if where == "in place":
        network.compile(backend="eager")
    elif where == "layer":
        network.first.compile(backend="eager")
    model = torch.compile(network, backend="eager") if where == "outside" else network
    assert unwrapped(model) is network
    with (
        pytest.raises(RuntimeError, match="layer 'first' is inside a compiled part of model"),
        changed_output(model, "first", lambda f: f),
    ):
        pass
    below = Net()
    below.first[0].compile(backend="eager")
    with changed_output(below, "first", lambda f: f):
        below(torch.randn(4, 5))
