"""Regularisers of features, for tables that compare with them: each a pure function beside a thin module."""

from saligraft.regularizers.drop_block import DropBlock, block_seed_rate, drop_block, set_drop_block_progress
from saligraft.regularizers.shake_drop import ShakeDrop, depth_keep_probability, shake_drop

__all__ = [
    "DropBlock",
    "ShakeDrop",
    "block_seed_rate",
    "depth_keep_probability",
    "drop_block",
    "set_drop_block_progress",
    "shake_drop",
]
