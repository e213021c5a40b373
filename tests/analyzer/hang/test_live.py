"""A live hang is distinguished from a wait for a busy rank, and its culprits are named while it lasts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.hang import explain_hang
from stepscope.analyzer.hang.live import fresh_states, live_hang
from stepscope.core.documents.hang import STALE_SECONDS, HangKind, HangReport, LiveHang, LiveHangState, RankState
from tests.analyzer.hang.recorders import WORLD, Job

_S = 1_000_000_000
_RANKS = range(4)


def _state(rank: int, **fields: object) -> RankState:
    state = RankState(
        rank=rank,
        host="h",
        step=7,
        since_ns=100 * _S,
        seen_ns=104 * _S,
        age_seconds=16.0,
        limit_seconds=12.0,
        is_still=True,
        doing="",
        where="all_reduce",
        is_in_collective=True,
    )
    return replace(state, **fields)  # type: ignore[arg-type]


def _apart(rank: int, **fields: object) -> RankState:
    return _state(rank, **({"where": "fetch (data.py:3)", "is_in_collective": False} | fields))


def _report(culprit: Sequence[int] = (2,), without: Sequence[int] = ()) -> HangReport:
    job = Job({WORLD: tuple(_RANKS)}).call(WORLD)
    job.call(WORLD, [rank for rank in _RANKS if rank not in culprit], done=False)
    return explain_hang(job.dumps(without=without), world_size=4)


def _told(
    states: Iterable[RankState], report: HangReport | None = None, expected: Iterable[int] = _RANKS
) -> tuple[LiveHangState, HangKind | None, list[int]]:
    found: LiveHang = live_hang(list(states), report, expected=set(expected))
    return found.state, found.kind, found.ranks


_HANG, _BUSY, _UNDECIDED = LiveHangState.HANG, LiveHangState.BUSY, LiveHangState.UNDECIDED
_STUCK = [_state(0), _state(1), _apart(2), _state(3)]


def test_who_has_not_called_what_the_others_wait_in_is_guilty() -> None:
    assert _told(_STUCK, _report()) == (_HANG, HangKind.HOST, [2])


def test_without_recorders_the_stacks_say_the_same() -> None:
    assert _told(_STUCK) == (_HANG, HangKind.HOST, [2])


@pytest.mark.parametrize("work", [{"doing": "phase checkpoint"}, {"is_still": False}])
def test_who_is_at_work_is_waited_for(work: dict[str, object]) -> None:
    states = [_state(0), _state(1), _apart(2, age_seconds=500.0, **work), _state(3)]
    assert _told(states, _report()) == (_BUSY, None, [2])


def test_work_of_another_does_not_excuse_the_guilty() -> None:
    states = [_state(0, is_still=False), _state(1), _apart(2), _state(3)]
    assert _told(states, _report()) == (_HANG, HangKind.HOST, [2])


def test_who_says_nothing_while_the_others_wait_is_the_first_suspect() -> None:
    states = [_state(rank) for rank in (0, 1, 3)]
    assert _told(states) == (_HANG, HangKind.UNKNOWN, [2])
    assert _told(states, _report(without=[2])) == (_HANG, HangKind.UNKNOWN, [2])


def test_ranks_that_have_just_begun_to_speak_are_given_time() -> None:
    states = [_state(rank, since_ns=103 * _S) for rank in (0, 1, 3)]
    assert _told(states) == (_UNDECIDED, None, [])


def test_the_last_to_work_at_the_end_of_training_waits_for_nobody() -> None:
    assert _told([_apart(0, is_still=False, age_seconds=300.0)]) == (_BUSY, None, [0])
    assert _told([_apart(0, age_seconds=300.0)]) == (_UNDECIDED, None, [])


def test_ranks_elsewhere_are_not_blamed_for_leaving_nothing_here() -> None:
    states = [_state(0), _state(1)]
    job = Job({WORLD: tuple(_RANKS)}).call(WORLD).call(WORLD, [0, 1], done=False)
    report = explain_hang(job.dumps(without=[2, 3]), world_size=4)
    assert _told(states, report, expected=[0, 1]) == (_HANG, HangKind.UNKNOWN, [])


def test_nobody_is_blamed_where_all_are_in_the_same_call_and_only_after_twice_the_time() -> None:
    states = [_state(rank) for rank in _RANKS]
    assert _told(states)[0] is _UNDECIDED
    assert _told([replace(state, age_seconds=24.0) for state in states]) == (_HANG, HangKind.UNKNOWN, [])


def test_ranks_that_all_stand_outside_of_collectives_are_stuck_on_the_host_after_twice_the_time() -> None:
    report = explain_hang(Job({WORLD: tuple(_RANKS)}).call(WORLD).dumps(), world_size=4)
    states = [_apart(rank, age_seconds=24.0) for rank in _RANKS]
    assert _told(states, report) == (_HANG, HangKind.HOST, [0, 1, 2, 3])
    assert _told([replace(state, age_seconds=23.0) for state in states], report)[0] is _UNDECIDED
    assert _told(states) == (_HANG, HangKind.UNKNOWN, [])  # without recorders they may be in some
    assert _told([_apart(0, age_seconds=24.0)], expected=[0]) == (_HANG, HangKind.HOST, [0])


def test_steps_that_are_not_too_old_are_no_hang() -> None:
    assert _told([replace(state, age_seconds=11.0) for state in _STUCK], _report())[0] is LiveHangState.NONE


def test_a_rank_that_spoke_long_ago_does_not_any_more() -> None:
    old = _state(2, seen_ns=int((104 - STALE_SECONDS) * _S))
    assert [state.rank for state in fresh_states([old, _state(1), _state(0)])] == [0, 1]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 100)), min_size=1, max_size=4))
def test_no_rank_that_gets_on_is_ever_called_guilty(reported: list[tuple[bool, bool, float]]) -> None:
    states = [
        _state(rank, is_still=is_still, is_in_collective=is_in, age_seconds=age)
        for rank, (is_still, is_in, age) in enumerate(reported)
    ]
    state, _, ranks = _told(states)
    if state is _HANG:
        assert not {one.rank for one in states if not one.is_still} & set(ranks)


def test_a_desync_is_named_at_once_also_where_it_names_all_ranks() -> None:
    job = Job({WORLD: (0, 1), "1": (0, 1)})
    job.call(WORLD, [0], done=False).call("1", done=False).call(WORLD, [1], done=False)
    report = explain_hang(job.dumps(), world_size=2)
    assert _told([_apart(0), _apart(1)], report, expected=[0, 1]) == (_HANG, HangKind.DESYNC, [0, 1])


def test_ranks_that_all_wait_for_their_gpus_without_an_open_call_are_stuck_on_them() -> None:
    report = explain_hang(Job({WORLD: (0, 1)}).call(WORLD).dumps(), world_size=2)
    states = [_apart(rank, age_seconds=24.0, device_wait="item() in train (train.py:3)") for rank in (0, 1)]
    assert _told(states, report, expected=[0, 1]) == (_HANG, HangKind.DEVICE, [0, 1])
    assert _told([states[0], replace(states[1], device_wait="")], report, [0, 1]) == (_HANG, HangKind.HOST, [0, 1])
    assert _told(states, expected=[0, 1]) == (_HANG, HangKind.UNKNOWN, [])  # without recorders they may be in calls
