"""Optimisers and their parameter groups."""

import pytest
import torch
from torch import nn

from saligraft.networks import build_network
from saligraft.training.optimizer import build_optimizer, parameter_groups
from saligraft.training.sections import OptimizerSection


def test_sgd_takes_the_recipe_s_numbers() -> None:
    section = OptimizerSection(lr=0.3, momentum=0.8, nesterov=True, weight_decay=0.01)
    (group,) = build_optimizer(nn.Linear(2, 2), section).param_groups
    assert (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"]) == (0.3, 0.8, True, 0.01)


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_takes_the_recipe_s_numbers(name: str, kind: type[torch.optim.Optimizer]) -> None:
    optimizer = build_optimizer(nn.Linear(2, 2), OptimizerSection(name=name, lr=0.001, betas=(0.8, 0.9)))
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)


def test_norm_parameters_and_biases_can_go_without_decay() -> None:
    network = build_network("wrn-10-1", 10)
    section = OptimizerSection(weight_decay=0.1, decay_norm_and_bias=False)
    decayed, plain = parameter_groups(network, section)
    expected = set()
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            expected.add(id(module.weight))
    assert {id(p) for p in decayed["params"]} == expected
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(plain["params"]) == len(list(network.parameters()))


def test_frozen_parameters_stay_out() -> None:
    network = nn.Linear(2, 2)
    network.weight.requires_grad_(False)
    assert parameter_groups(network, OptimizerSection())[0]["params"] == [network.bias]
    assert len(parameter_groups(network, OptimizerSection(decay_norm_and_bias=False))) == 1
