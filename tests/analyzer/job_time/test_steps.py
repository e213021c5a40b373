"""Steps of several ranks run from latest end to latest end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.job_time.steps import HostLoss, JobSteps, job_steps
from stepscope.core.documents.run_directory import RankSteps, Step
from tests.analyzer.job_time.records import MS, rank_steps


def _joined(*ranks: RankSteps) -> JobSteps:
    steps = job_steps(ranks)
    assert steps is not None
    return steps


def test_no_record_is_no_table() -> None:
    assert job_steps([]) is None
    assert job_steps([RankSteps(0)]) is None


def test_a_rank_that_is_late_once_makes_one_step_long() -> None:
    late = rank_steps(0, [100, 430, 95, 100])
    waiting = rank_steps(1, [100, 95, 430, 100])
    assert _joined(late, waiting).period_ms.tolist() == [100, 430, 95, 100]


def test_an_attempt_begins_with_its_own_start() -> None:
    again = rank_steps(0, [10, 20], attempt=2, first=1, start_ns=900_000 * MS)
    steps = _joined(RankSteps(0, [*rank_steps(0, [10, 30]).steps, *again.steps]))
    assert steps.period_ms.tolist() == [10, 30, 10, 20]
    assert steps.attempt.tolist() == [1, 1, 2, 2]


def test_device_times_replace_the_host_that_runs_ahead() -> None:
    ahead = rank_steps(0, [50, 2, 2, 2], lambda index: {"device_ns": 40 * MS} if index else {})
    assert _joined(ahead).period_ms.tolist() == [50, 40, 40, 40]


def test_a_host_that_ran_ahead_in_the_first_step_makes_no_rank_late() -> None:
    on_device = lambda index: {"device_ns": 50 * MS} if index else {}  # noqa: E731
    ahead = rank_steps(1, [10, 90, *[50] * 10], on_device)  # its GPU was through with the first step after 50 ms too
    steps = job_steps([rank_steps(0, [50] * 12, on_device), ahead], {0: "a", 1: "a"}, is_one_clock=True)
    assert steps is not None
    assert not steps.host_ms[HostLoss.LATENESS].any()
    assert steps.end_ms[:, 0] == pytest.approx(steps.end_ms[:, 1])


@given(st.lists(st.integers(1, 80), min_size=2, max_size=12), st.integers(0, 5))
def test_no_step_is_done_on_the_gpu_before_the_host_has_ended_it(lengths: list[int], gap: int) -> None:
    one = rank_steps(0, [float(ms) for ms in lengths], lambda index: {"device_ns": 30 * MS} if index != gap else {})
    steps = job_steps([one])
    assert steps is not None
    host_ends = np.cumsum(lengths)
    assert (steps.end_ms[:, 0] >= host_ends - 1e-6).all()
    assert (np.diff(steps.end_ms[:, 0]) >= 0).all()


def test_exposed_waits_replace_the_hosts() -> None:
    def more(index: int) -> dict[str, object]:
        wait = {"data_wait_ns": 15 * MS, "exposed_data_wait_ns": 2 * MS}
        return wait | (
            {"phases": {"Validation": 9 * MS, "other": MS}, "exposed_phases": {"Validation": 7 * MS}} if index else {}
        )

    steps = _joined(rank_steps(0, [50, 50], more))
    assert steps.host_ms[HostLoss.DATA_WAIT].tolist() == [[2.0], [2.0]]
    assert steps.host_ms[HostLoss.EVALUATION].tolist() == [[0.0], [7.0]]
    assert steps.host_ms[HostLoss.CHECKPOINT].tolist() == [[0.0], [0.0]]


def test_skipped_updates_are_those_that_overflow_or_lose_their_loss() -> None:
    steps = [
        Step(0, 0, MS, figures={"overflow": 1.0}),
        Step(1, MS, 2 * MS, non_finite=["loss"]),
        Step(2, 2 * MS, 3 * MS, figures={"overflow": 0.0}, non_finite=["grad_norm"]),
    ]
    assert _joined(RankSteps(0, steps)).is_skipped.tolist() == [True, True, False]


@given(st.lists(st.lists(st.integers(1, 500), min_size=6, max_size=6), min_size=1, max_size=4))
def test_the_periods_add_up_to_the_time_from_first_start_to_last_end(lengths: list[list[int]]) -> None:
    steps = _joined(*(rank_steps(rank, own) for rank, own in enumerate(lengths)))
    assert steps.period_ms.sum() == pytest.approx(max(sum(own) for own in lengths))
    assert np.all(steps.period_ms >= 0)


def test_what_may_lie_within_a_phase_is_the_phases() -> None:
    def more(index: int) -> dict[str, Any]:
        phases = {"evaluation": 40 * MS, "validation": 38 * MS} if index == 3 else {}
        return {"data_wait_ns": (35 if index == 3 else 5) * MS, "phases": phases}

    host_ms = _joined(rank_steps(0, [100.0] * 4, more)).host_ms
    assert host_ms[HostLoss.EVALUATION].max() == 40
    assert host_ms[HostLoss.DATA_WAIT][:, 0].tolist() == [5, 5, 5, 5]


def _set_clock(rank: RankSteps, first: int, by_ms: float) -> RankSteps:
    by_ns = round(by_ms * MS)
    return RankSteps(
        rank.rank,
        [
            step if step.index < first else replace(step, start_ns=step.start_ns + by_ns, end_ns=step.end_ns + by_ns)
            for step in rank.steps
        ],
    )


@pytest.mark.parametrize("by_ms", [-3_600_000, -300, 2_000])
def test_a_clock_that_was_set_does_not_change_the_steps(by_ms: float) -> None:
    ranks = [rank_steps(rank, [90.0] * 20) for rank in range(2)]
    steps = _joined(_set_clock(ranks[0], 9, by_ms), _set_clock(ranks[1], 10, by_ms))
    assert steps.period_ms.tolist() == [90.0] * 20
    assert [notice.code for notice in steps.notices] == ["clock_set"]
    assert steps.clock_change_ms == {1: by_ms}


def test_a_clock_that_only_one_rank_has_set_back_does_not_change_the_steps() -> None:
    back = _set_clock(rank_steps(0, [90.0] * 30), 9, -3_600_000)
    for rank in (back, _set_clock(back, 20, 3_600_000)):
        steps = _joined(rank, rank_steps(1, [90.0] * 30), rank_steps(2, [90.0] * 30))
        assert steps.period_ms.tolist() == [90.0] * 30
        assert steps.are_ends_comparable
        assert [notice.code for notice in steps.notices] == ["clock_set"]


def test_a_pause_of_one_rank_of_a_host_is_no_change_of_its_clock() -> None:
    steps = _joined(_set_clock(rank_steps(0, [90.0] * 20), 9, 2_000), rank_steps(1, [90.0] * 20))
    assert steps.period_ms[9] == pytest.approx(2_090)
    assert steps.notices == []


def test_the_clock_of_one_of_two_hosts_was_set() -> None:
    ranks = [_set_clock(rank_steps(0, [90.0] * 20), 9, 2_000), rank_steps(1, [90.0] * 20)]
    steps = job_steps(ranks, {0: "a", 1: "b"})
    assert steps is not None
    assert steps.period_ms.tolist() == [90.0] * 20


def test_a_period_across_missing_lines_is_known_as_such() -> None:
    rank = rank_steps(0, [50.0] * 20, lambda index: {"device_ns": 40 * MS} if index else {})
    del rank.steps[8:12]
    steps = _joined(rank)
    assert np.flatnonzero(steps.is_after_gap).tolist() == [8]
    assert steps.period_ms[9:].tolist() == [40.0] * 7
    assert [notice.code for notice in steps.notices] == ["missing_steps"]


def test_steps_that_are_recorded_every_tenth_miss_none() -> None:
    steps = _joined(RankSteps(0, [Step(10 * place, place * MS, (place + 1) * MS) for place in range(8)]))
    assert not steps.is_after_gap.any()
