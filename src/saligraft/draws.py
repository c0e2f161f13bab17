"""All random draws of the methods: partners, coins, Beta ratios, grids, cells and boxes, made on the host.

Draws come from a CPU `torch.Generator` (torch's global one if none is given), so that one seed gives the same draws on
every device, whatever torch's default device is; `to_device` moves them without blocking. The functions that apply a
draw take it as an argument.
"""

import math
import random
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

Per = Literal["sample", "batch"]

_SMALL_ALPHA = 0.1  # below it Gamma draws can underflow, and their shares become 0 / 0


def partners(
    batch: int, *, probability: float = 1.0, per: Per = "batch", generator: torch.Generator | None = None
) -> Tensor:
    """A plain permutation (B,): sample i is grafted onto partner[i], which may be itself.

    A sample paired with itself is left unchanged: source and destination are the same image with the same label.

    Args:
        batch: B.
        probability: Probability that a sample is mixed at all; the others are paired with themselves.
        per: Whether a coin is flipped for each "sample" or once per "batch".
        generator: CPU generator for all random draws; None uses torch's global generator.
    """
    partner = torch.randperm(batch, generator=generator, device="cpu")
    if probability >= 1.0:
        return partner
    mixed = torch.rand(batch if per == "sample" else 1, generator=generator, device="cpu") < probability
    return torch.where(mixed, partner, torch.arange(batch, device="cpu"))


def choices(
    probabilities: Sequence[float], count: int, *, probability: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Draw among several methods.

    Args:
        probabilities: Probability of each method; their sum is 1.
        count: Number of draws.
        probability: Probability of choosing any method at all.
        generator: CPU generator for all random draws; None uses torch's global generator.

    Returns:
        (count,) indices into `probabilities`, or ``len(probabilities)`` for no method.
    """
    place = torch.multinomial(torch.tensor(probabilities, device="cpu"), count, replacement=True, generator=generator)
    applied = torch.rand(count, generator=generator, device="cpu") < probability
    return torch.where(applied, place, len(probabilities))


def beta(alpha: float, count: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Draw (count,) from Beta(alpha, alpha) by the standard library, since torch's Beta takes no generator.

    Args:
        alpha: Both parameters of the distribution.
        count: Number of draws.
        generator: CPU generator for all random draws; None uses torch's global generator.
    """
    stream = _stream(generator)
    if alpha < _SMALL_ALPHA:
        return torch.tensor([_tiny_dirichlet(alpha, 2, stream)[0] for _ in range(count)], device="cpu")
    return torch.tensor([stream.betavariate(alpha, alpha) for _ in range(count)], device="cpu")


def dirichlet(alpha: float, width: int, count: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Draw rows (count, width) from Dirichlet(alpha), each summing to one, by the standard library.

    Args:
        alpha: All parameters of the distribution.
        width: Entries of a row.
        count: Number of rows.
        generator: CPU generator for all random draws; None uses torch's global generator.
    """
    stream = _stream(generator)
    if alpha < _SMALL_ALPHA:
        return torch.tensor([_tiny_dirichlet(alpha, width, stream) for _ in range(count)], device="cpu")
    gamma = torch.tensor(
        [[stream.gammavariate(alpha, 1) for _ in range(width)] for _ in range(count)],
        dtype=torch.float64,
        device="cpu",
    )
    return (gamma / gamma.sum(dim=1, keepdim=True)).float()


def _stream(generator: torch.Generator | None) -> random.Random:
    return random.Random(int(torch.randint(2**62, (), generator=generator, device="cpu")))


def _tiny_dirichlet(alpha: float, width: int, stream: random.Random) -> list[float]:
    """One row, from logarithms: Gamma(alpha) = Gamma(alpha + 1) · U^(1/alpha) could underflow to 0 in all of a row."""
    power = 1 / max(alpha, 1e-300)
    logs = [math.log(stream.gammavariate(alpha + 1, 1)) + power * math.log(1 - stream.random()) for _ in range(width)]
    shares = [math.exp(log - max(logs)) for log in logs]
    return [share / sum(shares) for share in shares]


def grid(grids: Sequence[int], *, generator: torch.Generator | None = None) -> int:
    """Draw one of the grids uniformly: the saliency's resolution for this mini-batch (§4.3).

    Args:
        grids: Cells per side to choose from.
        generator: CPU generator for all random draws; None uses torch's global generator.
    """
    return grids[int(torch.randint(len(grids), (), generator=generator, device="cpu"))]


def cells(
    batch: int, grid: int, probability: Tensor, *, rows: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Draw P ~ Bern(p_B), each region independently (§4.1).

    Args:
        batch: B.
        grid: g, cells per side.
        probability: p_B as (B,) or (1,).
        rows: Rows of cells, if not g: 1 for signals.
        generator: CPU generator for all random draws; None uses torch's global generator.

    Returns:
        bool (B, g, g), or (B, rows, g).
    """
    return torch.rand(batch, rows or grid, grid, generator=generator, device="cpu") < probability[:, None, None]


def boxes(ratio: Tensor, height: int, width: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Draw boxes with a uniform centre, clipped at the border, as in CutMix (Yun et al. 2019).

    As in the authors' code, a box reaches half a side, rounded down, to each side of its centre, so an odd side loses
    one pixel. An axis of one pixel, as signals have, is not cut: the other axis alone makes the area.

    Args:
        ratio: (B,), the box's share of the image's area before clipping.
        height: H of the image.
        width: W of the image.
        generator: CPU generator for all random draws; None uses torch's global generator.

    Returns:
        (B, 4) as top, left, bottom, right (end exclusive).
    """
    side = ratio if 1 in (height, width) else ratio.sqrt()
    half = torch.stack((side * height, side * width), dim=1).long() // 2
    limit = torch.tensor([height, width], device="cpu")
    centre = (torch.rand(len(ratio), 2, generator=generator, device="cpu") * limit).long()
    end = torch.minimum(centre + half, limit)
    if height == 1 < width or width == 1 < height:
        end = torch.where(limit == 1, 1, end)
    return torch.cat(((centre - half).clamp(min=0), end), dim=1)


def process_stream() -> torch.Generator | None:
    """Return a generator whose draws differ between the processes of a launch, even if all are seeded alike.

    It is seeded by a draw of torch's global generator and the rank, so that no state has to be saved for it.

    Returns:
        None, which stands for the global generator itself, unless torch.distributed runs several processes.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")) + dist.get_rank())


def to_device(draw: Tensor, device: torch.device) -> Tensor:
    """Move a draw, or another tensor, from the host without waiting for the device.

    Args:
        draw: A tensor on the host.
        device: The destination.
    """
    if device.type == "cuda":
        return draw.pin_memory().to(device, non_blocking=True)  # only pinned memory copies without blocking
    return draw.to(device)
