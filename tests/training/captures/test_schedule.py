"""Schedule: exactly the promised steps are profiled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import UsageError
from stepscope.training.captures.schedule import (
    DEFAULT_SCHEDULE,
    ProfilerState,
    Schedule,
    default_schedule,
    every,
    once,
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    warmup, active = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    return Schedule(
        first=warmup + draw(st.integers(0, 20)),
        warmup=warmup,
        active=active,
        period=draw(st.none() | st.integers(warmup + active, 30)),
        repeat=draw(st.none() | st.integers(1, 4)),
    )


def capture_at(schedule: Schedule, step: int) -> int | None:
    """First step of the capture that `step` belongs to."""
    start = schedule.capture_from(step)
    return start if start is not None and start <= step else None


def test_default_captures_steps_four_to_six_after_one_warm_up() -> None:
    states = [DEFAULT_SCHEDULE.state(step) for step in range(9)]
    assert (
        states
        == [ProfilerState.WAIT] * 3 + [ProfilerState.WARMUP] + [ProfilerState.ACTIVE] * 3 + [ProfilerState.WAIT] * 2
    )


def test_on_a_gpu_the_default_captures_later_and_first_a_light_one() -> None:
    assert default_schedule(on_gpu=False) is DEFAULT_SCHEDULE
    light = default_schedule(on_gpu=True)
    assert [light.capture_from(step) for step in (0, 17)] == [12, 24]
    assert [light.num_steps(start) for start in (12, 24)] == [5, 3]
    assert light.capture_from(27) is None  # once only: where CUPTI stays attached, later steps are slower


def test_every_repeats_from_its_first_step() -> None:
    schedule = every(100, warmup=2, active=3, first=10, repeat=2)
    active = [step for step in range(400) if schedule.state(step) is ProfilerState.ACTIVE]
    assert active == [10, 11, 12, 110, 111, 112]
    assert [step for step in range(400) if schedule.state(step) is ProfilerState.WARMUP] == [8, 9, 108, 109]


def test_once_waits_warms_up_and_captures() -> None:
    assert once(wait=0, warmup=0, active=2) == Schedule(first=0, warmup=0, active=2)


def test_a_light_capture_comes_before_each_full_one_and_apart_from_it() -> None:
    schedule = Schedule(first=24, period=50, repeat=2, light=5)
    captures = [(start, schedule.num_steps(start), schedule.is_light(start)) for start in (12, 24, 62, 74)]
    assert captures == [(12, 5, True), (24, 3, False), (62, 5, True), (74, 3, False)]
    active = [step for step in range(400) if schedule.state(step) is ProfilerState.ACTIVE]
    assert active == [*range(12, 17), *range(24, 27), *range(62, 67), *range(74, 77)]
    assert schedule.counted_from(100).is_light(112)
    assert once(wait=23, light=5) == Schedule(first=24, light=5)
    with pytest.raises(UsageError, match=r"13 steps come before it \(1 to warm up, 5 of a light capture, 7 after it\)"):
        once(wait=10, light=5)


@pytest.mark.parametrize(("warmup", "light_from"), [(1, 11), (7, 17), (12, 17)])
def test_both_captures_have_all_their_warm_up_steps(warmup: int, light_from: int) -> None:
    schedule = once(wait=light_from + 3 + max(7, warmup) - warmup, warmup=warmup, light=3)
    states = [schedule.state(step) for step in range(schedule.first)]
    full_from = schedule.first
    assert states[light_from - warmup : light_from] == [ProfilerState.WARMUP] * warmup
    assert states[full_from - warmup : full_from] == [ProfilerState.WARMUP] * warmup
    assert states.count(ProfilerState.WARMUP) == 2 * warmup
    assert states.count(ProfilerState.ACTIVE) == 3


@given(schedules(), st.integers(0, 200))
def test_active_exactly_where_a_capture_is(schedule: Schedule, step: int) -> None:
    assert (schedule.state(step) is ProfilerState.ACTIVE) == (capture_at(schedule, step) is not None)


@given(schedules())
def test_each_capture_has_its_length_and_its_warm_up(schedule: Schedule) -> None:
    horizon = 200
    starts = {start for step in range(horizon) if (start := capture_at(schedule, step)) is not None}
    for start in starts:
        captured = [step for step in range(horizon + 10) if capture_at(schedule, step) == start]
        assert captured == list(range(start, start + schedule.active))
        before = range(start - schedule.warmup, start)
        assert all(schedule.state(step) is ProfilerState.WARMUP for step in before)
        assert all(schedule.capture_from(step) == start for step in before)
    num_warmups = sum(schedule.state(step) is ProfilerState.WARMUP for step in range(horizon))
    assert num_warmups <= (len(starts) + 1) * schedule.warmup


@given(schedules())
def test_no_more_captures_than_asked_for(schedule: Schedule) -> None:
    starts = {capture_at(schedule, step) for step in range(300)} - {None}
    assert len(starts) <= (schedule.repeat or 1 if schedule.period is None or schedule.repeat else 300)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: every(3, warmup=1, active=3), "do not fit into every 3 steps"),
        (lambda: every(0), "period must be"),
        (lambda: once(active=0), "active must be"),
        (lambda: Schedule(first=1, warmup=2), "2 warm-up steps come before it"),
        (lambda: every(10, repeat=0), "repeat must be"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_with_the_reason(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=message):
        make()
