"""Questions of commands: steps, units, figures of groups."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.metrics import MetricKind, Unit
from stepscope.store.history.questions import SeriesAnswer, Statistic
from stepscope.workflow.history.query import groups_of, step_of, unit_of_values

_S = 10**9


@pytest.mark.parametrize(
    ("span", "step"),
    [
        (60, 15),
        (15 * 60, 15),
        (3600, 60),
        (6 * 3600, 600),
        (86400, 1800),
        (14 * 86400, 21600),
        (3650 * 86400, 61 * 86400),
    ],
)
def test_a_step_makes_some_sixty_values(span: int, step: int) -> None:
    assert step_of(span * _S) == step * _S


@given(st.integers(1, 10**10))
def test_a_step_never_makes_many_more(span: int) -> None:
    step = step_of(span * _S) // _S
    assert step >= 15
    assert span / step <= 60


@pytest.mark.parametrize(
    ("kind", "unit", "statistic", "expected"),
    [
        (MetricKind.GAUGE, Unit.WATTS, Statistic.MEAN, "watts"),
        (MetricKind.COUNTER, Unit.JOULES, Statistic.SUM, "joules per second"),
        (MetricKind.COUNTER, Unit.NONE, Statistic.MEAN, "per second"),
        (MetricKind.GAUGE, Unit.WATTS, Statistic.COUNT, ""),
        (MetricKind.GAUGE, Unit.NONE, Statistic.MEAN, ""),
        (None, None, Statistic.MEAN, None),
    ],
)
def test_units(kind: MetricKind | None, unit: Unit | None, statistic: Statistic, expected: str | None) -> None:
    assert unit_of_values(kind, unit, statistic) == expected


def test_figures_are_over_known_values() -> None:
    answer = SeriesAnswer(
        ((("gpu", "0"),), (("gpu", "1"),)),
        np.array([1, 2, 3, 4], np.int64),
        np.array([[math.nan, 4.0, 2.0, math.nan], [math.nan] * 4]),
    )
    first, second = groups_of(answer, compares=False)
    assert first.values == [None, 4.0, 2.0, None]
    assert (first.last, first.mean, first.min, first.max, first.deviation) == (2.0, 3.0, 2.0, 4.0, None)
    assert (second.last, second.mean, second.min, second.max) == (None, None, None, None)


def test_groups_are_compared_with_their_job() -> None:
    labels = tuple((("gpu", str(gpu)), ("job_id", job), ("job_kind", "slurm")) for gpu, job in enumerate("aaab"))
    answer = SeriesAnswer(
        labels, np.array([1, 2], np.int64), np.array([[10.0, 20.0], [10.0, 20.0], [6.0, 18.0], [1.0, 1.0]])
    )
    found = groups_of(answer, compares=True)
    assert [group.deviation for group in found] == [0.0, 0.0, -3.0, None]
    assert found[2].deviation_ratio == pytest.approx(-0.2)
