"""The deterministic selection that stochastic sampling is compared with: the k most salient cells (§5.4)."""

import torch
from torch import Tensor

from saligraft import checks
from saligraft.maps import usable_maps


def top_k_regions(saliency: Tensor, k: int) -> Tensor:
    """Exactly the k most salient cells of each map; none of a map that is not finite, or negative (§5.4).

    Args:
        saliency: (B, h, w).
        k: Cells to select, at most h · w.

    Returns:
        bool (B, h, w).

    Example:
        >>> import torch, saligraft as sg
        >>> sg.top_k_regions(torch.tensor([[[1.0, 9.0], [2.0, 1.0]]]), k=2)
        tensor([[[False,  True],
                 [ True, False]]])
    """
    checks.saliency(saliency)
    cells = saliency.shape[1] * saliency.shape[2]
    if isinstance(k, float | bool):
        raise TypeError(f"k must be an int, got {type(k).__name__}")
    if not 1 <= k <= cells:
        raise ValueError(f"k must be in [1, {cells}], the cells of the map, got {k}")
    flat = saliency.flatten(1)
    best = flat.topk(k, dim=1).indices
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter(1, best, True)
    return mask.view(saliency.shape) & usable_maps(saliency)[:, None, None]
