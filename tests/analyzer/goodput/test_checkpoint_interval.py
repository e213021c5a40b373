"""How often to write a checkpoint, from the cost of one and the failures seen."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.goodput.checkpoint_interval import checkpoint_advice, optimum_seconds, poisson_bounds


def test_bounds_of_a_count_are_garwoods() -> None:
    """From tables of the chi-square distribution: 90%, both sides."""
    expected = {0: (0.0, 2.996), 1: (0.0513, 4.744), 3: (0.8177, 7.754), 10: (5.425, 16.962)}
    for number, bounds in expected.items():
        assert poisson_bounds(number) == pytest.approx(bounds, abs=2e-3)


def test_the_optimum_is_dalys_and_near_youngs_for_cheap_checkpoints() -> None:
    assert optimum_seconds(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=2e-3)
    assert optimum_seconds(300.0, 6 * 3600.0) == pytest.approx(3_405.5, rel=1e-3)
    assert optimum_seconds(100.0, 40.0) == 40.0


@given(st.floats(0.1, 1e3), st.floats(10.0, 1e7))
def test_no_other_interval_loses_clearly_less(cost: float, between: float) -> None:
    """By the exact expectation for failures at random: exp(interval + cost) trained for each interval kept."""

    def loss(interval: float) -> float:
        return between * math.expm1(min((interval + cost) / between, 700.0)) / interval

    best = optimum_seconds(cost, between)
    assert best > 0
    if cost < between / 2:
        assert loss(best) <= 1.02 * min(loss(best * factor) for factor in (0.5, 0.7, 0.9, 1.1, 1.4, 2.0))


def test_without_a_failure_only_what_is_too_often_is_known() -> None:
    advice = checkpoint_advice(0, 3_600.0, 2.0, 0.5)
    assert advice.seconds is advice.steps is advice.high_seconds is advice.seconds_between_failures is None
    assert advice.low_seconds == pytest.approx(optimum_seconds(2.0, 3_600 / 2.9957), rel=1e-3)


def test_without_a_checkpoint_nothing_is_advised() -> None:
    advice = checkpoint_advice(3, 3_600.0, None, 0.5)
    assert advice.seconds_between_failures == 1_200.0
    assert advice.seconds is advice.low_seconds is advice.high_seconds is None


def test_few_failures_give_a_wide_interval_around_the_advice() -> None:
    few, many = checkpoint_advice(3, 3_600.0, 2.0, 0.5), checkpoint_advice(300, 360_000.0, 2.0, 0.5)
    for advice in (few, many):
        assert advice.seconds is not None
        assert advice.seconds == pytest.approx(optimum_seconds(2.0, 1_200.0))
        assert advice.steps == round(advice.seconds / 0.5)
        assert advice.low_seconds is not None
        assert advice.high_seconds is not None
        assert advice.low_seconds < advice.seconds < advice.high_seconds
    assert few.high_seconds is not None
    assert many.high_seconds is not None
    assert few.high_seconds > 1.3 * many.high_seconds
