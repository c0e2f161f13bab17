"""Labels of every kind, and a few training steps, for the tests of every kind of method."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

K = 5


def make_labels(kind: str, count: int, stream: torch.Generator) -> Tensor:
    """Labels of K classes: "index" (B,), "probability" or "multi-hot" (B,K)."""
    if kind == "index":
        return torch.randint(K, (count,), generator=stream)
    if kind == "probability":
        return torch.rand(count, K, generator=stream).softmax(dim=1)
    return torch.randint(2, (count, K), generator=stream)


def assert_steps_lower_the_loss(
    model: nn.Module, loss_of: Callable[[torch.Generator], Tensor], *, lr: float = 0.1
) -> None:
    """Take three steps on one batch with the same draws, so that the losses compare."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(3):
        loss = loss_of(torch.Generator().manual_seed(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
