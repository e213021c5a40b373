"""Slow-step rule: requests a capture when steps stay slow, and only then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from stepscope.core.errors import UsageError
from stepscope.training.captures.schedule import SlowStepWatch, capture_rule_from_environment, slow_step
from stepscope.training.steps.telemetry import StepRecord

_USUAL = [10] * 20


def _due(watch: SlowStepWatch, durations: Iterable[int], **fields: Any) -> list[int]:
    """Places at which a capture is due; it is then asked for."""
    due = []
    for place, duration in enumerate(durations):
        if watch.is_due(StepRecord(place, 0, duration, **fields), is_writing=False):
            watch.count_capture()
            due.append(place)
    return due


def test_three_slow_steps_in_a_row_and_not_two() -> None:
    watch = SlowStepWatch(slow_step(factor=1.5, times=3))
    assert _due(watch, [*_USUAL, 16, 16, 10, 16, 16, 14, 16, 16, 16, 16]) == [28]


def test_what_is_not_slower_than_the_factor_is_not_slow() -> None:
    assert _due(SlowStepWatch(slow_step(2.0)), [*_USUAL, *[20] * 9]) == []


def test_the_first_steps_are_not_judged() -> None:
    assert _due(SlowStepWatch(slow_step()), [10] * 5 + [99] * 4) == []


def test_a_new_level_becomes_the_usual_one() -> None:
    assert _due(SlowStepWatch(slow_step(times=3, cooldown_seconds=0.0, most=100)), [*_USUAL, *[20] * 200])[-1] < 100


def test_it_asks_at_most_so_often_and_not_within_the_cool_down() -> None:
    durations = [*_USUAL, 20, 20, 20, *_USUAL, 20, 20, 20, *_USUAL, 20, 20, 20]
    assert _due(SlowStepWatch(slow_step(cooldown_seconds=600.0)), durations) == [22]
    assert _due(SlowStepWatch(slow_step(cooldown_seconds=0.0, most=2)), durations) == [22, 45]


@pytest.mark.parametrize("fields", [{"state": "active"}, {"state": "warmup"}, {"phases": {"checkpoint": 5, "x": 1}}])
def test_our_own_captures_and_checkpoints_are_not_slow_steps(fields: dict[str, Any]) -> None:
    watch = SlowStepWatch(slow_step())
    assert _due(watch, _USUAL) == []
    assert _due(watch, [99] * 9, **fields) == []


def test_a_phase_of_the_step_itself_is_judged() -> None:
    watch = SlowStepWatch(slow_step())
    _due(watch, _USUAL)
    assert _due(watch, [99] * 3, phases={"forward": 50}) == [2]


def test_steps_beside_the_writing_of_a_trace_and_just_after_it_are_passed_over() -> None:
    watch = SlowStepWatch(slow_step())
    _due(watch, _USUAL)
    assert not any(watch.is_due(StepRecord(0, 0, 99), is_writing=True) for _ in range(9))
    assert _due(watch, [99] * 9) == [7]


def test_a_checkpoint_amid_slow_steps_does_not_end_their_row() -> None:
    watch = SlowStepWatch(slow_step())
    assert _due(watch, [*_USUAL, 99, 99]) == []
    assert _due(watch, [500], phases={"checkpoint": 400}) == []
    assert _due(watch, [99]) == [0]


@pytest.mark.parametrize(
    "numbers", [{"factor": 1.0}, {"times": 0}, {"steps": 0}, {"steps": 1001}, {"cooldown_seconds": -1.0}, {"most": 0}]
)
def test_numbers_out_of_range_are_refused_by_name(numbers: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(numbers))):
        slow_step(**numbers)


def test_a_job_script_names_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPSCOPE_CAPTURE_WHEN", raising=False)
    assert capture_rule_from_environment() is None
    monkeypatch.setenv("STEPSCOPE_CAPTURE_WHEN", "slow_step")
    assert capture_rule_from_environment() == slow_step()
    monkeypatch.setenv("STEPSCOPE_CAPTURE_WHEN", "slow_step: factor=2, times=5,cooldown_seconds=0")
    assert capture_rule_from_environment() == slow_step(2.0, 5, cooldown_seconds=0.0)


@pytest.mark.parametrize("text", ["slow", "slow_step:often=3", "slow_step:times=two", "slow_step:times"])
def test_what_names_no_rule_is_said_with_the_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("STEPSCOPE_CAPTURE_WHEN", text)
    with pytest.raises(UsageError, match=r"STEPSCOPE_CAPTURE_WHEN: .* is not a rule; write slow_step"):
        capture_rule_from_environment()
