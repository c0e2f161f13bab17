"""Regularisers of features, used as baselines in the paper's tables: each a pure function and a thin module."""

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
