"""Optimisers of a recipe, with weight decay on all parameters or on the weights alone."""

from typing import Any

import torch
from torch import nn

from saligraft.training.sections import OptimizerSection


def build_optimizer(network: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW over the network's trainable parameters."""
    groups = parameter_groups(network, section)
    if section.name == "sgd":
        return torch.optim.SGD(groups, lr=section.lr, momentum=section.momentum, nesterov=section.nesterov)
    adam = torch.optim.Adam if section.name == "adam" else torch.optim.AdamW
    return adam(groups, lr=section.lr, betas=section.betas)


def parameter_groups(network: nn.Module, section: OptimizerSection) -> list[dict[str, Any]]:
    """One group for all, or the weights apart from norm parameters and biases, which then go without decay.

    The latter are told by having one dimension or none, as in every normalisation layer of torch and timm.
    """
    trainable = [p for p in network.parameters() if p.requires_grad]
    if section.decay_norm_and_bias:
        return [{"params": trainable, "weight_decay": section.weight_decay}]
    weights = [p for p in trainable if p.ndim > 1]
    others = [p for p in trainable if p.ndim <= 1]
    groups = [
        {"params": weights, "weight_decay": section.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
