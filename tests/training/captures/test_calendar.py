"""Capture calendar: every capture gets its own steps, the same on all ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.training.captures.plan import CaptureCalendar, CaptureSlot
from stepscope.training.captures.schedule import ProfilerState, Schedule, every, once

_requests = st.lists(st.tuples(st.integers(0, 80), st.integers(1, 12)), max_size=10)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    warmup, active = draw(st.integers(0, 3)), draw(st.integers(1, 5))
    return Schedule(
        first=warmup + draw(st.integers(0, 20)),
        warmup=warmup,
        active=active,
        period=draw(st.none() | st.integers(warmup + active, 30)),
        repeat=draw(st.none() | st.integers(1, 4)),
    )


def _occupied(place: CaptureSlot) -> set[int]:
    return set(range(place.start - 1, place.start + place.steps))


@given(schedules(), _requests)
def test_no_step_is_captured_twice_and_what_is_joined_is_held(
    schedule: Schedule, requests: list[tuple[int, int]]
) -> None:
    calendar, own = CaptureCalendar(schedule), dict[int, CaptureSlot]()
    for number, (start, steps) in enumerate(requests):
        place = calendar.place(str(number), start, steps)
        if isinstance(place, str):
            continue
        assert place.start <= start
        assert start + steps <= place.start + place.steps
        if place.of_schedule:
            assert schedule.capture_from(place.start) == place.start
            assert place.steps == schedule.active
        elif place.joined:
            assert (place.start, place.steps) in {(other.start, other.steps) for other in own.values()}
        else:
            assert not any(_occupied(place) & _occupied(other) for other in own.values())
            steps_taken = range(max(place.start - 1, 0), place.start + place.steps)
            assert all(schedule.state(step) is not ProfilerState.ACTIVE for step in steps_taken)
            own[number] = place


@given(schedules(), _requests, st.integers(0, 50), st.integers(1, 12))
def test_a_free_start_is_free_and_the_first(
    schedule: Schedule, requests: list[tuple[int, int]], earliest: int, steps: int
) -> None:
    calendar = CaptureCalendar(schedule)
    for number, request in enumerate(requests):
        calendar.place(str(number), *request)
    start = calendar.free_start(earliest, steps)
    if start is None:
        assert schedule.period is not None
        assert schedule.repeat is None
        assert schedule.period < schedule.warmup + schedule.active + steps + 1
        return
    assert calendar.place("new", start, steps) == CaptureSlot(start, steps)
    sooner = [CaptureCalendar(schedule) for _ in range(earliest, start)]
    for other, step in zip(sooner, range(earliest, start), strict=True):
        for number, request in enumerate(requests):
            other.place(str(number), *request)
        assert other.place("new", step, steps) != CaptureSlot(step, steps)


def test_refusals_say_what_is_in_the_way() -> None:
    calendar = CaptureCalendar(once(wait=3, warmup=1, active=3))
    assert calendar.place("a", 20, 5) == CaptureSlot(20, 5)
    assert calendar.place("b", 21, 2) == CaptureSlot(20, 5, joined=True)
    assert calendar.place("c", 5, 1) == CaptureSlot(4, 3, joined=True, of_schedule=True)
    assert "capture of steps 20 to 24 by request a" in str(calendar.place("d", 24, 2))
    assert "capture of steps 4 to 6 by the schedule" in str(calendar.place("e", 6, 2))
    assert "capture of steps 20 to 24 by request a" in str(calendar.place("f", 19, 1))


def test_a_request_joins_no_light_capture() -> None:
    calendar = CaptureCalendar(Schedule(first=24, light=5))
    assert calendar.free_start(10, 3) == 18
    refused = calendar.place("a", 13, 2)
    assert isinstance(refused, str)
    assert "steps 12 to 16" in refused


def test_a_schedule_without_gaps_has_room_for_none() -> None:
    assert CaptureCalendar(every(4, warmup=1, active=3)).free_start(0, 3) == 0  # before its first capture
    assert CaptureCalendar(every(4, warmup=1, active=3)).free_start(2, 3) is None
