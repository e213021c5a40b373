"""Readings of an agent are compared with the work of their interval, and only where all of it is known."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.gpu_metrics.comparison import Comparison, Phase, Said, as_points, as_share
from benchmarks.gpu_metrics.loads import Work, cycles_within, done_within

_UUID = "GPU-1"
_NAN = float("nan")
_PHASE = Phase([[Work(10.0, 12.0, 200.0), Work(12.0, 16.0, 200.0)]])
"""100 a second, then 50."""


def _compared(readings: list[Said], samples: list[Said] | None = None) -> Comparison:
    watch: Any = SimpleNamespace(readings={_UUID: readings})
    smi: Any = SimpleNamespace(samples={_UUID: samples or []})
    return Comparison([_UUID], watch, smi)


def _said(values: dict[float, float], name: str = "rate") -> list[Said]:
    return [Said(time, {name: value}) for time, value in values.items()]


@pytest.mark.parametrize(
    ("begin", "end", "done"), [(10.0, 16.0, 400.0), (11.0, 13.0, 150.0), (0.0, 10.0, 0.0), (15.5, 99.0, 25.0)]
)
def test_what_was_done_within_a_time(begin: float, end: float, done: float) -> None:
    assert done_within(_PHASE.work[0], begin, end) == pytest.approx(done)


@pytest.mark.parametrize(
    ("begin", "end", "cycles"),
    [(2.0, 4.0, 20.0), (2.5, 4.5, 20.0), (3.5, 4.0, 5.0), (1.5, 3.0, _NAN), (3.0, 5.5, _NAN)],
)
def test_cycles_are_counted_from_the_end_of_one_work_to_the_next(begin: float, end: float, cycles: float) -> None:
    ends = {2.0: 100.0, 3.0: _NAN, 4.0: 120.0, 5.0: 130.0}
    work = [Work(end - 0.5, end, 1.0, count) for end, count in ends.items()]
    assert cycles_within(work, begin, end) == pytest.approx(cycles, nan_ok=True)
    assert math.isnan(cycles_within(work[:0], begin, end))


def test_an_average_is_of_the_second_before_its_reading() -> None:
    comparison = _compared(_said({10.0: 7.0, 11.0: 7.0, 12.0: 100.0, 13.0: 50.0, 14.0: 50.0, 17.0: 7.0}))
    comparison.average("load", "rate", _PHASE, as_share(0.01, 0.01))
    (row,) = comparison.rows
    assert row.is_right
    assert row.agent == row.truth == pytest.approx(200 / 3)


def test_a_ratio_is_over_the_most_that_could_be_done() -> None:
    comparison = _compared(_said({12.0: 0.5, 13.0: 0.32, 14.0: 0.25}))
    comparison.average("load", "rate", _PHASE, as_points, most=lambda *_: 200.0)
    assert comparison.rows[0].is_right
    assert comparison.rows[0].truth == pytest.approx((0.5 + 0.25 + 0.25) / 3)


def test_a_counter_grows_by_what_was_done_between_its_readings() -> None:
    comparison = _compared(_said({11.0: 5000.0, 12.0: 5100.0, 13.0: 5150.0, 14.0: 5200.0}, "total"))
    comparison.counted("load", "total", _PHASE, as_share(0.01, 0.01))
    assert comparison.rows[0].is_right
    assert comparison.rows[0].agent == pytest.approx(200 / 3)


def test_what_was_not_read_is_missed() -> None:
    comparison = _compared([])
    comparison.average("load", "rate", _PHASE, as_points)
    comparison.counted("load", "total", _PHASE, as_points)
    comparison.at_least("load", "rate", _PHASE, 0.5)
    assert all(row.is_missed and row.agent is None for row in comparison.rows)


def test_nvidia_smi_in_its_units() -> None:
    readings = [Said(11.0, {"sm_clock_hertz": 1.98e9, "memory_used_bytes": 2.0**30, "ecc_enabled": 1.0})]
    samples = [Said(11.2, {"clocks.sm": 1965.0, "memory.used": 2048.0, "pstate": 0.0})]
    comparison = _compared(readings, samples)
    comparison.as_smi("load", 10.0, 12.0)
    told = {row.what: (row.is_right, row.is_goal) for row in comparison.rows}
    assert told == {
        "load: sm_clock_hertz": (True, True),
        "load: memory_used_bytes": (False, True),
        "load: ecc_enabled": (False, False),
        "load: performance_state": (False, True),
    }
