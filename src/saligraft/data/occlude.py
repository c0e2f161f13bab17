"""Hide the most salient regions of images: the occlusion table of §5.3, "Partial occlusion of salient regions".

Shapes: B batch, C channels, H W pixels, h w cells of the saliency grid.
"""

import torch
from torch import Tensor

from saligraft import checks
from saligraft.grafting import graft

GRID = 8  # cells per side: the paper's 12.5 % and 25 % are then 8 and 16 cells


def occlude(images: Tensor, saliency: Tensor, share: float, fill: float | Tensor = 0.0) -> Tensor:
    """Fill the most salient cells of images. Pure.

    Args:
        images: (B,C,H,W).
        saliency: (B,h,w).
        share: Share of the cells to hide, rounded to the nearest cell.
        fill: The default is the data mean of normalised images; a tensor must broadcast to images.

    Returns:
        Images (B,C,H,W). Of equally salient cells the first in row order are hidden.
    """
    checks.images(images)
    checks.saliency(saliency, batch=len(images), like=images)
    count = hidden_cells(share, saliency.shape[1] * saliency.shape[2])
    order = saliency.flatten(1).argsort(dim=1, descending=True, stable=True)
    hidden = torch.zeros_like(order, dtype=torch.bool).scatter(1, order[:, :count], True).view(saliency.shape)
    filled = torch.as_tensor(fill, dtype=images.dtype, device=images.device).expand_as(images)
    return graft(filled, images, hidden)


def hidden_cells(share: float, cells: int = GRID**2) -> int:
    """Return the number of cells in a share, rounded to the nearest.

    Args:
        share: Share of cells to hide, in [0,1].
        cells: Number of cells.
    """
    checks.probability("share", share)
    return round(share * cells)
