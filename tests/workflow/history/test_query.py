"""Questions of commands: steps, units, figures of groups."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.metrics import MetricKind, Unit
from stepscope.store.history.embedded import history_at
from stepscope.store.history.questions import GroupBy, Question, SeriesAnswer, Statistic, TimeRange
from stepscope.store.history.writer import HistoryWriter
from stepscope.workflow.history.query import HistoryRequest, ask_history, groups_of, step_of, unit_of_values
from tests.store.history.blocks import MINUTE, POWER, START, block, gpu, labels

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


@pytest.mark.parametrize("has_jobs", [True, False])
def test_the_farthest_come_first(tmp_path: Path, has_jobs: bool) -> None:
    power = {0: 100.0, 1: 110.0, 2: 300.0, 3: 90.0}
    with HistoryWriter(tmp_path) as writer:
        for minute in range(1, 4):
            time = START + minute * MINUTE
            writer.append(block([gpu(index) for index in power], time, **{POWER: list(power.values())}))
            writer.append(block([labels(instance="n0:9400")], time, up=[1.0]))
            if has_jobs:
                jobs = [gpu(index, job_kind="slurm", job_id="7") for index in power]
                writer.append(block(jobs, time, stepscope_gpu_job_info=[1.0] * len(jobs)))
    request = HistoryRequest(Question(POWER), TimeRange(START, START + 3 * MINUTE, MINUTE), 2)
    found = ask_history(history_at(tmp_path), request)
    assert [(one.labels["gpu"], one.deviation) for one in found.groups] == [("2", 195.0), ("3", -15.0)]
    assert {one.labels.get("job_id") for one in found.groups} == {"7" if has_jobs else None}
    assert (found.num_groups, found.warnings) == (4, [])


def test_an_answer_without_jobs_says_so(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path) as writer:
        writer.append(block([gpu(0)], START + MINUTE, **{POWER: [100.0]}))
    request = HistoryRequest(Question(POWER, (GroupBy.USER,)), TimeRange(START, START + MINUTE, MINUTE))
    (notice,) = ask_history(history_at(tmp_path), request).warnings
    assert "one job's alone at the end of a step" in notice.message
