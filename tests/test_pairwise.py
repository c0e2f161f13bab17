"""The helper that replaces products of test parameters."""

from itertools import combinations, product

import pytest
from tests.pairwise import all_pairs

FACTORS = {"a": ["x", "y", "z"], "b": [1, 2], "c": [True, False], "d": ["p", "q", "r"]}


def test_every_two_values_meet_in_few_cases() -> None:
    cases = all_pairs(**FACTORS).args[1]
    for (first, firsts), (second, seconds) in combinations(enumerate(FACTORS.values()), 2):
        met = {(case.values[first], case.values[second]) for case in cases}
        assert met == set(product(firsts, seconds))
    assert len(cases) <= 10  # 9 at least, of 36 in the product


def test_ids_and_marks_are_kept() -> None:
    cases = all_pairs(a=[pytest.param(1, id="one", marks=pytest.mark.slow), 2], b=["left", "right"]).args[1]
    assert {case.id for case in cases} == {"one-left", "one-right", "2-left", "2-right"}
    assert all(bool(case.marks) == (case.values[0] == 1) for case in cases)
