"""Statistics over seeds: mean ± standard error, and paired differences with a 95 % interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """The mean of several seeds.

    Args:
        mean: Over seeds.
        standard_error: Standard error of the mean; NaN for a single seed.
        seeds: Number of seeds.
    """

    mean: float
    standard_error: float
    seeds: int

    def __str__(self) -> str:
        spread = "" if math.isnan(self.standard_error) else f" ± {self.standard_error:.2f}"
        return f"{self.mean:.2f}{spread}"

    @property
    def margin(self) -> float:
        """Half the width of the 95 % interval of Student's t; NaN for a single seed."""
        return math.nan if self.seeds == 1 else t_quantile((1 + CONFIDENCE) / 2, self.seeds - 1) * self.standard_error

    def with_interval(self) -> str:
        """The text with the 95 % interval, unless it is empty at two digits, or there is a single seed."""
        interval = f" [{self.mean - self.margin:.2f}, {self.mean + self.margin:.2f}]"
        return f"{self}{interval if self.margin >= 0.005 else ''}"


class Difference(NamedTuple):
    """A method minus a baseline on the same seeds.

    Args:
        mean: Mean of the differences.
        low: Lower end of the confidence interval; NaN for a single seed, and where all differences are the same.
        high: Its upper end.
        seeds: Number of pairs.
        verdict: "better", "worse" or "not resolved".
    """

    mean: float
    low: float
    high: float
    seeds: int
    verdict: str

    @property
    def interval(self) -> str:
        """The interval in words; a dash without one."""
        return "–" if math.isnan(self.low) else f"{self.low:+.2f} to {self.high:+.2f}"

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" [{self.low:+.2f}, {self.high:+.2f}]"
        return f"{self.mean:+.2f}{interval} {self.verdict}"


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate a mean and its standard error.

    Args:
        values: One per seed, at least one.

    Returns:
        The estimate.

    Example:
        >>> print(estimate([1.0, 2.0, 3.0]))
        2.00 ± 0.58
    """
    count = len(values)
    if not count:
        raise ValueError("values must hold at least one number, got none")
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, math.nan, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, math.sqrt(variance / count), count)


def paired_difference(
    method: Sequence[float], baseline: Sequence[float], *, higher_is_better: bool = False
) -> Difference:
    """Compare a method with a baseline by Student's t interval of the differences, seed by seed.

    Args:
        method: One value per seed.
        baseline: Values of the same seeds, in the same order.
        higher_is_better: True for accuracies; by default lower values win, as for errors.

    Returns:
        Method minus baseline. "better" or "worse" only if the 95 % interval excludes zero, which takes two seeds whose
        differences are finite and not the same: with no spread at all, as of errors on a handful of images, there is
        no interval.

    Example:
        >>> print(paired_difference([10.0, 11.0, 12.0], [12.0, 13.5, 14.0]))
        -2.17 [-2.88, -1.45] better
    """
    differences = [ours - theirs for ours, theirs in zip(method, baseline, strict=True)]
    mean_difference = estimate(differences)
    mean, count = mean_difference.mean, mean_difference.seeds
    if count == 1 or math.isclose(max(differences), min(differences), abs_tol=1e-9):  # up to rounding
        return Difference(mean, math.nan, math.nan, count, "not resolved")
    low, high = mean - mean_difference.margin, mean + mean_difference.margin
    verdict = "not resolved"
    if low > 0 or high < 0:  # false for NaN
        verdict = "better" if (mean > 0) == higher_is_better else "worse"
    return Difference(mean, low, high, count, verdict)


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution, by bisection.

    Args:
        probability: Probability in (0.5, 1).
        degrees: Degrees of freedom, at least 1.

    Returns:
        The t that lies above this share of the distribution.

    Example:
        >>> round(t_quantile(0.975, 4), 3)
        2.776
    """
    if not 0.5 < probability < 1 or degrees < 1:
        raise ValueError(f"need probability in (0.5, 1) and degrees >= 1, got {probability} and {degrees}")
    low, high = 0.0, 1.0
    while _t_cdf(high, degrees) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, degrees: int) -> float:
    """The distribution function for t >= 0 and whole degrees: Abramowitz & Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= square * power / (power + 1)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + inside / 2
