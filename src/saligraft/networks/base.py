"""What the networks share: convolutions, stages of residual blocks, DropBlock, a pooled linear head, initialisation."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from saligraft import checks
from saligraft.regularizers.drop_block import DropBlock

STAGES_WITH_DROP_BLOCK = 2  # the last ones: the authors drop in the last two groups of a ResNet
RATE_OF_STAGE_BEFORE = 1 / 4  # of the next stage's rate (authors): its maps have four times the cells


class PooledNetwork(nn.Module):
    """Images (B, C, H, W) → the last spatial map → its mean over space → logits (B, K)."""

    num_features: int
    pool: nn.Module
    head: nn.Linear

    def add_head(self, num_features: int, num_classes: int) -> None:
        """Add pooling and the linear layer; called last, so that modules are listed in execution order."""
        self.num_features = num_features
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(num_features, num_classes)

    @abstractmethod
    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → the last spatial map, (B, num_features, h, w)."""

    def forward_head(self, features: Tensor) -> Tensor:
        """The last spatial map → logits (B, K)."""
        logits: Tensor = self.head(self.pool(features).flatten(1))
        return logits

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def convolution(in_channels: int, out_channels: int, size: int, stride: int = 1, *, bias: bool = False) -> nn.Conv2d:
    """A convolution, by default without bias, that changes the map's size only by its stride."""
    return nn.Conv2d(in_channels, out_channels, size, stride=stride, padding=size // 2, bias=bias)


def residual_stages(
    block: Callable[[int, int, int], nn.Module], in_channels: int, stages: Iterable[tuple[int, int, int]]
) -> nn.Sequential:
    """Stack stages of blocks.

    Args:
        block: builds one from its input channels, output channels and stride.
        in_channels: input channels of the first block.
        stages: for each stage the number of blocks, their channels, and the stride of the first of them.
    """
    network = nn.Sequential()
    for count, channels, stride in stages:
        stage = nn.Sequential()
        for position in range(count):
            stage.append(block(in_channels, channels, 1 if position else stride))
            in_channels = channels
        network.append(stage)
    return network


def add_drop_blocks(stages: nn.Sequential, arguments: Mapping[str, Any] | None) -> None:
    """Add a `DropBlock` after each residual sum of the last two stages.

    The authors (Ghiasi et al. 2018, §4.1) drop after every convolution and shortcut of these stages; dropping their
    sum affects both with one draw. Blocks have a placeholder for it, so that weights fit networks with and without it.

    Args:
        stages: stages, whose blocks have an attribute `drop_block`.
        arguments: arguments of `DropBlock`; None adds none. `keep_probability` is that of the last stage; the stage
            before it drops a quarter as much, as in the authors' code.
    """
    if arguments is None:
        return
    if not isinstance(arguments, Mapping):
        raise TypeError(f"drop_block must be a table such as {{ block_size = 7 }}, got {arguments!r}")
    known = list(inspect.signature(DropBlock).parameters)
    for name in arguments:
        checks.one_of("name of an argument of drop_block", name, known)
    full = DropBlock(**arguments)
    for before_last, stage in enumerate(reversed(list(stages)[-STAGES_WITH_DROP_BLOCK:])):
        assert isinstance(stage, nn.Sequential)
        keep_probability = 1 - (1 - full.keep_probability) * RATE_OF_STAGE_BEFORE**before_last
        for block in stage:
            block.drop_block = DropBlock(**{**arguments, "keep_probability": keep_probability})


def initialize(network: nn.Module, fan: Literal["fan_in", "fan_out"], *, zero_head_bias: bool) -> None:
    """Initialise convolutions by He's normal distribution and everything else by torch's defaults.

    Args:
        network: Changed in place; left unchanged on the meta device.
        fan: What He's variance is computed over.
        zero_head_bias: Whether linear layers start without bias.
    """
    if any(parameter.is_meta for parameter in network.parameters()):
        return  # nothing to fill; drawing random numbers on meta is slow
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            module.reset_parameters()
            if zero_head_bias:
                nn.init.zeros_(module.bias)
