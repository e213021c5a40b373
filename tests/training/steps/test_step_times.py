"""GPU step times are read only from events that the GPU has passed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.training.steps.telemetry import DeviceClock, StepRecord, UnprofiledStepTime


class _FakeEvent:
    """Passed after as many milliseconds as the class attribute says when it is recorded."""

    now_ms = 0.0
    is_passed = True

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_ms = _FakeEvent.now_ms

    def query(self) -> bool:
        return _FakeEvent.is_passed

    def elapsed_time(self, later: _FakeEvent) -> float:
        return later.at_ms - self.at_ms


def _use_fake_cuda(monkeypatch: pytest.MonkeyPatch, *, is_initialized: bool) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: is_initialized, Event=_FakeEvent)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(_FakeEvent, "is_passed", True)


def _mark(clock: DeviceClock, step: int, now_ms: float) -> None:
    _FakeEvent.now_ms = now_ms
    clock.mark(step)


def test_a_step_lasts_from_the_mark_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_fake_cuda(monkeypatch, is_initialized=True)
    clock = DeviceClock()
    for step, now_ms in ((0, 100.0), (1, 140.0), (2, 185.0), (7, 900.0)):
        _mark(clock, step, now_ms)
    assert clock.durations_ns() == {1: 40_000_000, 2: 45_000_000}


def test_marks_not_yet_passed_are_left_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_fake_cuda(monkeypatch, is_initialized=True)
    clock = DeviceClock()
    _mark(clock, 0, 0.0)
    _mark(clock, 1, 10.0)
    monkeypatch.setattr(_FakeEvent, "is_passed", False)
    assert clock.durations_ns() == {}
    monkeypatch.setattr(_FakeEvent, "is_passed", True)
    assert clock.durations_ns() == {1: 10_000_000}


def test_a_process_without_cuda_marks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_fake_cuda(monkeypatch, is_initialized=False)
    clock = DeviceClock()
    clock.mark(0)
    clock.mark(1)
    assert clock.durations_ns() == {}


def test_the_gpus_step_time_counts_where_the_host_ran_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_fake_cuda(monkeypatch, is_initialized=True)
    times: Any = UnprofiledStepTime()
    for step, now_ms in ((0, 0.0), (1, 40.0), (2, 80.0)):
        _FakeEvent.now_ms = now_ms
        times.add(StepRecord(step, start_ns=0, end_ns=2_000_000))
    assert times.unprofiled_step_ms() == 40.0
