"""Exporters: training waits for none of them, and losses are reported."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import pytest

from stepscope.training.steps import exporters
from stepscope.training.steps.exporters import StepExport, chosen_exporters
from stepscope.training.steps.telemetry import StepRecord

_SECOND = 1_000_000_000


class _Recorder:
    package = "recorder"
    remedy = "recorder.start"

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.seen: list[int] = []
        self.threads: set[str] = set()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.error: Exception | None = None

    def look(self) -> bool:
        assert threading.current_thread() is threading.main_thread()
        return self.is_open

    def export(self, records: Sequence[StepRecord]) -> None:
        self.threads.add(threading.current_thread().name)
        self.goes_on.wait()
        if self.error is not None:
            raise self.error
        self.seen += [record.index for record in records]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "_EVERY_SECONDS", 0.01)


def _step(steps: StepExport, index: int, seconds: float = 0) -> None:
    steps.steps_settled([StepRecord(index, 0, int((1000 + seconds) * _SECOND))])


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_all_steps_are_exported_in_order_on_another_thread(caplog: pytest.LogCaptureFixture) -> None:
    recorder = _Recorder()
    steps = StepExport([recorder], says_what_is_missing=True)
    for index in range(100):
        _step(steps, index)
    steps.close()
    assert recorder.seen == list(range(100))
    assert recorder.threads == {"stepscope-export"}
    assert _warnings(caplog) == []


def test_a_slow_one_holds_up_nothing_and_what_is_lost_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporters, "_MAX_WAITING", 50)
    monkeypatch.setattr(exporters, "_CLOSES_WITHIN_SECONDS", 0.1)
    recorder = _Recorder()
    recorder.goes_on.clear()
    steps = StepExport([recorder], says_what_is_missing=True)
    started = time.monotonic()
    _step(steps, 0)
    while not recorder.threads:  # it hangs with the first step
        time.sleep(0.001)
    for index in range(1, 101):
        _step(steps, index)
    steps.close()
    assert time.monotonic() - started < 5
    assert _warnings(caplog) == ["100 steps were not exported to recorder, which is too slow"]
    recorder.goes_on.set()


def test_what_is_opened_later_is_found_and_until_then_one_line_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    late, early = _Recorder(is_open=False), _Recorder()
    steps = StepExport([late, early], says_what_is_missing=True)
    for index in range(6):
        late.is_open = index >= 2
        _step(steps, index, seconds=index)
    steps.close()
    assert early.seen == [0, 1, 2, 3, 4, 5]
    assert late.seen in [[place, *range(place + 1, 6)] for place in range(3)]
    assert _warnings(caplog) == ["steps are exported to recorder once recorder.start is called"]


def test_other_ranks_say_nothing_of_what_is_not_open(caplog: pytest.LogCaptureFixture) -> None:
    recorder = _Recorder(is_open=False)
    steps = StepExport([recorder], says_what_is_missing=False)
    _step(steps, 0)
    steps.close()
    assert recorder.seen == []
    assert _warnings(caplog) == []


def test_one_that_fails_is_said_once_and_hurts_no_other(caplog: pytest.LogCaptureFixture) -> None:
    failing, well = _Recorder(), _Recorder()
    failing.error = ConnectionError("no route to host")
    steps = StepExport([failing, well], says_what_is_missing=True)
    for index in range(3):
        _step(steps, index)
        while index not in well.seen:
            time.sleep(0.001)
    failing.error = None  # the network is back
    _step(steps, 3)
    steps.close()
    assert well.seen == [0, 1, 2, 3]
    assert failing.seen == [3]
    assert _warnings(caplog) == ["steps are not exported to recorder for now: ConnectionError: no route to host"]


def test_names_come_from_the_call_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("stepscope.training.steps.exporters._is_installed", lambda package: package != "mlflow")
    monkeypatch.setenv("STEPSCOPE_EXPORT", "otel, wandb,otel")
    assert [each.package for each in chosen_exporters(None, "r", 0)] == ["opentelemetry.sdk", "wandb"]
    assert [each.package for each in chosen_exporters(["wandb"], "r", 0)] == ["wandb"]
    assert chosen_exporters([], "r", 0) == []
    assert _warnings(caplog) == []
    assert chosen_exporters("mlflow tensorboard", "r", 1) == []
    assert _warnings(caplog) == []
    assert chosen_exporters("mlflow tensorboard", "r", 0) == []
    assert _warnings(caplog) == [
        "nothing is exported to mlflow: the package mlflow is not installed",
        "export knows otel, wandb, mlflow, not 'tensorboard'",
    ]
