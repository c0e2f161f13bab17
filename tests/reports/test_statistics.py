"""Statistics over seeds, against SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from saligraft.reports.statistics import Estimate, estimate, paired_difference, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 100])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.975, 0.9995])
def test_quantiles_are_students(degrees: int, probability: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-9)


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_intervals_are_those_of_the_paired_t_test(seeds: int) -> None:
    draws = np.random.default_rng(seeds)
    method, baseline = draws.normal(50, 1, seeds), draws.normal(51, 1, seeds)
    expected = stats.ttest_rel(method, baseline).confidence_interval(0.95)
    found = paired_difference(method.tolist(), baseline.tolist())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(method.mean() - baseline.mean())
    assert found.seeds == seeds


def test_the_estimate_is_mean_and_standard_error() -> None:
    values = [51.0, 49.5, 50.25]
    assert estimate(values) == pytest.approx((np.mean(values), stats.sem(values), 3))
    assert str(Estimate(50.0, 0.125, 3)) == "50.00 ± 0.12"


@pytest.mark.parametrize(
    ("method", "baseline", "higher_is_better", "verdict"),
    [
        ([10.0, 11.0, 12.0], [12.0, 13.1, 14.0], False, "better"),
        ([10.0, 11.0, 12.0], [12.0, 13.1, 14.0], True, "worse"),
        ([12.0, 13.1, 14.0], [10.0, 11.0, 12.0], False, "worse"),
        ([12.0, 13.1, 14.0], [10.0, 11.0, 12.0], True, "better"),
        ([10.0, 14.0], [12.0, 12.1], False, "not resolved"),
        ([10.0, 10.0], [10.0, 10.0], False, "not resolved"),
        ([10.0, 10.0], [12.5, 12.5], False, "not resolved"),  # no spread, no interval
        ([0.1 + 0.2, 10.0], [0.0, 9.7], False, "not resolved"),  # none but rounding
        ([10.0], [90.0], False, "not resolved"),  # one seed resolves nothing
        ([10.0, math.nan, 10.5], [12.0, 13.1, 14.0], False, "not resolved"),
        ([10.0, math.nan, 10.5], [12.0, 13.1, 14.0], True, "not resolved"),
        ([math.inf, 10.0, 11.0], [1.0, 2.0, 3.0], False, "not resolved"),
        ([math.inf, 10.0, 11.0], [1.0, 2.0, 3.0], True, "not resolved"),
    ],
)
def test_verdicts(method: list[float], baseline: list[float], higher_is_better: bool, verdict: str) -> None:
    assert paired_difference(method, baseline, higher_is_better=higher_is_better).verdict == verdict


def test_one_seed_has_no_interval() -> None:
    found = paired_difference([10.0], [12.0])
    assert math.isnan(found.low)
    assert str(found) == "-2.00 not resolved"
    assert found.interval == paired_difference([10.0, 11.0], [12.0, 13.0]).interval == "–"
    assert paired_difference([10.0, 11.0, 12.0], [12.0, 13.5, 14.0]).interval == "-2.88 to -1.45"
    assert str(estimate([10.0])) == "10.00"


def test_no_values_and_seeds_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        estimate([])
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="degrees"):
        t_quantile(0.975, 0)


def test_only_values_that_vary_have_an_interval() -> None:
    assert estimate([1.0, 2.0, 3.0]).with_interval() == "2.00 ± 0.58 [-0.48, 4.48]"
    assert estimate([2.0, 2.0]).with_interval() == "2.00 ± 0.00"
    assert estimate([2.0]).with_interval() == "2.00"
