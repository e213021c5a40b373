"""Quantiles of Student's t match the printed tables; intervals match Welch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.compare.statistics import (
    RunFigure,
    estimate_difference,
    judge_difference,
    needed_runs,
    probability_within,
    summarise_steps,
    two_sided_t,
)
from stepscope.core.documents.comparison import Change

TABLE = [
    (0.05, 1, 12.706204736),
    (0.05, 2, 4.302652730),
    (0.05, 3, 3.182446305),
    (0.05, 10, 2.228138852),
    (0.05, 30, 2.042272456),
    (0.01, 4, 4.604094871),
    (0.10, 1, 6.313751515),
    (0.001, 5, 6.868826626),
    (0.05, math.inf, 1.959963985),
]
"""Level, degrees of freedom, critical value: any textbook."""


@pytest.mark.parametrize(("level", "freedom", "expected"), TABLE)
def test_critical_values_are_those_of_the_tables(level: float, freedom: float, expected: float) -> None:
    assert two_sided_t(level, freedom) == pytest.approx(expected, rel=1e-7)


@given(st.floats(1e-4, 0.9), st.floats(1.0, 500.0))
def test_the_quantile_is_the_inverse_of_the_probability(level: float, freedom: float) -> None:
    assert probability_within(two_sided_t(level, freedom), freedom) == pytest.approx(1 - level, abs=1e-7)


@given(st.floats(0.0, 300.0), st.floats(0.0, 300.0))
def test_the_quantile_falls_to_the_normal_one_however_large_the_freedom(one: float, other: float) -> None:
    less, more = 10 ** min(one, other), 10 ** max(one, other)
    few, many = two_sided_t(0.05, less), two_sided_t(0.05, more)
    assert few >= many * (1 - 1e-8)
    assert many >= two_sided_t(0.05, math.inf) * (1 - 1e-8)
    assert two_sided_t(0.05, 1e6 + 1) == pytest.approx(two_sided_t(0.05, 1e6), rel=3e-6)


@given(st.floats(1.0, 100.0))
def test_more_freedom_makes_narrower_intervals(freedom: float) -> None:
    assert two_sided_t(0.05, freedom + 1) < two_sided_t(0.05, freedom)


def figures(*values: float) -> list[RunFigure]:
    return [RunFigure(value) for value in values]


def test_sets_of_runs_give_welchs_interval() -> None:
    found = estimate_difference(figures(10, 11, 12), figures(20, 22, 24), assumed_spread=99.0)
    # variances 1 and 4 over 3 runs each: error sqrt(5/3); Welch-Satterthwaite: (5/3)^2 / ((1/3)^2/2 + (4/3)^2/2)
    assert (found.a, found.b) == (11.0, 22.0)
    assert found.error == pytest.approx(math.sqrt(5 / 3))
    assert found.freedom == pytest.approx(25 / 9 / (1 / 18 + 16 / 18))
    assert found.is_measured


def test_a_single_run_borrows_the_spread_of_the_other_side() -> None:
    found = estimate_difference(figures(10, 11, 12), figures(20), assumed_spread=99.0)
    assert found.error == pytest.approx(math.sqrt(1 + 1 / 3))
    assert found.freedom == 2.0


def test_two_single_runs_stand_on_the_assumed_spread() -> None:
    found = estimate_difference(figures(100), figures(102), assumed_spread=1.0)
    assert not found.is_measured
    assert found.half_width() == pytest.approx(1.959964 * math.sqrt(2), rel=1e-6)
    assert judge_difference(found, smallest=1.0).state is Change.NOT_SEEN
    assert (
        judge_difference(estimate_difference(figures(100), figures(103), assumed_spread=1.0), smallest=1.0).state
        is Change.SLOWER
    )


def test_noise_within_runs_widens_the_interval_and_costs_freedom() -> None:
    a, b = summarise_steps([100.0, 102.0]), summarise_steps([110.0, 112.0])
    assert (a.variance, a.freedom) == (3.0, 1.0)  # 1, times 3 for neighbours that are alike
    found = estimate_difference([a], [b], assumed_spread=0.0)
    assert found.freedom == pytest.approx(2.0)
    assert found.half_width() == pytest.approx(4.302653 * math.sqrt(6), rel=1e-6)


def test_a_sure_but_tiny_change_is_none() -> None:
    found = estimate_difference(figures(100, 100, 100.001), figures(100.2, 100.2, 100.201), assumed_spread=1.0)
    assert abs(found.b - found.a) > found.half_width()
    assert judge_difference(found, smallest=1.0).state is Change.NOT_SEEN


def test_correlated_steps_do_not_count_as_independent() -> None:
    random = np.random.default_rng(3)
    drift = np.repeat(random.normal(0.0, 1.0, 10), 100)
    steps = 100.0 + drift
    figure = summarise_steps(steps.tolist(), np.mean)
    naive = float(np.var(steps, ddof=1)) / len(steps)
    assert figure.variance > 50 * naive


def test_the_median_of_steps_ignores_a_rare_stall_and_the_mean_does_not() -> None:
    steps = [100.0] * 99 + [5000.0]
    assert summarise_steps(steps).value == 100.0
    assert summarise_steps(steps, np.mean).value == 149.0


def test_advice_on_runs_is_enough_and_no_more() -> None:
    found = estimate_difference(figures(100), figures(104), assumed_spread=1.0)
    assert needed_runs(found, 1.0) == 9  # t(16) x sqrt(2 / 9) = 0.9993, t(14) x sqrt(2 / 8) = 1.07
    assert needed_runs(found, 0.01) is None


@given(
    st.lists(st.floats(1, 1e6), min_size=1, max_size=6),
    st.lists(st.floats(1, 1e6), min_size=1, max_size=6),
    st.floats(0.001, 0.1),
)
def test_swapping_the_sides_mirrors_the_difference(a: list[float], b: list[float], spread: float) -> None:
    forth = estimate_difference(figures(*a), figures(*b), assumed_spread=spread)
    back = estimate_difference(figures(*b), figures(*a), assumed_spread=spread)
    assert back.b - back.a == pytest.approx(-(forth.b - forth.a))
    assert back.half_width() == pytest.approx(forth.half_width())
