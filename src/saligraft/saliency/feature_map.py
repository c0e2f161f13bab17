"""Forward saliency: what the network's own feature map responds to, whatever the class (§4.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from saligraft import checks


@checks.without_autocast
def feature_saliency(features: Tensor) -> Tensor:
    """S = Σ_c |A_c|, detached: (B, C, h, w) -> (B, h, w) in float32 (float64 stays), §4.3."""
    checks.images(features, "features")
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    # The l1 norm over channels is the same sum in one kernel, without a copy of |A|.
    saliency: Tensor = torch.linalg.vector_norm(features.detach(), ord=1, dim=1, dtype=dtype)
    return saliency
