"""Ranks that ask seconds apart start at the same step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.kineto_daemon.alignment import is_time_to_offer, spread, start_multiple, steps_apart

POLLS = st.lists(st.floats(0, 1000), min_size=1, max_size=16)


@given(POLLS)
def test_the_spread_is_the_shortest_arc_with_all_polls(polls: list[float]) -> None:
    shortest = min(max((other - poll) % 5.0 for other in polls) for poll in polls)
    assert abs(spread(polls, 5.0) - shortest) < 1e-6 or shortest > 5.0 - 1e-6  # a phase of just under one turn


def test_asking_begins_in_the_longest_pause() -> None:
    assert spread([0.1, 5.3, 14.9], 5.0) < 0.41
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
