"""A few steps of plain training in channels_last, for the tests of every network."""

import torch
from torch import nn


def losses_in_channels_last(network: nn.Module, *, size: int, steps: int, lr: float = 0.02) -> list[float]:
    """The loss of each step on one batch of eight images of four classes; the features must stay in channels_last."""
    network = network.to(memory_format=torch.channels_last)
    images = torch.randn(8, 3, size, size).to(memory_format=torch.channels_last)
    labels = torch.arange(8) % 4
    assert network.forward_features(images).is_contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
