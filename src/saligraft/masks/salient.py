"""Which cells are salient: softmax with temperature, thresholded at its mean (§4.1, Eq. 3-4)."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from saligraft import checks

Normalize = Literal["l2", "max", "sum", "minmax", "none"]
NORMALIZATIONS: tuple[str, ...] = get_args(Normalize)


def salient_regions(
    saliency: Tensor, temperature: float = 0.2, threshold: float = 1.0, normalize: Normalize = "l2"
) -> Tensor:
    """S'': the cells whose softmax share S' exceeds `threshold` times the mean share (Eq. 3-4).

    A flat map selects nothing; so does one that is not finite, or negative somewhere.

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
    return select_salient(saliency, temperature, threshold, normalize)


def check_selection(temperature: float, threshold: float, normalize: str) -> None:
    """The options of `salient_regions`."""
    checks.positive("temperature", temperature)
    checks.not_negative("threshold", threshold)
    checks.one_of("normalize", normalize, NORMALIZATIONS)


def select_salient(saliency: Tensor, temperature: float, threshold: float, normalize: Normalize) -> Tensor:
    """`salient_regions` without validation.

    The mean share σ_mean is 1/(hw), so S' > t σ_mean is compared in log space as S/T - log mean exp(S/T) > log t.
    """
    usable = checks.usable_maps(saliency)[:, None, None]
    if threshold == 0:
        return usable.expand(saliency.shape)
    below_peak = _below_peak(normalized(saliency, normalize))
    scaled = below_peak / max(temperature, torch.finfo(below_peak.dtype).tiny)
    # log(S' / σ_mean) = S/T - log mean exp(S/T), by functions that stay exact where all shares are nearly equal.
    log_share = scaled - scaled.expm1().mean(dim=(1, 2), keepdim=True).log1p()
    return (log_share > math.log(threshold)) & usable


def normalized(saliency: Tensor, normalize: Normalize) -> Tensor:
    """Bring each map (B, h, w) to a common scale before the softmax, float32 or wider; an all-zero map stays zero.

    Args:
        saliency: (B, h, w).
        normalize: As in `salient_regions`.
    """
    saliency = checks.at_least_float32(saliency)
    if normalize == "none":
        return saliency
    if normalize == "minmax":
        saliency = saliency - saliency.amin(dim=(1, 2), keepdim=True)
    saliency = _divided(saliency, saliency.abs().amax(dim=(1, 2), keepdim=True))  # first, so that no square overflows
    if normalize == "l2":
        return _divided(saliency, torch.linalg.vector_norm(saliency, dim=(1, 2), keepdim=True))
    if normalize == "sum":
        return _divided(saliency, saliency.sum(dim=(1, 2), keepdim=True))
    return saliency


def _below_peak(level: Tensor) -> Tensor:
    """Each map less its peak; 0 throughout where the map is flat.

    Resizing a flat map leaves differences of some ulps, which must not pass for saliency.
    """
    peak, lowest = level.amax(dim=(1, 2), keepdim=True), level.amin(dim=(1, 2), keepdim=True)
    flat = peak - lowest <= 8 * torch.finfo(level.dtype).eps * peak.abs()
    return torch.where(flat, 0.0, level - peak)


def _divided(saliency: Tensor, scale: Tensor) -> Tensor:
    return saliency / torch.where(scale == 0, 1.0, scale)
