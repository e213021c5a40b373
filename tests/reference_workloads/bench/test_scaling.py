"""Scaling: the serial share of the work is estimated from the steps, with an interval that contains it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numpy")

from stepscope.reference_workloads.bench.result import (
    ScalePoint,
    fit_scaling,
    median_over_ranks,
    percentile_95,
    scale_point,
    scaling_efficiency,
)


def _points(steps: dict[int, float]) -> list[ScalePoint]:
    return [scale_point(scale, [[step] * 10]) for scale, step in steps.items()]


@given(serial=st.floats(0.0, 0.9), step=st.floats(1.0, 1e4))
def test_amdahl_is_found_again(serial: float, step: float) -> None:
    fit = fit_scaling(_points({n: step * (serial + (1 - serial) / n) for n in (1, 2, 4, 8)}), "strong")
    assert fit is not None
    assert fit.law == "amdahl"
    assert fit.serial_fraction == pytest.approx(serial, abs=1e-6)
    assert fit.interval[0] < serial < fit.interval[1]
    assert fit.misfit == pytest.approx(0, abs=1e-6)


@given(serial=st.floats(0.0, 0.9), step=st.floats(1.0, 1e4))
def test_gustafson_is_found_again(serial: float, step: float) -> None:
    fit = fit_scaling(_points({n: step / (1 - serial + serial / n) for n in (1, 2, 8)}), "weak")
    assert fit is not None
    assert fit.law == "gustafson"
    assert fit.serial_fraction == pytest.approx(serial, abs=1e-6)


def test_two_scales_tell_no_misfit_and_one_no_law() -> None:
    two = fit_scaling(_points({1: 100.0, 2: 60.0}), "strong")
    assert two is not None
    assert two.serial_fraction == pytest.approx(0.2)
    assert two.misfit is None
    # 1.5 % assumed between runs: d(s)/s-independent terms give sqrt((2 * 60)^2 + (2 * 60)^2) * 1.5 % of 100 ms
    half = 1.96 * 0.015 * 2 * 60 * 2**0.5 / 100
    assert two.interval[1] - two.serial_fraction == pytest.approx(half, rel=0.01)
    assert fit_scaling(_points({1: 100.0}), "strong") is None


def test_scales_that_follow_no_law_widen_the_interval() -> None:
    lawful = fit_scaling(_points({1: 100.0, 2: 55.0, 4: 32.5, 8: 21.25}), "strong")
    lawless = fit_scaling(_points({1: 100.0, 2: 80.0, 4: 32.5, 8: 40.0}), "strong")
    assert lawful is not None
    assert lawless is not None
    assert lawless.misfit is not None
    assert lawless.misfit > 0.2
    assert lawless.interval[1] - lawless.interval[0] > 3 * (lawful.interval[1] - lawful.interval[0])


def test_three_runs_measure_their_own_spread() -> None:
    point = scale_point(1, [[99.0] * 5, [100.0] * 5, [101.0] * 5])
    assert (point.step_ms, point.freedom) == (100.0, 2.0)
    assert point.variance == pytest.approx(1 / 3)  # of runs 1, over three of them
    assumed = scale_point(1, [[100.0] * 5])
    assert assumed.variance == pytest.approx(1.5**2)


def test_efficiency_and_its_interval() -> None:
    one, two = _points({1: 100.0, 2: 104.0})
    share, low, high = scaling_efficiency(two, one, rate=1 / 104, smallest_rate=1 / 100)
    assert share == pytest.approx(0.9615, abs=1e-4)
    assert high - share == pytest.approx(1.96 * 0.015 * 2**0.5 * share, rel=0.01)
    assert share - low == pytest.approx(high - share)
    assert scaling_efficiency(one, one, rate=0.01, smallest_rate=0.01) == (1.0, 1.0, 1.0)


def test_percentile_and_median_over_ranks() -> None:
    assert percentile_95(list(range(101))) == pytest.approx(95)
    assert percentile_95([1.0, 2.0]) == pytest.approx(1.95)
    assert median_over_ranks([[1.0, 9.0], [3.0, 2.0], [2.0, 4.0]]) == [2.0, 4.0]


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_runs_that_repeat_to_the_last_digit_are_fitted_too(scaling: str) -> None:
    step = {scale: 10.0 / scale if scaling == "strong" else 10.0 for scale in (1, 2, 4)}
    points = [scale_point(scale, [[step[scale]] * 5] * 3) for scale in step]
    fit = fit_scaling(points, scaling)
    assert fit is not None
    assert fit.interval[0] <= fit.serial_fraction <= fit.interval[1]
    assert fit.interval[1] - fit.interval[0] < 1e-3
    share, low, high = scaling_efficiency(points[1], points[0], rate=0.2, smallest_rate=0.1)
    assert low < share < high
