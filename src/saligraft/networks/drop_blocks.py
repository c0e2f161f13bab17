"""Put DropBlock into a network of residual stages."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from saligraft.regularizers.drop_block import DropBlock

STAGES_WITH_DROP_BLOCK = 2  # the last ones: the authors drop in the last two groups of a ResNet


def add_drop_blocks(stages: nn.Sequential, arguments: Mapping[str, Any] | None) -> None:
    """Let `DropBlock(**arguments)` follow each residual sum of the last two stages; nothing is done for None.

    The authors (Ghiasi et al. 2018, §4.1) drop after every convolution and shortcut of these stages; dropping their
    sum hits both alike with one draw. Blocks of the stages keep their place for it, so that weights fit networks with
    and without.
    """
    if arguments is None:
        return
    if not isinstance(arguments, Mapping):
        raise TypeError(f"drop_block must be a table such as {{ block_size = 7 }}, got {arguments!r}")
    for stage in list(stages)[-STAGES_WITH_DROP_BLOCK:]:
        assert isinstance(stage, nn.Sequential)
        for block in stage:
            block.drop_block = DropBlock(**arguments)
