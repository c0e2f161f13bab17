"""Schedules at their ends, against torch's own, and within their bounds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft.config.schedule import (
    ConstantSchedule,
    CosineSchedule,
    OneCycleSchedule,
    PiecewiseLinearSchedule,
    StepSchedule,
)


def test_step_falls_at_each_milestone_and_not_before() -> None:
    schedule = StepSchedule(name="step", milestones=(200, 300), decay=0.1)
    factors = [schedule.factor(epoch, 400) for epoch in (0, 199.99, 200, 299.9, 300)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_cosine_equals_torch_at_every_step() -> None:
    epochs, steps = 3, 7
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * steps, eta_min=0.05)
    for number in range(epochs * steps):
        ours = CosineSchedule(final=0.05).factor(number / steps, epochs)
        assert ours == pytest.approx(reference.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        reference.step()


def test_one_cycle_starts_peaks_and_ends_as_configured() -> None:
    schedule = OneCycleSchedule(name="one-cycle", start=0.04, peak=0.25, final=0.001)
    assert schedule.factor(0, 40) == pytest.approx(0.04)
    assert schedule.factor(10, 40) == pytest.approx(1.0)
    assert schedule.factor(40, 40) == pytest.approx(0.001)
    rising = [schedule.factor(epoch, 40) for epoch in range(11)]
    falling = [schedule.factor(epoch, 40) for epoch in range(10, 41)]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)


@given(
    knots=st.lists(st.floats(0, 100, allow_subnormal=False), min_size=1, max_size=6, unique=True).map(sorted),
    factors=st.lists(st.floats(0, 4), min_size=6, max_size=6),
    epoch=st.floats(0, 120),
)
def test_lines_between_points_equal_numpy_s(knots: list[float], factors: list[float], epoch: float) -> None:
    own = factors[: len(knots)]
    ours = PiecewiseLinearSchedule(name="piecewise-linear", epochs=knots, factors=own).factor(epoch, 120)
    assert ours == pytest.approx(np.interp(epoch, knots, own), rel=1e-6, abs=1e-6)


def test_a_point_given_twice_is_a_jump() -> None:
    # PuzzleMix's first two phases on ImageNet: up to 1 and down to 0.125, then on from 0.2.
    points = {"epochs": (0, 8, 15, 15, 40), "factors": (0.5, 1, 0.125, 0.2, 0.02)}
    schedule = PiecewiseLinearSchedule(name="piecewise-linear", **points)
    factors = [schedule.factor(epoch, 100) for epoch in (0, 4, 8, 15 - 1e-9, 15, 27.5, 40, 99)]
    assert factors == pytest.approx([0.5, 0.75, 1, 0.125, 0.2, 0.11, 0.02, 0.02])


def test_warm_up_is_linear_and_then_over() -> None:
    schedule = ConstantSchedule(name="constant", warmup_epochs=5, warmup_start=0.1)
    assert [schedule.factor(epoch, 100) for epoch in (0, 2.5, 5, 100)] == pytest.approx([0.1, 0.55, 1, 1])
    assert ConstantSchedule(name="constant", warmup_epochs=0, warmup_start=0.1).factor(0, 100) == 1


@given(progress=st.floats(0, 1), peak=st.floats(0.01, 0.99), low=st.floats(0, 1))
def test_factors_stay_between_their_ends(progress: float, peak: float, low: float) -> None:
    epochs = 10
    for schedule in (
        CosineSchedule(final=low),
        OneCycleSchedule(name="one-cycle", start=low, peak=peak, final=low),
        ConstantSchedule(name="constant", warmup_epochs=5, warmup_start=low),
    ):
        factor = schedule.factor(progress * epochs, epochs)
        assert low - 1e-9 <= factor <= 1 + 1e-9
