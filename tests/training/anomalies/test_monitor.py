"""Anomaly monitor: each anomaly is in the line of its step, and in one line of the log."""

from __future__ import annotations

import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.training.anomalies.monitor import AnomalyMonitor
from stepscope.training.steps.telemetry import StepRecord

_MS = 1_000_000


def _see(watch: AnomalyMonitor, index: int, *, milliseconds: float = 10, **figures: Any) -> list[str]:
    state = figures.pop("state", "wait")
    record = StepRecord(index, 0, int(milliseconds * _MS), state=state, figures=figures)
    watch.steps_settled([record])
    return [anomaly.kind for anomaly in record.anomalies]


def _messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_loss_that_is_no_number_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("torch")
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        for loss in (1.0, math.nan, math.nan):
            prof.step(loss=loss)
    lines = [json.loads(line) for line in (tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()]
    assert ["anomalies" in line for line in lines] == [False, True, False]
    assert lines[1]["anomalies"] == [
        {"kind": "loss_not_finite", "figure": "loss", "value": None, "usual": None, "limit": None}
    ]
    assert [message for message in _messages(caplog) if "finite" in message] == [
        "rank 0, step 1: loss is not finite (loss_not_finite)"
    ]


def test_every_kind_is_found_in_the_figures_of_its_name(caplog: pytest.LogCaptureFixture) -> None:
    watch = AnomalyMonitor(rank=0)
    for index in range(400):
        assert _see(watch, index, loss=2.0, grad_norm=1, local_grad_norm=1.5) == []
    assert _see(watch, 400, loss=4.0, grad_norm=50.0) == ["loss_spike", "gradient_explosion"]
    assert _see(watch, 401, local_grad_norm=math.inf) == ["gradient_not_finite"]
    assert _messages(caplog) == [
        "rank 0, step 400: loss is 4, usually 2, limit 2.4 (loss_spike)",
        "rank 0, step 400: grad_norm is 50, usually 1, limit 10 (gradient_explosion)",
        "rank 0, step 401: local_grad_norm is not finite (gradient_not_finite)",
    ]
    found = [kind for index in range(402, 500) for kind in _see(watch, index, milliseconds=20)]
    assert found == ["step_time_change"]
    found = [kind for index in range(500) for kind in _see(watch, index, memory_allocated_bytes=index * 10 * 2**20)]
    assert found == ["step_time_change", "memory_growth"]
    assert _messages(caplog)[-1].startswith("rank 0, step 383: memory_allocated_bytes grows by 10 MiB per step")


def test_infinite_gradients_under_a_loss_scale_are_none() -> None:
    watch = AnomalyMonitor(rank=0)
    assert _see(watch, 0, grad_norm=math.inf, loss_scale=65536.0) == []
    assert _see(watch, 1, grad_norm=math.inf, loss_scale=0.5) == ["loss_scale_collapse"]


def test_captured_steps_and_their_neighbours_change_no_step_time() -> None:
    watch = AnomalyMonitor(rank=0)
    for index in range(600):
        is_captured = index % 30 < 20
        state = "active" if is_captured else "wait"
        is_slow = is_captured or index % 30 == 20
        assert _see(watch, index, milliseconds=50 if is_slow and index > 300 else 10, state=state) == []


def test_what_all_ranks_share_is_said_by_the_first(caplog: pytest.LogCaptureFixture) -> None:
    watch = AnomalyMonitor(rank=3)
    assert _see(watch, 7, loss=math.nan, local_grad_norm=math.nan) == ["loss_not_finite", "gradient_not_finite"]
    assert _messages(caplog) == ["rank 3, step 7: local_grad_norm is not finite (gradient_not_finite)"]


def test_of_a_kind_that_keeps_happening_some_are_said_and_the_rest_counted(caplog: pytest.LogCaptureFixture) -> None:
    watch = AnomalyMonitor(rank=0)
    found = [
        kind
        for index in range(20_000)  # fast and slow in turn, by 200 steps
        for kind in _see(watch, index, milliseconds=10 + 2 * (index // 200 % 2))
    ]
    assert len(found) > 90
    watch.close()
    *said, last = _messages(caplog)
    assert len(said) == 10  # 5 in each 10000 steps
    (again,) = [message for message in said if "more" in message]
    assert re.search(r"; and (\d+) more step_time_change of step_ms before, kept in the steps' lines$", again)
    numbers = [int(match) for message in (again, last) for match in re.findall(r"and (\d+) more", message)]
    assert len(said) + sum(numbers) == len(found)


def test_steps_of_microseconds_change_nothing() -> None:
    watch = AnomalyMonitor(rank=0)
    for index in range(2000):
        assert _see(watch, index, milliseconds=0.007 * (1 + index // 500)) == []
    assert [kind for index in range(2000, 2100) for kind in _see(watch, index, milliseconds=0.2)] == [
        "step_time_change"
    ]
