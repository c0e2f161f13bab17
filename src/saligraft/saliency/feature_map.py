"""Forward saliency: what the network's own feature map responds to, regardless of class (§4.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from saligraft import checks


@checks.without_autocast
def feature_saliency(features: Tensor) -> Tensor:
    """Compute forward saliency S = Σ_c |A_c| (§4.3).

    Args:
        features: A, (B, C, h, w).

    Returns:
        S, (B, h, w), detached, in float32 (float64 for float64 features).

    Example:
        >>> feature_saliency(torch.tensor([3.0, -4.0]).view(1, 2, 1, 1))
        tensor([[[7.]]])
    """
    checks.images(features, "features")
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    # The l1 norm over channels is the same sum in one kernel, without a copy of |A|.
    saliency: Tensor = torch.linalg.vector_norm(features.detach(), ord=1, dim=1, dtype=dtype)
    return saliency
