"""The temperature at which stochastic selection takes as many cells as top-k does (§5.4, the fair ablation)."""

from __future__ import annotations

from torch import Tensor

from saligraft import checks
from saligraft.masks.salient import Normalize, salient_regions

# Beyond these the selection no longer changes for maps of unit l2 norm: one cell, or those above the plain mean.
COLDEST, HOTTEST = 1e-4, 1e4


def matched_temperature(
    saliency: Tensor, k: int, *, sampling: float = 0.5, threshold: float = 1.0, normalize: Normalize = "l2"
) -> float:
    """Solve E_i[ΣM_i] = k for T over maps (B, h, w): `sampling` · mean |S''(T)| = k; sampling is E[p_B] (§5.4).

    |S''| grows with T, from the peaks alone to the cells above the mean, so bisection finds it. Where no T gives k, the
    error says what can be had. Over a finite set of maps the count moves in small steps; the nearest is taken.
    """
    checks.saliency(saliency)
    checks.whole_number("k", k, least=1)
    checks.probability("sampling", sampling)

    def expected(temperature: float) -> float:
        regions = salient_regions(saliency, temperature, threshold, normalize)
        return sampling * float(regions.sum(dim=(1, 2)).float().mean())

    low, high = COLDEST, HOTTEST
    fewest, most = expected(low), expected(high)
    if not fewest <= k <= most:
        raise ValueError(
            f"k must be one that some temperature gives, between {fewest:.3g} and {most:.3g} for these maps, got {k}"
        )
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if expected(middle) < k else (low, middle)
    return min((low, high), key=lambda temperature: abs(expected(temperature) - k))
