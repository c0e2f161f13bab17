"""Which cells are salient: softmax with temperature, thresholded at its mean (§4.1, Eq. 3-4)."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from saligraft import checks
from saligraft.maps import ScaledMaps, scale_maps

Normalize = Literal["l2", "max", "sum", "minmax", "none"]
NORMALIZATIONS: tuple[str, ...] = get_args(Normalize)


def salient_regions(
    saliency: Tensor, temperature: float = 0.2, threshold: float = 1.0, normalize: Normalize = "l2"
) -> Tensor:
    """S'': the cells whose softmax share S' exceeds `threshold` times the mean share (Eq. 3-4).

    A flat map selects nothing, or every cell if the threshold is below 1. A map that is not finite, or negative
    somewhere, selects nothing.

    Args:
        saliency: (B, h, w).
        temperature: T of Eq. 3; smaller selects fewer cells.
        threshold: σ as a multiple of σ_mean: 1 is the paper, 0 selects every cell.
        normalize: Scale of each map before the softmax: by its "l2" norm, "max", "sum", "minmax" or "none".

    Returns:
        bool (B, h, w).

    Example:
        >>> import torch, saligraft as sg
        >>> sg.salient_regions(torch.tensor([[[1.0, 9.0], [2.0, 1.0]]]))
        tensor([[[False,  True],
                 [False, False]]])
    """
    checks.saliency(saliency)
    check_selection(temperature, threshold, normalize)
    maps = scale_maps(saliency)
    return select_salient(maps, temperature, threshold, normalize) & maps.usable


def check_selection(temperature: float, threshold: float, normalize: str) -> None:
    """The options of `salient_regions`."""
    checks.positive("temperature", temperature)
    checks.not_negative("threshold", threshold)
    checks.one_of("normalize", normalize, NORMALIZATIONS)


def select_salient(maps: ScaledMaps, temperature: float, threshold: float, normalize: Normalize) -> Tensor:
    """`salient_regions` without validation; what it selects of maps that are not usable means nothing.

    The mean share σ_mean is 1/(hw), so S' > t σ_mean is compared in log space as S/T > log mean exp(S/T) + log t.
    """
    if threshold == 0:
        return torch.ones_like(maps.values, dtype=torch.bool)
    precision = torch.finfo(maps.values.dtype)
    # Resizing a flat map leaves differences of some ulps, which must not count as saliency.
    flat = maps.lowest >= maps.peak * (1 - 8 * precision.eps)
    below_peak = (_below_peak(maps, normalize) / max(temperature, precision.tiny)).masked_fill(flat, 0.0)
    # By functions that stay exact where all shares are nearly equal.
    mean_share = below_peak.expm1().mean(dim=(1, 2), keepdim=True).log1p()
    return below_peak > (mean_share if threshold == 1 else mean_share + math.log(threshold))


def _below_peak(maps: ScaledMaps, normalize: Normalize) -> Tensor:
    """Each normalised map less its peak, (B, h, w)."""
    if normalize == "none":
        return (maps.values - 1) * maps.peak
    below = maps.values - 1
    if normalize == "l2":
        return below / maps.norm
    if normalize == "sum":
        return below / maps.values.sum(dim=(1, 2), keepdim=True)
    return below if normalize == "max" else below / (1 - maps.lowest / maps.peak)  # "minmax"
