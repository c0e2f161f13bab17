"""How many cells stochastic selection grafts, and the temperature at which these are as many as top-k's (§5.4)."""

from torch import Tensor

from saligraft import checks
from saligraft.maps import ScaledMaps, scale_maps
from saligraft.masks.salient import Normalize, check_selection, select_salient

# Beyond these the selection no longer changes for maps of unit l2 norm: one cell, or those above the plain mean.
COLDEST, HOTTEST = 1e-4, 1e4


def expected_cells(
    saliency: Tensor,
    temperature: float,
    *,
    sampling: float = 0.5,
    threshold: float = 1.0,
    normalize: Normalize = "l2",
) -> float:
    """E_i[ΣM_i] = sampling · mean |S''(T)| over a set of maps: the k that a temperature amounts to (§5.4).

    Args:
        saliency: (B, h, w), at the grid that is grafted.
        temperature: T.
        sampling: E[p_B], the expected share of salient cells that P selects.
        threshold: As in `salient_regions`.
        normalize: As in `salient_regions`.

    Returns:
        Cells per map.

    Example:
        >>> import torch
        >>> expected_cells(torch.tensor([[[1.0, 9.0], [2.0, 1.0]]]), temperature=0.2)
        0.5
    """
    checks.saliency(saliency)
    check_selection(temperature, threshold, normalize)
    checks.probability("sampling", sampling)
    return _expected_cells(scale_maps(saliency), temperature, sampling, threshold, normalize)


def _expected_cells(
    maps: ScaledMaps, temperature: float, sampling: float, threshold: float, normalize: Normalize
) -> float:
    regions = select_salient(maps, temperature, threshold, normalize) & maps.usable
    return sampling * float(regions.sum(dim=(1, 2)).float().mean())


def matched_temperature(
    saliency: Tensor, k: int, *, sampling: float = 0.5, threshold: float = 1.0, normalize: Normalize = "l2"
) -> float:
    """Solve E_i[ΣM_i] = k for T over a set of maps: sampling · mean |S''(T)| = k (§5.4).

    |S''| grows with T, from the peaks alone to the cells above the mean, so bisection finds it; over a finite set of
    maps it grows in small steps, of which the nearest to k is returned. Where no T gives k, the error states the range.

    Args:
        saliency: (B, h, w), at the grid that is grafted.
        k: Cells per map.
        sampling: E[p_B], the expected share of salient cells that P selects.
        threshold: As in `salient_regions`.
        normalize: As in `salient_regions`.

    Returns:
        T.

    Example:
        >>> import torch, saligraft as sg
        >>> maps = torch.rand(64, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> temperature = sg.matched_temperature(maps, k=6)
        >>> round(float(sg.salient_regions(maps, temperature).float().sum(dim=(1, 2)).mean()))
        12
    """
    checks.saliency(saliency)
    check_selection(COLDEST, threshold, normalize)
    checks.whole_number("k", k, least=1)
    checks.probability("sampling", sampling)

    maps = scale_maps(saliency)

    def expected(temperature: float) -> float:
        return _expected_cells(maps, temperature, sampling, threshold, normalize)

    low, high = COLDEST, HOTTEST
    fewest, most = expected(low), expected(high)
    if not fewest <= k <= most:
        raise ValueError(f"k must be between {fewest:.3g} and {most:.3g} for these maps, got {k}")
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if expected(middle) < k else (low, middle)
    return min((low, high), key=lambda temperature: abs(expected(temperature) - k))
