"""Optimisers of a recipe, and the moving average of the weights.

Each parameter group keeps its own learning rate under `INITIAL_LR`; a schedule multiplies all of them by one factor.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from saligraft.config.sections import OptimizerSection
from saligraft.networks.weights import find_head

INITIAL_LR = "initial_lr"  # as torch's own schedulers name it
UPDATES = "updates_taken"  # a name beside those of the network's tensors


def parameter_groups(network: nn.Module, section: OptimizerSection) -> list[dict[str, Any]]:
    """Group parameters by weight decay and by learning rate: with and without decay, head and rest.

    Args:
        network: Frozen parameters are left out.
        section: The recipe's section. Without `decay_norm_and_bias`, parameters of fewer than two dimensions
            have no decay: norm parameters and biases, in every normalisation layer of torch and timm.
    """
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    head = {id(parameter) for parameter in head_parameters(network)} if section.head_lr is not None else set()
    groups = []
    for in_head, decayed in product((False, True), (True, False)):
        parameters = [
            parameter
            for parameter in trainable
            if (id(parameter) in head) == in_head and (section.decay_norm_and_bias or parameter.ndim > 1) == decayed
        ]
        lr = section.head_lr if in_head else section.lr
        decay = section.weight_decay if decayed else 0.0
        if parameters:
            groups.append({"params": parameters, "lr": lr, INITIAL_LR: lr, "weight_decay": decay})
    return groups


def head_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the layer that gives the logits; raise if there is none.

    Args:
        network: Network with a head that `saligraft.networks.weights.find_head` finds.
    """
    parameters = find_head(network)
    if not parameters:
        raise ValueError(
            f"optimizer.head_lr must be left out for {type(network).__name__}, which has no fully-connected last layer"
        )
    return parameters


class AveragedWeights:
    """Exponential moving average of a network's parameters: mean ← decay · mean + (1 - decay) · weights.

    The averaged network is a copy; its buffers, such as batch norm's statistics, are copied from the trained network
    at each update. The first update copies the weights, so that the mean contains nothing of the initial ones.

    Args:
        network: The trained network, without the wrappers of DDP and torch.compile.
        decay: Decay of the average, in [0, 1).
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        self._source = network
        self._averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]
        self._averaged.requires_grad_(False)

    @property
    def network(self) -> nn.Module:
        """The network with averaged weights, in whichever mode it was set to."""
        network: nn.Module = self._averaged.module
        return network

    def update(self) -> None:
        """Add the weights after a step to the mean."""
        self._averaged.update_parameters(self._source)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averaged network's tensors by name, without copying them, and the number of updates."""
        return {**self.network.state_dict(), UPDATES: self._averaged.n_averaged}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned."""
        self.network.load_state_dict({name: value for name, value in state.items() if name != UPDATES})
        self._averaged.n_averaged.copy_(state[UPDATES])
