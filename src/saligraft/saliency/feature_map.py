"""Forward saliency: what the network's own feature map responds to, regardless of class (§4.3)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from saligraft import checks
from saligraft.saliency.chunks import in_chunks

Channels = Literal["sum", "mean"]


def feature_saliency(features: Tensor, channels: Channels = "sum") -> Tensor:
    """Compute forward saliency S = Σ_c |A_c| (§4.3).

    Args:
        features: A, (B, C, h, w).
        channels: "mean" divides S by C. That matters only to a softmax of unscaled maps, ``normalize="none"``: any
            other normalisation, and λ, are free of the scale of S.

    Returns:
        S, (B, h, w), detached, in float32 (float64 for float64 features).

    Example:
        >>> feature_saliency(torch.tensor([3.0, -4.0]).view(1, 2, 1, 1))
        tensor([[[7.]]])
    """
    checks.images(features, "features")
    checks.one_of("channels", channels, get_args(Channels))
    return sum_channels(features, mean=channels == "mean")


@checks.without_autocast
def sum_channels(features: Tensor, *, nonnegative: bool = False, mean: bool = False) -> Tensor:
    """`feature_saliency` without validation.

    Args:
        features: A, (B, C, h, w).
        nonnegative: Whether |A| = A, as after a ReLU.
        mean: Whether to divide by C.
    """
    if mean:
        return sum_channels(features, nonnegative=nonnegative) / features.shape[1]
    features = features.detach()
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    if nonnegative:
        return features.sum(dim=1, dtype=dtype)
    if features.device.type != "cpu":  # no copy of |A|; on a CPU this is five times as slow
        norm: Tensor = torch.linalg.vector_norm(features, ord=1, dim=1, dtype=dtype)
        return norm
    return in_chunks(lambda part: part.abs().sum(dim=1, dtype=dtype), features, features.shape[1:].numel())
