"""How long does a step take at present, while nothing is captured?"""

from __future__ import annotations

import statistics
from collections import deque

from stepscope.training.steps.telemetry import StepRecord

_KEPT_STEPS = 64
_LEAST_STEPS = 2


class StepPace:
    """Remembers the latest uncaptured steps; the first after a start, which is like no other, is left out."""

    def __init__(self) -> None:
        self._seen_first = False
        self._durations: deque[int] = deque(maxlen=_KEPT_STEPS)

    def add(self, record: StepRecord) -> None:
        """Count a finished step; on the training thread."""
        if record.state == "wait" and self._seen_first:
            self._durations.append(record.end_ns - record.start_ns)
        self._seen_first = True

    @property
    def median_ns(self) -> float | None:
        """Median time of a step, at least 1; None until two are known. From any thread."""
        durations = tuple(self._durations)
        return max(statistics.median(durations), 1.0) if len(durations) >= _LEAST_STEPS else None
