"""Boxes as masks over pixels, for CutMix and its relatives (§3, the indicator 1^Rect)."""

import torch
from torch import Tensor

from saligraft import checks


def rectangle_mask(box: Tensor, height: int, width: int) -> Tensor:
    """True inside the boxes.

    Args:
        box: (B, 4) whole pixels: top, left, bottom, right (end exclusive).
        height: H of the image.
        width: W of the image.

    Returns:
        bool (B, H, W).
    """
    checks.rank("box", box, "(B, 4)")
    if box.shape[1] != 4:
        raise ValueError(f"box must have shape (B, 4), got {checks.shape_of(box)}")
    if box.is_floating_point():
        raise TypeError(f"box must hold whole pixels, got {box.dtype}")
    top, left, bottom, right = box[:, :, None].unbind(dim=1)
    row = torch.arange(height, device=box.device)
    column = torch.arange(width, device=box.device)
    rows = (row >= top) & (row < bottom)
    columns = (column >= left) & (column < right)
    return rows[:, :, None] & columns[:, None, :]
