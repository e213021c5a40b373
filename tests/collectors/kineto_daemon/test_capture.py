"""A capture comes about on the first request, whatever its processes do meanwhile; on a simulated libkineto."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.collectors.kineto_daemon.capture import (
    ENDED,
    IDLE,
    LOST,
    NO_STEP_YET,
    PROFILING,
    is_time_to_offer,
    poll_spread,
    start_multiple,
    steps_apart,
)
from stepscope.core.protocol.captures import CaptureProgress, CaptureState
from tests.collectors.kineto_daemon.simulated import SimulatedProcess, run


def last(told: list[tuple[float, str, CaptureProgress]], key: str = "a") -> CaptureProgress:
    return [progress for _, of, progress in told if of == key][-1]


def test_a_process_that_steps_is_captured_at_its_next_poll() -> None:
    told = run({"a": SimulatedProcess(phase=2.0)})
    assert [progress.state for _, _, progress in told] == [
        CaptureState.ACCEPTED,
        CaptureState.STARTED,
        CaptureState.DONE,
    ]
    assert told[-1][0] <= 3.5


def test_a_young_process_is_asked_until_its_loop_runs_and_never_twice() -> None:
    process = SimulatedProcess(phase=2.0, loop_from=31.0)
    told = run({"a": process})
    assert (CaptureState.ACCEPTED, NO_STEP_YET) in [(progress.state, progress.reason) for _, _, progress in told]
    assert last(told).state is CaptureState.DONE
    assert told[-1][0] <= 33.5  # the first poll after the first step
    assert len(process.started_at) == 1


def test_steps_that_outlast_many_polls_are_captured_once() -> None:
    process = SimulatedProcess(phase=1.0, step_seconds=24.0, loop_from=-10.0)
    told = run({"a": process})
    assert last(told).state is CaptureState.DONE
    assert len(process.started_at) == 1


def test_a_script_that_profiles_is_told_of_and_waited_for() -> None:
    told = run({"a": SimulatedProcess(profiled=((-10.0, 23.0),))})
    assert (CaptureState.ACCEPTED, PROFILING) in [(progress.state, progress.reason) for _, _, progress in told]
    assert last(told).state is CaptureState.DONE


def test_a_trace_that_the_scripts_own_profiler_ends_is_asked_for_again() -> None:
    process = SimulatedProcess(step_seconds=4.0, profiled=((9.0, 12.0),))
    assert last(run({"a": process})).state is CaptureState.DONE
    assert len(process.started_at) == 2


def test_a_process_that_traces_and_leaves_no_file_is_left() -> None:
    process = SimulatedProcess(step_seconds=4.0, profiled=tuple((t + 0.5, t + 0.6) for t in range(0, 900, 7)))
    assert last(run({"a": process})) == CaptureProgress(CaptureState.FAILED, LOST)
    assert len(process.started_at) <= 3


def test_a_process_that_ends_is_told_of_and_the_others_go_on() -> None:
    told = run({"a": SimulatedProcess(ends_at=1.0), "b": SimulatedProcess(phase=0.1)})
    assert last(told, "a") == CaptureProgress(CaptureState.FAILED, ENDED)
    assert last(told, "b").state is CaptureState.DONE


def test_a_launcher_among_them_holds_nobody_up() -> None:
    told = run({"a": SimulatedProcess(), "launcher": SimulatedProcess(loop_from=None)})
    assert last(told, "launcher") == CaptureProgress(CaptureState.REFUSED, IDLE)
    assert last(told, "a").state is CaptureState.DONE


def test_a_job_that_never_steps_is_given_up_after_two_minutes() -> None:
    told = run({"a": SimulatedProcess(loop_from=None)})
    assert last(told) == CaptureProgress(CaptureState.FAILED, f"given up: {NO_STEP_YET}")
    assert 120.0 < told[-1][0] < 121.0


def test_a_deadline_is_kept() -> None:
    told = run({"a": SimulatedProcess(loop_from=100.0)}, until=30.0)
    assert last(told).state is CaptureState.FAILED
    assert 30.0 < told[-1][0] < 30.5


def test_nobody_is_asked_before_the_begin() -> None:
    process = SimulatedProcess()
    run({"a": process}, begin=40.0)
    assert process.started_at[0] * process.step_seconds >= 40.0


def test_a_capture_that_is_left_asks_nobody_any_more() -> None:
    process = SimulatedProcess(loop_from=20.0)
    assert last(run({"a": process}, cancel_at=12.0)).state is CaptureState.CANCELLED
    assert process.started_at == []


def test_traces_of_too_few_steps_are_not_passed_off() -> None:
    process = SimulatedProcess(short_by=1)
    assert last(run({"a": process})).reason == "the trace holds 2 optimizer steps of 3, 4 times"
    assert len(process.started_at) == 4


@pytest.mark.parametrize("num_steps", [1, 3])
def test_ranks_that_started_apart_are_asked_again_with_what_is_known_of_their_steps(num_steps: int) -> None:
    ranks = {"a": SimulatedProcess(phase=0.0, step_seconds=0.02), "b": SimulatedProcess(phase=1.0, step_seconds=0.02)}
    told = run(ranks, num_steps=num_steps)
    assert {last(told, key).state for key in ranks} == {CaptureState.DONE}
    firsts = [rank.started_at for rank in ranks.values()]
    assert 2 <= len(firsts[0]) == len(firsts[1]) <= 4
    assert firsts[0][0] != firsts[1][0]
    assert firsts[0][-1] == firsts[1][-1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 5), min_size=2, max_size=8),
    st.floats(0.01, 3.0),
    st.floats(-1000, 20),
    st.integers(1, 5),
)
def test_what_is_done_are_traces_of_the_same_steps(
    phases: list[float], step_seconds: float, loop_from: float, num_steps: int
) -> None:
    ranks = {
        str(number): SimulatedProcess(phase=phase, step_seconds=step_seconds, loop_from=loop_from)
        for number, phase in enumerate(phases)
    }
    told = run(ranks, num_steps=num_steps, until=2000.0)
    states = {last(told, key).state for key in ranks}
    if states == {CaptureState.DONE}:
        assert len({rank.started_at[-1] for rank in ranks.values()}) == 1
    else:
        assert states == {CaptureState.FAILED}
        assert "steps apart, 4 times" in (last(told, "0").reason or "")


POLLS = st.lists(st.floats(0, 1000), min_size=1, max_size=16)


@given(POLLS)
def test_the_spread_is_the_shortest_arc_with_all_polls(polls: list[float]) -> None:
    shortest = min(max((other - poll) % 5.0 for other in polls) for poll in polls)
    assert abs(poll_spread(polls, 5.0) - shortest) < 1e-6 or shortest > 5.0 - 1e-6  # a phase of just under one turn


def test_asking_begins_in_the_longest_pause() -> None:
    assert poll_spread([0.1, 5.3, 14.9], 5.0) < 0.41
    assert is_time_to_offer([4.9, 5.1, 5.3], 5.0, 0.05)
    assert not is_time_to_offer([9.9, 5.1, 5.3], 5.0, 0.05)  # one of them has just asked


@given(st.integers(2, 16), st.floats(0, 5), st.floats(1e-4, 100))
def test_a_start_falls_between_the_questions_at_most_once_in_ten_attempts(
    num_ranks: int, spread_seconds: float, step_seconds: float
) -> None:
    multiple = start_multiple(num_ranks, spread_seconds, step_seconds)
    assert start_multiple(num_ranks, spread_seconds, step_seconds, 1) in (multiple, 2 * multiple)
    assert multiple >= 2
    assert multiple & (multiple - 1) == 0
    assert spread_seconds <= 0.1 * multiple * step_seconds * 1.0001 or multiple == 1 << 16


def test_a_rank_alone_starts_at_its_next_step() -> None:
    assert start_multiple(1, 0.0, None) == start_multiple(1, 0.0, 0.1) == 1


def test_the_first_attempt_of_several_knows_no_step_yet() -> None:
    assert start_multiple(4, 0.3, None) == 8


def test_steps_apart_are_counted_by_the_machines_clock() -> None:
    assert steps_apart({"a": 1_000_000_000, "b": 1_009_000_000}, 0.02) == 0
    assert steps_apart({"a": 1_000_000_000, "b": 1_160_000_000}, 0.02) == 8
