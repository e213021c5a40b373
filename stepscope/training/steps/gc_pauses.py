"""How long did Python's garbage collector stop this process during each step?"""

from __future__ import annotations

import gc
import time

from stepscope.training.steps.telemetry import StepRecord


class GcPauses:
    """Adds `gc_pause_ns` to the steps in which the collector ran. It stops all threads of the process."""

    def __init__(self) -> None:
        self._started_ns = 0
        self._paused_ns = 0
        gc.callbacks.append(self._collecting)

    def step_ended(self, record: StepRecord) -> None:
        """Add the pauses since the step before."""
        if self._paused_ns:
            record.figures["gc_pause_ns"], self._paused_ns = self._paused_ns, 0

    def close(self) -> None:
        """Stop listening to the collector."""
        gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._started_ns = now_ns
        elif self._started_ns:
            self._paused_ns += now_ns - self._started_ns
            self._started_ns = 0
