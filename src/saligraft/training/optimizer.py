"""Optimisers of a recipe: weight decay on all parameters or on the weights alone, and a learning rate for the head.

Each parameter group holds its own learning rate under `INITIAL_LR`; a schedule multiplies all by one factor.
"""

from itertools import product
from typing import Any

import torch
from torch import nn

from saligraft.config.sections import OptimizerSection
from saligraft.hooks import is_linear
from saligraft.networks.base import PooledNetwork

INITIAL_LR = "initial_lr"  # as torch's own schedulers name it


def build_optimizer(network: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW over the network's trainable parameters."""
    groups = parameter_groups(network, section)
    if section.name == "sgd":
        return torch.optim.SGD(groups, lr=section.lr, momentum=section.momentum, nesterov=section.nesterov)
    adam = torch.optim.Adam if section.name == "adam" else torch.optim.AdamW
    return adam(groups, lr=section.lr, betas=section.betas)


def parameter_groups(network: nn.Module, section: OptimizerSection) -> list[dict[str, Any]]:
    """One group for all, or those with decay apart from those without, and the head's apart from the rest.

    Without `decay_norm_and_bias`, norm parameters and biases go without decay; they are told by having one dimension
    or none, as in every normalisation layer of torch and timm.
    """
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    head = {id(parameter) for parameter in head_parameters(network)} if section.head_lr is not None else set()
    groups = []
    for in_head, decayed in product((False, True), (True, False)):
        own = [
            parameter
            for parameter in trainable
            if (id(parameter) in head) == in_head and (section.decay_norm_and_bias or parameter.ndim > 1) == decayed
        ]
        lr = section.head_lr if in_head else section.lr
        decay = section.weight_decay if decayed else 0.0
        if own:
            groups.append({"params": own, "lr": lr, INITIAL_LR: lr, "weight_decay": decay})
    return groups


def head_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Parameters of the layer that gives the logits: timm's classifier, our networks' head, else the last linear one.

    Some of timm's networks have two such layers; a 1 × 1 convolution counts as linear, as in SqueezeNet.
    """
    if callable(getattr(network, "get_classifier", None)):
        found = network.get_classifier()  # type: ignore[operator]
        layers = list(found) if isinstance(found, tuple | list) else [found]
    elif isinstance(network, PooledNetwork):
        layers = [network.head]
    else:
        layers = [module for module in network.modules() if is_linear(module)][-1:]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    if not parameters:
        raise ValueError(
            f"optimizer.head_lr must be left out for {type(network).__name__}, which has no fully-connected last layer"
        )
    return parameters
