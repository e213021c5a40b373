"""Are quantiles of Student's t those of the printed tables?"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.compare.student import probability_within, two_sided_t

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
