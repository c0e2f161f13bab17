"""Hide the most salient regions of images: the occlusion table of §5.3, "Partial occlusion of salient regions".

Shapes: B batch, C channels, H W pixels, h w cells of the saliency grid.
"""

import torch
from torch import Tensor

from saligraft import checks
from saligraft.grafting import spread

GRID = 8  # cells a side: the paper's 12.5 % and 25 % are then 8 and 16 cells


def occlude(images: Tensor, saliency: Tensor, share: float, fill: float | Tensor = 0.0) -> Tensor:
    """Fill the most salient `share` of the cells of saliency (B,h,w) in images (B,C,H,W). Pure.

    The default fill is the data mean of normalised images; a tensor must broadcast to images. Of equally salient
    cells the first in row order goes first.
    """
    checks.images(images)
    checks.saliency(saliency, batch=len(images))
    checks.same_device("saliency", saliency, images)
    hidden = most_salient(saliency, hidden_cells(share, saliency.shape[1] * saliency.shape[2]))
    pixels = spread(hidden, images.shape[2], images.shape[3])[:, None]
    return torch.where(pixels, torch.as_tensor(fill, dtype=images.dtype, device=images.device), images)


def most_salient(saliency: Tensor, count: int) -> Tensor:
    """The `count` most salient cells of each map, bool (B,h,w); ties go to the first in row order."""
    order = saliency.flatten(1).argsort(dim=1, descending=True, stable=True)
    hidden = torch.zeros_like(order, dtype=torch.bool).scatter(1, order[:, :count], True)
    return hidden.view(saliency.shape)


def hidden_cells(share: float, cells: int = GRID**2) -> int:
    """How many of the cells a share of them is, to the nearest."""
    checks.probability("share", share)
    return round(share * cells)
