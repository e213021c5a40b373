"""A failing listener affects neither training nor the other listeners."""

from __future__ import annotations

import gc
import logging

import pytest

from stepscope.training.steps.listeners import StepListeners
from stepscope.training.steps.process_metrics import GcPauses
from stepscope.training.steps.telemetry import StepRecord


class _Remembering:
    def __init__(self, fails_in: str = "") -> None:
        self.calls: list[str] = []
        self._fails_in = fails_in

    def step_began(self, index: int) -> None:
        self._called(f"began {index}")

    def steps_ended(self, records: list[StepRecord]) -> None:
        self._called(f"ended {records[0].index}")

    def close(self) -> None:
        self._called("closed")

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self._fails_in and what.startswith(self._fails_in):
            raise OSError("disk full")


@pytest.mark.parametrize("fails_in", ["began", "ended", "closed"])
def test_one_that_fails_is_left_out_with_one_warning(caplog: pytest.LogCaptureFixture, fails_in: str) -> None:
    failing, well = _Remembering(fails_in), _Remembering()
    listeners = StepListeners([failing, well])
    for index in range(3):
        listeners.step_began(index)
        listeners.steps_ended([StepRecord(index, 0)])
    listeners.close()
    assert well.calls == ["began 0", "ended 0", "began 1", "ended 1", "began 2", "ended 2", "closed"]
    assert failing.calls[-1].startswith(fails_in)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "stepscope goes on without its _Remembering: OSError: disk full"
    ]


def test_pauses_of_the_garbage_collector_are_counted_with_their_step() -> None:
    pauses, quiet, busy = GcPauses(), StepRecord(0, 0), StepRecord(1, 0)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        pauses.steps_ended([StepRecord(0, 0)])
        pauses.steps_ended([quiet])
        gc.collect()
        pauses.steps_ended([busy])
    finally:
        pauses.close()
        if was_enabled:
            gc.enable()
    assert "gc_pause_ns" not in quiet.figures
    assert busy.figures["gc_pause_ns"] > 0
    assert pauses._collecting not in gc.callbacks
