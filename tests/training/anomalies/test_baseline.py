"""Baseline: usual value and scatter are those of the last values."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.training.anomalies.detectors import RollingBaseline, median, median_and_sigma, median_and_upward_sigma

_VALUES = st.lists(st.floats(-1e6, 1e6).map(lambda value: round(value, 9)), min_size=1, max_size=100)
"""No subnormal numbers: their products with a power of two are not exact."""


@given(_VALUES)
def test_the_median_is_the_lower_one(values: list[float]) -> None:
    assert median(values) == statistics.median_low(values)


@given(_VALUES, st.sampled_from([0.25, 2.0, 1024.0]))
def test_scatter_grows_with_the_unit_and_ignores_the_level(values: list[float], unit: float) -> None:
    for measure in (median_and_sigma, median_and_upward_sigma):
        middle, sigma = measure(values)
        assert measure([value * unit for value in values]) == (middle * unit, sigma * unit)
        assert sigma >= 0


def test_of_normal_noise_both_are_the_standard_deviation() -> None:
    values = statistics.NormalDist(3.0, 2.0).samples(20_000, seed=1)
    for measure in (median_and_sigma, median_and_upward_sigma):
        assert measure(values) == pytest.approx((3.0, 2.0), rel=0.03)


def test_noise_skewed_upwards_is_not_thought_quieter_than_it_is() -> None:
    values = [0.0] * 80 + [1.0] * 20
    assert median_and_sigma(values) == (0.0, 0.0)
    assert median_and_upward_sigma(values)[1] == pytest.approx(1 / 1.2816)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_a_baseline_is_that_of_the_window_when_it_changed_last(values: list[float]) -> None:
    baseline = RollingBaseline(window=50, at_least=10)
    changed = [place for place, value in enumerate(values, 1) if baseline.add(value)]
    assert changed == list(range(10, len(values) + 1, 32))
    assert baseline.is_known == bool(changed)
    if changed:
        window = values[max(changed[-1] - 50, 0) : changed[-1]]
        assert (baseline.usual, baseline.sigma) == median_and_upward_sigma(window)
    baseline.clear()
    assert not baseline.is_known
    assert [baseline.add(1.0) for _ in range(10)] == [False] * 9 + [True]
