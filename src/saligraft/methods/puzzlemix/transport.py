"""Move salient blocks to places where the mask shows their image, as an index of blocks and one gather of pixels.

Kim, Choo & Song, ICML 2020, Section 4.2 and Algorithm 1: each block bids for the nearest place that shows, each place
keeps the best bid, and a block that lost bids for its next place. The authors use dense plans (B, g², g²); but moving
from s to t costs ξ d(s, t)² − share_s, so a block bids only for the few places whose distance its share outweighs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from saligraft import checks


def transport_plan(shares: Tensor, visible: Tensor, cost: float = 0.8, rounds: int | None = None) -> Tensor:
    """Find the block that each place shows; solved on the CPU.

    A hidden place, or one without bids, keeps its own block.

    Args:
        shares: (B, g, g), from `block_shares`.
        visible: bool (B, g, g).
        cost: ξ.
        rounds: Rounds of bids; by default the blocks per side, as in the authors' code.

    Returns:
        int64 (B, g, g) into the g² blocks, row by row.
    """
    checks.rank("shares", shares, "(B, h, w)")
    checks.positive("cost", cost)
    if visible.shape != shares.shape or visible.dtype != torch.bool:
        expected = checks.shape_of(shares)
        raise ValueError(f"visible must be bool of shape {expected}, got {visible.dtype} {checks.shape_of(visible)}")
    grid = shares.shape[1]
    share, shown = shares.detach().cpu().double(), visible.cpu()
    holder = _settle(_bids(share, shown, cost), share.flatten(), shown.flatten(), grid if rounds is None else rounds)
    block = torch.where(holder < 0, torch.arange(shares.numel(), device="cpu"), holder) % (grid * grid)
    return block.view(shares.shape).to(shares.device)


class _Bids(NamedTuple):
    """The places, other than its own, that each block may bid for, best first; numbered across the batch."""

    place: Tensor
    cost: Tensor
    start: Tensor
    """(blocks + 1,): where each block's bids begin."""


def _bids(shares: Tensor, visible: Tensor, cost: float) -> _Bids:
    grid = shares.shape[1]
    span = torch.arange(-(grid - 1), grid, device="cpu")
    rows, columns = span.repeat_interleave(len(span)), span.repeat(len(span))
    squared = rows**2 + columns**2
    order = squared.argsort(stable=True)[1:]  # equal distances in row order; the first is the block's own place
    rows, columns = rows[order], columns[order]
    price = cost * squared[order].double() / max(grid - 1, 1) ** 2

    share = shares.flatten()
    counts = torch.searchsorted(price, share)  # a bid must pay off: price < share
    block = torch.arange(len(share), device="cpu").repeat_interleave(counts)
    rank = torch.arange(len(block), device="cpu") - (counts.cumsum(dim=0) - counts).repeat_interleave(counts)
    row, column = block // grid % grid + rows[rank], block % grid + columns[rank]
    inside = (row >= 0) & (row < grid) & (column >= 0) & (column < grid)
    place = torch.where(inside, block // (grid * grid) * (grid * grid) + row * grid + column, 0)
    possible = inside & visible.flatten()[place]
    block, rank, place = block[possible], rank[possible], place[possible]
    start = torch.cat(
        (torch.zeros(1, dtype=torch.long, device="cpu"), block.bincount(minlength=len(share)).cumsum(dim=0))
    )
    return _Bids(place, price[rank] - share[block], start)


def _settle(bids: _Bids, share: Tensor, visible: Tensor, rounds: int) -> Tensor:
    """Which block holds each place (−1 none) after the rounds: deferred acceptance, all losers bidding at once."""
    own = visible & (share > 0)  # staying is free, so every visible block first bids for its own place
    block = torch.arange(len(share), device="cpu")
    holder = torch.where(own, block, -1)
    held_at = torch.where(own, -share, torch.inf)
    turn, end = bids.start[:-1] - own.long(), bids.start[1:]
    bidder = block[~own & (turn < end)]
    for _ in range(rounds):
        if not len(bidder):
            break
        place, cost = bids.place[turn[bidder]], bids.cost[turn[bidder]]
        best = _best_of_each_place(place, cost)
        at, offer = place[best], cost[best]
        wins = (offer < held_at[at]) | ((offer == held_at[at]) & (bidder[best] < holder[at]))
        at, ousted = at[wins], holder[at[wins]]
        holder[at], held_at[at] = bidder[best[wins]], offer[wins]
        losers = torch.cat((bidder[holder[place] != bidder], ousted[ousted >= 0]))
        turn[losers] += 1
        bidder = losers[turn[losers] < end[losers]].sort().values
    return holder


def _best_of_each_place(place: Tensor, cost: Tensor) -> Tensor:
    """Positions of the lowest cost for each place; the first among equal costs."""
    order = cost.argsort(stable=True)
    order = order[place[order].argsort(stable=True)]
    place = place[order]
    first = torch.ones_like(place, dtype=torch.bool)
    first[1:] = place[1:] != place[:-1]
    return order[first]


def move_blocks(images: Tensor, plan: Tensor) -> Tensor:
    """Rearrange the blocks of images by a plan. Pure.

    Blocks are the cells of a g × g mask after `spread`. If the image does not divide evenly, blocks differ by one
    pixel: a moved block is then cropped, or its last row or column repeated.

    Args:
        images: (B, C, H, W).
        plan: (B, g, g), from `transport_plan`.
    """
    grid = plan.shape[1]
    height, width = images.shape[2:]
    cell_y, within_y, start_y, size_y = _cells(height, grid, plan.device)
    cell_x, within_x, start_x, size_x = _cells(width, grid, plan.device)
    row, column = plan // grid, plan % grid

    def spread(blocks: Tensor) -> Tensor:
        return blocks.index_select(1, cell_y).index_select(2, cell_x)

    pixel = spread(start_y[row] * width + start_x[column])
    if height % grid == 0 and width % grid == 0:
        pixel = pixel + (within_y[:, None] * width + within_x)
    else:
        pixel = pixel + torch.minimum(within_y[:, None], spread(size_y[row] - 1)) * width
        pixel = pixel + torch.minimum(within_x, spread(size_x[column] - 1))
    pixel = pixel.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    moved = images.flatten(2).gather(2, pixel).view(images.shape)
    return torch.empty_like(images).copy_(moved) if not images.is_contiguous() else moved  # in the images' memory order


def _cells(size: int, grid: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For one axis: each pixel's cell and position within it, each cell's first pixel and size."""
    pixel = torch.arange(size, device=device)
    edge = (torch.arange(grid + 1, device=device) * size + grid - 1) // grid
    cell = pixel * grid // size
    return cell, pixel - edge[cell], edge[:-1], edge[1:] - edge[:-1]
