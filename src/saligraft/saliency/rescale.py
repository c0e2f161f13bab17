"""Bring a saliency map to the grid drawn for the mini-batch (§4.3: "up/down-sampling scale")."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft import checks


@checks.without_autocast
def resize_saliency(saliency: Tensor, grid: int | tuple[int, int]) -> Tensor:
    """Resize maps to a grid: average pooling where an axis shrinks, bilinear interpolation where it grows.

    Pooling as by `adaptive_avg_pool2d`, interpolation as by `interpolate(mode="bilinear")`.

    Args:
        saliency: (B, h, w).
        grid: g, cells per side; or rows and columns.

    Returns:
        (B, g, g), or (B, rows, columns), in float32 (float64 for float64 maps).

    Example:
        >>> resize_saliency(torch.tensor([[[1.0, 3.0], [5.0, 7.0]]]), 1)
        tensor([[[4.]]])
    """
    checks.saliency(saliency)
    wanted = grid if isinstance(grid, tuple) else (grid, grid)
    for cells in grid if isinstance(grid, tuple) else (grid,):
        checks.whole_number("grid", cells, least=1)
    saliency = checks.at_least_float32(saliency)
    height, width = saliency.shape[1:]
    # Matrix products in a compiled graph, since pooling would compile one graph per grid, and on MPS, where adaptive
    # pooling takes only grids that divide the map.
    if torch.compiler.is_compiling() or saliency.device.type == "mps":
        rows = _resampling(height, wanted[0], saliency)
        columns = _resampling(width, wanted[1], saliency)
        return torch.einsum("gh,bhw,kw->bgk", rows, saliency, columns)
    pooled = (min(height, wanted[0]), min(width, wanted[1]))
    if pooled != (height, width):
        saliency = F.adaptive_avg_pool2d(saliency, pooled)
    if pooled != wanted:
        saliency = F.interpolate(saliency[:, None], wanted, mode="bilinear", align_corners=False)[:, 0]
    return saliency


def _resampling(size: int, grid: int, like: Tensor) -> Tensor:
    """Weights (grid, size), each row summing to one, of every input cell in every output cell."""
    cell = torch.arange(size, device=like.device)
    target = torch.arange(grid, device=like.device)[:, None]

    start, end = target * size // grid, ((target + 1) * size + grid - 1) // grid
    pooling = ((cell >= start) & (cell < end)) / (end - start)

    position = ((target + 0.5) * size / grid - 0.5).clamp(0, size - 1)
    interpolation = (1 - (position - cell).abs()).clamp(min=0)

    # Chosen by a tensor: an `if` on the grid would compile a graph for each of the two.
    shrinks = torch.full((), size, device=like.device) >= grid
    return torch.where(shrinks, pooling, interpolation).to(like.dtype)
