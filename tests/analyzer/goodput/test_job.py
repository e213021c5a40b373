"""Goodput of made-up jobs: every instant in one class, lost and repeated steps by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.goodput.attempts import AttemptRecord, attempt_records
from stepscope.analyzer.goodput.job import cluster_goodput, job_goodput, overlapping
from stepscope.analyzer.job_time.steps import job_steps
from stepscope.analyzer.job_time.training_time import training_time
from stepscope.core.documents.goodput import JobGoodput
from stepscope.core.documents.run_directory import Attempt, RankSteps, Step
from stepscope.core.vocabulary import GoodputClass as Kind
from stepscope.core.vocabulary import Notice
from tests.analyzer.job_time.records import MS, START_NS, rank_steps

STEP_MS = 50.0


@dataclass(frozen=True)
class Start:
    """One start of a made-up job, its times in ms since START_NS.

    Attributes:
        start: of the process; steps begin `start_up` later.
        end: None where it was killed.
        num_lines: of how many of its steps there is a line; None: of all.
        is_found: the next attempt found how far a killed one had come.
    """

    start: float
    start_up: float
    first: int
    num: int
    end: float | None
    ended: str | None
    world_size: int = 2
    is_given: bool = True
    num_lines: int | None = None
    is_found: bool = True


def _records(starts: Sequence[Start], run: str = "r", **more: Any) -> list[AttemptRecord]:
    ranks: dict[int, list[Step]] = {}
    attempts = []
    for number, one in enumerate(starts, 1):
        begin = START_NS + round(one.start * MS)
        end = None if one.end is None else START_NS + round(one.end * MS)
        given_first = one.first if one.is_given else None
        attempt = Attempt(begin, end, one.ended, one.world_size, given_first)
        first_ns = begin + round(one.start_up * MS)
        if end is None and one.num and one.is_found and number < len(starts):
            last_ns = first_ns + round(one.num * STEP_MS * MS)
            attempt = replace(attempt, last_step=one.first + one.num - 1, first_step_ns=first_ns, last_step_ns=last_ns)
        attempts.append(attempt)
        num_lines = one.num if one.num_lines is None else one.num_lines
        for rank in range(one.world_size if num_lines else 0):
            trained = rank_steps(
                rank,
                [STEP_MS] * num_lines,
                lambda _: dict(more),
                attempt=number,
                first=one.first,
                start_ns=first_ns,
            )
            ranks.setdefault(rank, []).extend(trained.steps)
    steps = job_steps([RankSteps(rank, of) for rank, of in sorted(ranks.items())])
    training = None if steps is None else training_time(steps, attempts)
    return attempt_records(run, steps, training, attempts)


def _job(starts: Sequence[Start], **more: Any) -> tuple[JobGoodput, list[Notice]]:
    return job_goodput("j", _records(starts, **more), on_device=True)


def _seconds(job: JobGoodput) -> dict[Kind, Any]:
    return {kind: pytest.approx(share * job.rank_seconds, abs=1e-6) for kind, share in job.time.items() if share}


THREE = [
    Start(0, 1_000, 0, 26, None, None),
    Start(3_300, 700, 20, 40, 6_500, "exception", 4),
    Start(8_000, 1_000, 50, 50, 11_600, "finished", 2),
]


def test_lost_steps_restart_and_recovery_of_a_job_that_fails_twice() -> None:
    job, notices = _job(THREE)
    assert notices == []
    assert [one.ended for one in job.attempts] == ["killed", "exception", "finished"]
    assert [one.num_lost_steps for one in job.attempts] == [6, 10, 0]
    assert [one.num_repeated_steps for one in job.attempts] == [0, 6, 10]
    assert [one.restart_seconds for one in job.attempts] == [None, pytest.approx(1.7), pytest.approx(3.0)]
    assert [one.recovery_seconds for one in job.attempts] == [None, pytest.approx(0.3), pytest.approx(0.5)]
    assert (job.num_kept_steps, job.num_lost_steps, job.num_repeated_steps) == (100, 16, 16)
    assert job.world_sizes == [2, 4, 2]
    assert job.checkpoint_advice.num_failures == 2
    assert _seconds(job) == {
        Kind.PRODUCTIVE_TRAINING: 2 * 20 * 0.05 + 4 * 30 * 0.05 + 2 * 50 * 0.05,
        Kind.START_UP: 2 * 1.0,
        Kind.RESTART: 4 * 0.7 + 2 * 1.0,
        Kind.NO_ATTEMPT: 2 * 1.0 + 4 * 1.5,
        Kind.LOST_STEPS: 2 * 6 * 0.05 + 4 * 10 * 0.05,
        Kind.SHUT_DOWN: 4 * 0.5 + 2 * 0.1,
    }


def test_steps_that_are_lost_twice_count_by_execution() -> None:
    starts = [
        Start(0, 100, 0, 30, None, None),
        Start(2_000, 100, 10, 15, None, None),
        Start(4_000, 100, 10, 40, 7_000, "finished"),
    ]
    job, _ = _job(starts)
    assert [one.num_lost_steps for one in job.attempts] == [20, 15, 0]
    assert [one.num_repeated_steps for one in job.attempts] == [0, 15, 20]
    assert job.attempts[1].recovery_seconds is None  # killed before it was as far
    assert job.attempts[2].recovery_seconds == pytest.approx(20 * 0.05)


def test_a_step_resumed_from_that_is_not_recorded_is_unknown_and_said() -> None:
    starts = [
        Start(0, 100, 0, 30, None, None, is_given=False),
        Start(2_000, 100, 30, 40, 5_000, "finished", is_given=False),
    ]
    job, notices = _job(starts)
    assert job.num_lost_steps is job.num_kept_steps is job.attempts[0].num_lost_steps is None
    assert job.attempts[1].recovery_seconds is job.attempts[1].num_repeated_steps is None
    assert [notice.code for notice in notices] == ["unknown_first_step"]


def test_the_loops_own_number_tells_it() -> None:
    """The records number on; `prof.step(step=...)` says that the job went back to step 20."""
    first = rank_steps(0, [STEP_MS] * 30, lambda i: {"figures": {"step": i + 1.0}})
    again = rank_steps(
        0, [STEP_MS] * 30, lambda i: {"figures": {"step": i - 9.0}}, attempt=2, first=30, start_ns=START_NS + 3_000 * MS
    )
    end_ns = START_NS + 1_500 * MS
    attempts = [Attempt(START_NS, end_ns, "signal", 1), Attempt(START_NS + 2_000 * MS, None, None, 1)]
    steps = job_steps([RankSteps(0, [*first.steps, *again.steps])])
    assert steps is not None
    records = attempt_records("r", steps, training_time(steps, attempts), attempts)
    job, notices = job_goodput("j", records, on_device=False)
    assert notices == []
    assert (job.num_lost_steps, job.num_kept_steps) == (10, 50)
    assert job.attempts[-1].ended is None
    assert job.device_kind == "cpu"


def test_a_number_that_begins_anew_in_each_epoch_is_not_the_steps() -> None:
    steps = job_steps([rank_steps(0, [STEP_MS] * 30, lambda i: {"figures": {"step": float(i % 10)}})])
    assert steps is not None
    attempts = [Attempt(START_NS, None, None, 1)]
    job, _ = job_goodput("j", attempt_records("r", steps, training_time(steps, attempts), attempts), on_device=False)
    assert (job.num_lost_steps, job.num_kept_steps) == (0, 30)


@pytest.mark.parametrize("num_lines", [0, 11, 26])
def test_steps_without_a_line_before_a_kill_count_where_the_next_attempt_found_them(num_lines: int) -> None:
    job, notices = _job([replace(THREE[0], num_lines=num_lines), *THREE[1:]])
    assert notices == []
    whole, _ = _job(THREE)
    assert [replace(one, recovery_seconds=None, restart_seconds=None) for one in job.attempts] == [
        replace(one, recovery_seconds=None, restart_seconds=None) for one in whole.attempts
    ]
    assert job.attempts[1].recovery_seconds == pytest.approx(whole.attempts[1].recovery_seconds)
    assert job.time == pytest.approx(whole.time)


def test_lines_that_a_kill_may_have_cost_are_said() -> None:
    job, notices = _job([replace(THREE[0], num_lines=23, is_found=False), *THREE[1:]])
    assert job.num_lost_steps == 13
    assert [notice.code for notice in notices] == ["unrecorded_steps"]
    assert "up to about 30 steps more" in notices[0].message


def test_attempts_that_left_nothing_are_unknown_time_and_said() -> None:
    starts = [THREE[0], Start(3_000, 0, 0, 0, None, None, 8), *THREE[1:]]
    job, notices = _job(starts)
    assert [notice.code for notice in notices] == ["attempt_without_records"]
    assert _seconds(job)[Kind.UNKNOWN] == 8 * 0.3
    assert job.num_lost_steps == 16
    assert job.attempts[1].first_step is None


def test_an_attempt_that_fails_before_its_first_step_is_restart_time() -> None:
    starts = [THREE[0], Start(2_500, 0, 0, 0, 2_800, "exception"), *THREE[1:]]
    seconds = _seconds(_job(starts)[0])
    assert seconds[Kind.RESTART] == 2 * 0.3 + 4 * 0.7 + 2 * 1.0
    assert seconds[Kind.NO_ATTEMPT] == 2 * (0.2 + 0.5) + 4 * 1.5


def test_attempts_that_overlap_are_unknown_there_and_said() -> None:
    starts = [Start(0, 100, 0, 30, None, None), Start(900, 100, 20, 30, 3_000, "finished")]
    job, notices = _job(starts)
    assert [notice.code for notice in notices] == ["overlapping_attempts"]
    assert job.wall_seconds == pytest.approx(3.0)
    assert sum(job.time.values()) == pytest.approx(1)
    assert job.num_lost_steps == 10


def test_an_attempt_that_run_json_lacks_is_told_by_its_steps() -> None:
    steps = job_steps([rank_steps(0, [STEP_MS] * 10)])
    assert steps is not None
    job, notices = job_goodput("j", attempt_records("r", steps, training_time(steps, []), []), on_device=False)
    assert [notice.code for notice in notices] == ["attempt_not_listed"]
    assert job.rank_seconds == pytest.approx(0.5)


def test_phases_skipped_steps_and_waits_have_their_classes() -> None:
    def more(index: int) -> dict[str, object]:
        fields: dict[str, object] = {"data_wait_ns": 5 * MS}
        if index % 10 == 9:
            fields["phases"] = {"checkpoint": 20 * MS}
        if index % 10 == 5:
            fields["phases"] = {"evaluation": 25 * MS}
        if index % 10 == 7:
            fields["figures"] = {"overflow": 1.0}
        return fields

    steps = job_steps([rank_steps(0, [STEP_MS] * 100, more)])
    assert steps is not None
    attempts = [Attempt(START_NS, START_NS + 5_000 * MS, "finished", 1)]
    job, _ = job_goodput("j", attempt_records("r", steps, training_time(steps, attempts), attempts), on_device=True)
    seconds = _seconds(job)
    assert seconds[Kind.CHECKPOINT] == 10 * 0.02
    assert seconds[Kind.EVALUATION] == 10 * 0.025
    assert seconds[Kind.SKIPPED_STEPS] == 10 * 0.05
    assert job.time[Kind.DATA_LOADING] * job.rank_seconds == pytest.approx(90 * 0.005, rel=0.1)
    assert job.checkpoints is not None
    assert (job.checkpoints.num_checkpoints, job.checkpoints.interval_steps) == (10, 10)
    assert job.checkpoints.seconds == pytest.approx(0.02)
    assert job.checkpoints.interval_seconds == pytest.approx(0.5)


def test_runs_at_work_at_the_same_time_are_told_apart_from_those_after_another() -> None:
    one, later = _records(THREE[:1], "a"), _records([Start(9_000, 100, 20, 30, None, None)], "b")
    assert not overlapping([*one, *later])
    assert overlapping([*one, *_records([Start(500, 100, 20, 30, None, None)], "b")])


def test_a_requeued_job_of_two_runs_is_one() -> None:
    killed = replace(THREE[0], end=2_300, ended="signal")
    records = [*_records([Start(9_000, 100, 20, 30, 12_000, "finished")], "b"), *_records([killed], "a")]
    job, notices = job_goodput("j", records, on_device=True)
    assert notices == []
    assert job.runs == ["a", "b"]
    assert (job.num_lost_steps, job.num_kept_steps) == (6, 50)
    assert job.attempts[0].ended == "signal"


_STARTS = st.lists(
    st.builds(
        lambda gap, start_up, first, num, tail, size, given: (gap, start_up, first, num, tail, size, given),
        st.floats(-3_000, 5_000),
        st.floats(0, 2_000),
        st.integers(0, 60),
        st.integers(0, 40),
        st.one_of(st.none(), st.floats(0, 1_000)),
        st.integers(1, 4),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(_STARTS, st.integers(0, 60 * MS), st.integers(0, 60 * MS))
def test_shares_add_up_to_one_whatever_the_records_say(
    drawn: list[tuple[float, float, int, int, float | None, int, bool]], wait_ns: int, save_ns: int
) -> None:
    now, starts = 0.0, []
    for gap, start_up, first, num, tail, size, given_first in drawn:
        start = max(now + gap, 0.0)
        work_end = start + start_up + num * STEP_MS
        end = None if tail is None else work_end + tail
        starts.append(Start(start, start_up, first, num, end, None if end is None else "signal", size, given_first))
        now = work_end
    job, _ = _job(starts, data_wait_ns=wait_ns, phases={"checkpoint": save_ns} if save_ns else {})
    assert min(job.time.values()) >= 0
    if job.rank_seconds:
        assert sum(job.time.values()) == pytest.approx(1)
    sizes = {one.world_size for one in starts}
    slack = 1e-6 * max(job.rank_seconds, 1)
    assert min(sizes) * job.wall_seconds - slack <= job.rank_seconds <= max(sizes) * job.wall_seconds + slack
    for one in job.attempts:
        assert one.num_lost_steps is None or 0 <= one.num_lost_steps <= one.num_steps
        assert one.restart_seconds is None or one.restart_seconds >= 0
    total = cluster_goodput([job, job])
    assert total.rank_seconds == pytest.approx(2 * job.rank_seconds)
    assert total.goodput == pytest.approx(job.goodput)
