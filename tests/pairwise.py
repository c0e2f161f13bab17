"""Cover combinations of test parameters pair by pair, where their whole product would be many times as large."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def all_pairs(**factors: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test so that any two values of different factors meet in at least one of its cases.

    Values may be `pytest.param(value, id=..., marks=...)`. The cases are the same in every run.
    """
    columns = [[value if _is_param(value) else pytest.param(value) for value in values] for values in factors.values()]
    rows = list(product(*(range(len(column)) for column in columns)))
    missing = {pair for row in rows for pair in _pairs(row)}
    cases = []
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        chosen = [column[place] for column, place in zip(columns, best, strict=True)]
        cases.append(
            pytest.param(
                *(value for param in chosen for value in param.values),
                id="-".join(param.id or str(param.values[0]) for param in chosen),
                marks=[mark for param in chosen for mark in param.marks],
            )
        )
    return pytest.mark.parametrize(list(factors), cases)


def _pairs(row: tuple[int, ...]) -> set[Any]:
    return set(combinations(enumerate(row), 2))


def _is_param(value: object) -> bool:
    return isinstance(value, type(pytest.param()))
