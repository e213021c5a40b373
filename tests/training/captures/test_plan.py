"""Capture plan: every step belongs to the right capture, whatever is requested meanwhile."""

from __future__ import annotations

from stepscope.core.protocol.captures import Alignment, CaptureProgress, CaptureRequest, CaptureState
from stepscope.core.protocol.messages import Answer, Cancel
from stepscope.training.captures.plan import AgreedCapture, CapturePlan, CaptureSlot
from stepscope.training.captures.schedule import ProfilerState, Schedule, every, once


def _plan(schedule: Schedule, *, takes_scheduled: bool = True) -> tuple[CapturePlan, list[Answer]]:
    answers: list[Answer] = []
    report = lambda capture_id, progress: answers.append(Answer(capture_id, progress))  # noqa: E731
    return CapturePlan(schedule, takes_scheduled=takes_scheduled, report=report), answers


def _asked(capture_id: str, start: int, steps: int, *, of_schedule: bool = False) -> AgreedCapture:
    slot = CaptureSlot(start, steps, joined=of_schedule, of_schedule=of_schedule)
    return AgreedCapture(CaptureRequest(capture_id, steps), slot, Alignment.STEP)


def _captured(plan: CapturePlan, steps: range) -> dict[int, int]:
    """First step of the capture by captured step."""
    found = {}
    for step in steps:
        plan.advance(step)
        window = plan.window_for(step)
        assert (plan.state(step) is ProfilerState.ACTIVE) >= (window is not None and step >= window.start)
        if window is not None and step >= window.start:
            found[step] = window.start
    return found


def test_without_requests_it_is_the_schedule() -> None:
    for schedule in (once(), every(10, warmup=2, active=3, repeat=2), every(3, warmup=0, active=3)):
        plan, answers = _plan(schedule)
        captured = _captured(plan, range(50))
        starts = {step: schedule.capture_from(step) for step in range(50)}
        assert captured == {step: start for step, start in starts.items() if start is not None and start <= step}
        plan, _ = _plan(schedule)
        for step in range(50):
            plan.advance(step)
            assert plan.state(step) is schedule.state(step)
        assert answers == []


def test_a_request_is_accepted_before_the_next_step_and_captured_with_a_warm_up() -> None:
    plan, answers = _plan(once())
    plan.advance(10)
    plan.post(_asked("a", 13, 2))
    assert answers == []
    assert _captured(plan, range(11, 20)) == {13: 13, 14: 13}
    assert [
        (answer.id, answer.progress.state, answer.progress.start_step, answer.progress.steps) for answer in answers
    ] == [("a", "accepted", 13, 2)]
    plan.post(_asked("b", 22, 1))
    states = []
    for step in range(20, 24):
        plan.advance(step)
        states.append(plan.state(step))
    assert states == [ProfilerState.WAIT, ProfilerState.WARMUP, ProfilerState.ACTIVE, ProfilerState.WAIT]


def test_a_step_that_has_begun_is_too_late() -> None:
    plan, answers = _plan(once())
    plan.advance(20)
    plan.post(_asked("late", 20, 3))
    plan.post(_asked("in time", 21, 3))
    plan.advance(21)
    assert [(answer.id, answer.progress.state) for answer in answers] == [("late", "refused"), ("in time", "accepted")]
    assert answers[0].progress.reason == "too late: step 20 has begun, step 21 is next"


def test_who_joins_is_answered_with_the_one_who_was_first() -> None:
    plan, answers = _plan(once())
    plan.post(_asked("a", 10, 3))
    plan.post(_asked("b", 10, 3))
    plan.post(_asked("c", 4, 3, of_schedule=True))
    plan.advance(4)
    window = plan.window_for(4)
    assert window is not None
    assert window.ids == ["c"]
    plan.report(window, CaptureProgress(CaptureState.DONE, path="p", bytes=5))
    plan.advance(10)
    window = plan.window_for(10)
    assert window is not None
    plan.report(window, CaptureProgress(CaptureState.STARTED))
    plan.post(Cancel("a"))
    plan.advance(11)
    assert plan.window_for(11) is window
    assert window.ids == ["b"]
    plan.post(Cancel("b"))
    plan.advance(12)
    assert window.is_cancelled
    assert plan.window_for(12) is None
    states: dict[str, list[str]] = {}
    for answer in answers:
        states.setdefault(answer.id, []).append(answer.progress.state.value)
    assert states == {
        "a": ["accepted", "started", "cancelled"],
        "b": ["accepted", "started", "cancelled"],
        "c": ["accepted", "done"],
    }


def test_leaving_a_scheduled_capture_leaves_it_to_the_schedule() -> None:
    plan, _ = _plan(every(10, active=3))
    plan.post(_asked("far", 30, 3, of_schedule=True))
    plan.advance(1)
    plan.post(Cancel("far"))
    assert [step for step in _captured(plan, range(2, 40)) if step >= 30] == [30, 31, 32]


def test_a_rank_that_takes_no_scheduled_captures_takes_those_asked_for() -> None:
    plan, answers = _plan(every(10, active=3), takes_scheduled=False)
    plan.post(_asked("a", 10, 3, of_schedule=True))
    plan.post(_asked("b", 15, 1))
    assert _captured(plan, range(30)) == {10: 10, 11: 10, 12: 10, 15: 15}
    assert [answer.progress.state for answer in answers] == ["accepted", "accepted"]
    plan.advance(30)
    assert plan.window_for(30) is None
    assert plan.state(30) is ProfilerState.ACTIVE  # other ranks take it


def test_what_has_not_begun_fails_at_the_end() -> None:
    plan, answers = _plan(once())
    plan.post(_asked("a", 100, 3))
    plan.post(_asked("b", 4, 3, of_schedule=True))
    plan.advance(2)
    plan.close("training ended")
    assert [(answer.id, answer.progress.state, answer.progress.reason) for answer in answers[2:]] == [
        ("a", "failed", "training ended"),
        ("b", "failed", "training ended"),
    ]
