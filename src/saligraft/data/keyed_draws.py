"""Random numbers that depend only on a key such as (seed, epoch, sample): no random state is carried between draws.

This makes a resumed run, or one with another number of workers, bit-identical to an uninterrupted one.
"""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
# The constants of SplitMix64 (Steele, Lea & Flood 2014).
_GAMMA, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key(*parts: int) -> int:
    """Hash integers to a seed in [0, 2^63).

    Args:
        *parts: Everything the draw depends on, such as seed, step, rank and copy; their order matters.

    Example:
        >>> from saligraft.data.keyed_draws import key
        >>> key(0, 1) == key(0, 1), key(0, 1) == key(1, 0)
        (True, False)
    """
    state = 0
    for part in parts:
        state = _mix((state ^ (part & _MASK)) + _GAMMA & _MASK)
    return state >> 1


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * _MIX1 & _MASK
    value = (value ^ (value >> 27)) * _MIX2 & _MASK
    return value ^ (value >> 31)


def keyed_uniforms(key: int, index: Tensor, count: int) -> Tensor:
    """Draw uniforms (B, count) in [0, 1) that depend only on `key` and each sample's index.

    Counter-based: a sample gets the same numbers in any batch, worker, device or resumed run.

    Args:
        key: A seed, from `key`.
        index: (B,), the samples' indices.
        count: Numbers per sample.
    """
    counter = index[:, None].long() * count + torch.arange(count, device=index.device)
    bits = _mix_tensor(_mix_tensor(counter * _signed(_GAMMA) + _signed(key)) + _signed(_GAMMA))
    return (bits >> 40 & 0xFFFFFF).to(torch.float32) / (1 << 24)


def _mix_tensor(value: Tensor) -> Tensor:
    """`_mix` on int64 tensors, whose products wrap around; right shifts are made logical."""
    value = (value ^ (value >> 30 & (1 << 34) - 1)) * _signed(_MIX1)
    value = (value ^ (value >> 27 & (1 << 37) - 1)) * _signed(_MIX2)
    return value ^ (value >> 31 & (1 << 33) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
