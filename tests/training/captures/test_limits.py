"""Capture limits: a capture that is too large, slow or late ends in time, with whole steps."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.core.protocol.captures import CaptureRequest, EarlyStop
from stepscope.training.captures import runner as subject
from stepscope.training.captures.runner import CaptureCosts, TraceSizeForecast
from stepscope.training.steps.telemetry import StepRecord


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What autograd has counted so far."""
    count = [100]
    monkeypatch.setattr(subject, "operators_so_far", lambda: count[0])
    return count


def _limits(**limits: Any) -> CaptureRequest:
    return CaptureRequest("a", 6, **limits)


def _run(
    watch: CaptureCosts, operators: list[int], *, per_step: int = 50, duration: int = 10
) -> list[EarlyStop | None]:
    answers = []
    for step in range(6):
        operators[0] += per_step
        answers.append(watch.add(StepRecord(step, step * 100, step * 100 + duration)))
    return answers


def test_a_trace_ends_before_one_more_step_would_make_it_too_large(operators: list[int]) -> None:
    watch = CaptureCosts(_limits(max_bytes=160_000), TraceSizeForecast(), None)
    assert (
        _run(watch, operators).index(EarlyStop.MAX_BYTES) == 2
    )  # 150 operators of 1000 bytes are in, 200 would be over
    assert watch.num_operators == 300


def test_the_size_of_an_operator_is_learnt_from_what_was_written(operators: list[int]) -> None:
    forecast = TraceSizeForecast()
    forecast.learn(num_bytes=1_000_000, num_operators=100, num_steps=2)
    assert forecast.num_bytes(10, 1) == 100_000
    assert _run(CaptureCosts(_limits(max_bytes=1_600_000), forecast, None), operators).index(EarlyStop.MAX_BYTES) == 2


def test_without_autograd_the_steps_of_the_trace_before_tell(operators: list[int]) -> None:
    forecast = TraceSizeForecast()
    assert _run(CaptureCosts(_limits(max_bytes=1), forecast, None), operators, per_step=0) == [None] * 6
    forecast.learn(num_bytes=3000, num_operators=0, num_steps=3)
    answers = _run(CaptureCosts(_limits(max_bytes=3500), forecast, None), operators, per_step=0)
    assert answers.index(EarlyStop.MAX_BYTES) == 2


def test_overhead_is_measured_against_the_steps_before(operators: list[int]) -> None:
    watch = CaptureCosts(_limits(max_overhead=0.5), TraceSizeForecast(), usual_ns=8.0)
    assert _run(watch, operators, duration=12) == [None] * 6
    assert watch.overhead == 0.5
    assert CaptureCosts(_limits(max_overhead=0.5), TraceSizeForecast(), 8.0).overhead is None
    assert (
        _run(CaptureCosts(_limits(max_overhead=0.5), TraceSizeForecast(), 8.0), operators, duration=13)[0]
        == "max_overhead"
    )
    assert _run(CaptureCosts(_limits(max_overhead=0.0), TraceSizeForecast(), None), operators) == [None] * 6  # unknown


def test_a_deadline_ends_with_the_step_in_which_it_passes(operators: list[int]) -> None:
    answers = _run(CaptureCosts(_limits(deadline_unix_ns=205), TraceSizeForecast(), None), operators)
    assert answers.index(EarlyStop.DEADLINE) == 2


def test_autograd_counts_the_operators_of_this_thread() -> None:
    torch = pytest.importorskip("torch")
    before = subject.operators_so_far()
    weight = torch.ones(2, 2, requires_grad=True)
    (weight @ weight).sum()
    assert subject.operators_so_far() - before == 2
