"""A running mean of the weights, tested and saved in their place."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

UPDATES = "updates_taken"  # a name beside those of the network's tensors


class Average:
    """Exponential moving average of a network's parameters: mean ← decay · mean + (1 - decay) · weights.

    `network` is a copy that holds the mean; its buffers, such as batch norm's statistics, are copied from the network
    in training at each update. Give the bare network, not what DDP or torch.compile wraps around it. The first update
    takes the weights as they stand, so that the mean holds nothing of the initial ones.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        self._source = network
        self._averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]
        self._averaged.requires_grad_(False)

    @property
    def network(self) -> nn.Module:
        """The network with averaged weights; in training or evaluation mode as one sets it."""
        network: nn.Module = self._averaged.module
        return network

    def update(self) -> None:
        """Take in the weights as they stand after a step."""
        self._averaged.update_parameters(self._source)

    def state_dict(self) -> dict[str, Tensor]:
        """All that a resumed run needs, no copies: the averaged network's tensors by name, and the count of updates."""
        return {**self.network.state_dict(), UPDATES: self._averaged.n_averaged}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict({name: value for name, value in state.items() if name != UPDATES})
        self._averaged.n_averaged.copy_(state[UPDATES])
