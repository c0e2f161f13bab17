"""Put DropBlock into a network of residual stages."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from saligraft import checks
from saligraft.regularizers.drop_block import DropBlock

STAGES_WITH_DROP_BLOCK = 2  # the last ones: the authors drop in the last two groups of a ResNet
RATE_OF_STAGE_BEFORE = 1 / 4  # of the stage after it: the authors' code, whose maps have four times the cells there


def add_drop_blocks(stages: nn.Sequential, arguments: Mapping[str, Any] | None) -> None:
    """Let `DropBlock(**arguments)` follow each residual sum of the last two stages; nothing is done for None.

    `keep_probability` is that of the last stage; the one before it drops a quarter as much, as in the authors' code.
    The authors (Ghiasi et al. 2018, §4.1) drop after every convolution and shortcut of these stages; dropping their
    sum hits both alike with one draw. Blocks of the stages keep their place for it, so that weights fit networks with
    and without.
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
