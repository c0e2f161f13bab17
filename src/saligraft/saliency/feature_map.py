"""Forward saliency: what the network's own feature map responds to, regardless of class (§4.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from saligraft import checks


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
    return sum_channels(features)


@checks.without_autocast
def sum_channels(features: Tensor, *, nonnegative: bool = False) -> Tensor:
    """`feature_saliency` without validation.

    Args:
        features: A, (B, C, h, w).
        nonnegative: Whether |A| = A, as after a ReLU.
    """
    features = features.detach()
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    if nonnegative:
        return features.sum(dim=1, dtype=dtype)
    if features.is_contiguous():
        return features.abs().sum(dim=1, dtype=dtype)
    # The l1 norm sums |A| without a copy of it: faster where channels come last, slower where they come first.
    saliency: Tensor = torch.linalg.vector_norm(features, ord=1, dim=1, dtype=dtype)
    return saliency
