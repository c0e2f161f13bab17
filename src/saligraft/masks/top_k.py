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
    flat = saliency.flatten(1)
    checks.whole_number("k", k, least=1, most=flat.shape[1])
    best = flat.topk(k, dim=1).indices
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter(1, best, True)
    return mask.view(saliency.shape) & usable_maps(saliency)[:, None, None]
