"""What mask and label both need of saliency maps, computed once: peak, scale, norm, and whether a map is usable."""

from typing import NamedTuple

import torch
from torch import Tensor

from saligraft import checks


class ScaledMaps(NamedTuple):
    """Saliency maps divided by their peaks, so that no square over- or underflows.

    Args:
        values: S / max S, (B, h, w), float32 or float64; NaN throughout where a map is all zero.
        peak: max S, (B, 1, 1).
        lowest: min S, (B, 1, 1).
        norm: ‖S / max S‖₂, (B, 1, 1); NaN where a map is all zero.
        usable: bool (B, 1, 1), False for maps that are not finite or negative somewhere.
    """

    values: Tensor
    peak: Tensor
    lowest: Tensor
    norm: Tensor
    usable: Tensor

    def unit(self, order: float = 2.0) -> Tensor:
        """The maps (B, h, w) divided by their norm; NaN throughout where a map is all zero.

        Args:
            order: The order of the norm.
        """
        norm = self.norm if order == 2.0 else torch.linalg.vector_norm(self.values, order, dim=(1, 2), keepdim=True)
        return self.values / norm


def scale_maps(saliency: Tensor) -> ScaledMaps:
    """Divide maps by their peaks; no validation.

    Args:
        saliency: S, (B, h, w).
    """
    saliency = checks.at_least_float32(saliency)
    lowest, peak = saliency.flatten(1).aminmax(dim=1)  # NaN if a map holds any
    lowest, peak = lowest[:, None, None], peak[:, None, None]
    values = saliency / peak
    norm = torch.linalg.vector_norm(values, dim=(1, 2), keepdim=True)
    return ScaledMaps(values, peak, lowest, norm, (lowest >= 0) & (peak < float("inf")))


def usable_maps(saliency: Tensor) -> Tensor:
    """True (B,) where a map is finite and nowhere negative; others leave their samples ungrafted.

    Args:
        saliency: (B, h, w).
    """
    lowest, peak = saliency.flatten(1).aminmax(dim=1)
    return (lowest >= 0) & (peak < float("inf"))
