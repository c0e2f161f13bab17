"""Learning curves as SVG."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.pages import Page

from saligraft.reports.plots import Curve, learning_curves, nice_ticks

CURVES = (
    Curve(name="Plain <training>", runs=((80.0, 50.0, 40.0), (82.0, 54.0, 42.0))),
    Curve(name="CutMix", runs=((70.0, 45.0, 40.5), (74.0, 47.0, 41.5))),
)


def test_mean_and_standard_error_over_seeds() -> None:
    assert CURVES[0].mean() == [81.0, 52.0, 41.0]
    assert CURVES[0].standard_error() == pytest.approx([1.0, 2.0, 1.0])
    assert Curve(name="one", runs=((3.0, 2.0),)).standard_error() == [0.0, 0.0]


def test_svg_names_every_curve_and_draws_a_point_per_epoch() -> None:
    page = Page(learning_curves(CURVES))
    assert "Plain <training>" in page.text
    assert "CutMix" in page.text
    lines = page.with_class("mean")
    assert len(lines) == 4  # each curve in the wide and in the narrow drawing
    assert all(len(line["points"].split()) == 3 for line in lines)
    assert len(page.with_class("band")) == 4


def test_a_single_seed_has_no_band_and_a_single_epoch_is_drawn() -> None:
    page = Page(learning_curves([Curve(name="one", runs=((30.0,),))]))
    assert not page.with_class("band")
    assert len(page.with_class("mean")) == 2


def test_names_at_the_ends_do_not_overlap() -> None:
    crowd = [Curve(name=f"m{i}", runs=((50.0, 20.0 + 0.1 * i),)) for i in range(5)]
    html = learning_curves(crowd)
    heights = sorted(float(y) for y in re.findall(r'class="name" x="\d+" y="([\d.]+)"', html))
    assert len(heights) == 5
    assert all(low + 30 <= high for low, high in itertools.pairwise(heights))


@given(st.floats(0, 100), st.floats(0, 100))
def test_ticks_are_even_and_span_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    top = high if high > low else low + 1
    assert ticks[0] <= low + 1e-6
    assert ticks[-1] >= top - 1e-6
    assert 2 <= len(ticks) <= 13
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3, abs=1e-9)


def test_wrong_curves_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one curve"):
        learning_curves([])
    with pytest.raises(ValueError, match="equally long"):
        Curve(name="x", runs=((1.0,), (1.0, 2.0)))
    with pytest.raises(ValueError, match="at least one value"):
        Curve(name="x", runs=())
