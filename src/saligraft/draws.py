"""All randomness: partners, coins, Beta ratios, grids, cells and boxes, drawn on the host before anything is applied.

Draws come from a CPU `torch.Generator` (torch's global one if none is given), so that one seed gives the same draws on
every device; `to_device` moves them without blocking. The functions that apply a draw take it as an argument.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Per = Literal["sample", "batch"]

_SMALL_ALPHA = 0.1  # below it Gamma draws are at times too small for a float, and their shares 0 / 0
_MASK = (1 << 64) - 1
# The constants of SplitMix64 (Steele, Lea & Flood 2014).
_GAMMA, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def partners(
    batch: int, *, probability: float = 1.0, per: Per = "batch", generator: torch.Generator | None = None
) -> Tensor:
    """A plain permutation (B,): sample i is grafted onto partner[i], and may meet itself.

    With `probability` < 1 a coin per sample (or one for the batch) sends a sample to itself, which leaves it as it
    was: source and destination are then the same image with the same label, whatever the mask.
    """
    partner = torch.randperm(batch, generator=generator)
    if probability >= 1.0:
        return partner
    mixed = torch.rand(batch if per == "sample" else 1, generator=generator) < probability
    return torch.where(mixed, partner, torch.arange(batch))


def choices(
    probabilities: Sequence[float], count: int, *, probability: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Places (count,) among `probabilities`, drawn by them; their number where a coin of `probability` says none."""
    place = torch.multinomial(torch.tensor(probabilities), count, replacement=True, generator=generator)
    applied = torch.rand(count, generator=generator) < probability
    return torch.where(applied, place, len(probabilities))


def beta(alpha: float, count: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Draws (count,) from Beta(alpha, alpha), by the standard library: no public Beta of torch takes a generator."""
    stream = _stream(generator)
    if alpha < _SMALL_ALPHA:
        return torch.tensor([_tiny_dirichlet(alpha, 2, stream)[0] for _ in range(count)])
    return torch.tensor([stream.betavariate(alpha, alpha) for _ in range(count)])


def dirichlet(alpha: float, width: int, count: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Rows (count, width) from Dirichlet(alpha), each with a sum of one, by the standard library."""
    stream = _stream(generator)
    if alpha < _SMALL_ALPHA:
        return torch.tensor([_tiny_dirichlet(alpha, width, stream) for _ in range(count)])
    gamma = torch.tensor(
        [[stream.gammavariate(alpha, 1) for _ in range(width)] for _ in range(count)], dtype=torch.float64
    )
    return (gamma / gamma.sum(dim=1, keepdim=True)).float()


def _stream(generator: torch.Generator | None) -> random.Random:
    return random.Random(int(torch.randint(2**62, (), generator=generator)))


def _tiny_dirichlet(alpha: float, width: int, stream: random.Random) -> list[float]:
    """One row from logarithms: Gamma(alpha) is Gamma(alpha + 1) · U^(1/alpha), which would be 0 for all in a row."""
    power = 1 / max(alpha, 1e-300)
    logs = [math.log(stream.gammavariate(alpha + 1, 1)) + power * math.log(1 - stream.random()) for _ in range(width)]
    shares = [math.exp(log - max(logs)) for log in logs]
    return [share / sum(shares) for share in shares]


def grid(grids: Sequence[int], *, generator: torch.Generator | None = None) -> int:
    """One of `grids`, uniformly: the saliency's resolution for this mini-batch (§4.3)."""
    return grids[int(torch.randint(len(grids), (), generator=generator))]


def cells(batch: int, grid: int, probability: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """P ~ Bern(p_B), region-wise and independent: bool (B, g, g) for probabilities (B,) or (1,) (§4.1)."""
    return torch.rand(batch, grid, grid, generator=generator) < probability[:, None, None]


def boxes(ratio: Tensor, height: int, width: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Boxes (B, 4) as top, left, bottom, right (end exclusive) whose area is `ratio` of the image before clipping.

    The centre is uniform over the pixels and the border clips, as in CutMix (Yun et al. 2019).
    """
    side = ratio.sqrt()
    size = torch.stack((side * height, side * width), dim=1).long()
    limit = torch.tensor([height, width])
    centre = (torch.rand(len(ratio), 2, generator=generator) * limit).long()
    start = centre - size // 2
    return torch.cat((start.clamp(min=0), torch.minimum(start + size, limit)), dim=1)


def to_device(draw: Tensor, device: torch.device) -> Tensor:
    """Move a draw from the host without waiting for the device."""
    if device.type == "cuda":
        return draw.pin_memory().to(device, non_blocking=True)  # only pinned memory copies without blocking
    return draw.to(device)


def key(*parts: int) -> int:
    """Hash whole numbers, such as (seed, step, rank, copy), to a seed in [0, 2^63)."""
    state = 0
    for part in parts:
        state = _mix((state ^ (part & _MASK)) + _GAMMA & _MASK)
    return state >> 1


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * _MIX1 & _MASK
    value = (value ^ (value >> 27)) * _MIX2 & _MASK
    return value ^ (value >> 31)


def keyed_uniforms(key: int, index: Tensor, count: int) -> Tensor:
    """Uniforms (B, count) in [0, 1) that depend on `key` and each sample's own index (B,), and on nothing else.

    Counter-based: no stream is carried, so a sample gets the same numbers in any batch, worker, device or resumed run.
    """
    counter = index[:, None].long() * count + torch.arange(count, device=index.device)
    bits = _mix_tensor(_mix_tensor(counter * _signed(_GAMMA) + _signed(key)) + _signed(_GAMMA))
    return (bits >> 40 & 0xFFFFFF).to(torch.float32) / (1 << 24)


def _mix_tensor(value: Tensor) -> Tensor:
    """`_mix` on int64 tensors, whose products wrap around and whose right shift must be made logical."""
    value = (value ^ (value >> 30 & (1 << 34) - 1)) * _signed(_MIX1)
    value = (value ^ (value >> 27 & (1 << 37) - 1)) * _signed(_MIX2)
    return value ^ (value >> 31 & (1 << 33) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
