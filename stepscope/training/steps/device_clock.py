"""How long did steps take on the GPU, without ever making the host wait for it?

A host that runs ahead passes the first steps in a fraction of their time, so host times say nothing of them. An event
in the stream costs microseconds, and is read only once the GPU has passed it.
"""

from __future__ import annotations

import sys
from collections import deque
from itertools import pairwise
from typing import Any

_MAX_MARKS = 64  # the steps just before a capture are those to compare it with


class DeviceClock:
    """Marks the ends of steps on the current CUDA stream."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, Any]] = deque(maxlen=_MAX_MARKS)

    def mark(self, step: int) -> None:
        """Record that `step` ends here; nothing happens in a process that has not used CUDA."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((step, event))

    def durations_ns(self) -> dict[int, int]:
        """Time from the end of the step before to the end of the step, by step, for those that the GPU has passed."""
        passed = [(step, event) for step, event in self._marks if event.query()]
        return {
            step: int(before.elapsed_time(event) * 1e6)
            for (step_before, before), (step, event) in pairwise(passed)
            if step == step_before + 1
        }
