"""Bring a saliency map to the grid drawn for the mini-batch (§4.3: "up/down-sampling scale")."""

from __future__ import annotations

import torch
from torch import Tensor

from saligraft import checks


@checks.without_autocast
def resize_saliency(saliency: Tensor, grid: int) -> Tensor:
    """Resize maps to a square grid: average pooling where an axis shrinks, bilinear interpolation where it grows.

    The result equals `adaptive_avg_pool2d` or `interpolate(mode="bilinear")`. It is computed as two small matrix
    products instead, because those ops would compile one graph per grid.

    Args:
        saliency: (B, h, w).
        grid: g, cells per side.

    Returns:
        (B, g, g), in float32 (float64 for float64 maps).

    Example:
        >>> resize_saliency(torch.tensor([[[1.0, 3.0], [5.0, 7.0]]]), 1)
        tensor([[[4.]]])
    """
    checks.saliency(saliency)
    checks.whole_number("grid", grid, least=1)
    saliency = checks.at_least_float32(saliency)
    height, width = saliency.shape[1:]
    rows = _resampling(height, grid, saliency)
    columns = _resampling(width, grid, saliency)
    return torch.einsum("gh,bhw,kw->bgk", rows, saliency, columns)


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
