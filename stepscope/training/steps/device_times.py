"""Device times of training steps: how long the GPU took for a step, and for what the host waited for or did in it.

Marks are CUDA events on the training thread's current stream. The GPU's time between two marks is what happened between
them costs the job: next to nothing while earlier work keeps the GPU busy, all of it once the GPU has run out of work. A
mark costs microseconds and is read only after the GPU has passed it, so the host never waits.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

DATA_WAIT = None
"""The name under which waits for batches are kept, beside the names of phases."""

Mark = Any
"""An event of torch.cuda; None where there is no GPU, or none may be asked now."""

Exposed = dict[str | None, int]
"""Nanoseconds of the GPU by phase, DATA_WAIT for waits."""


@dataclass(slots=True)
class DeviceTimes:
    """Marks of one finished step, on their way from the GPU.

    Attributes:
        begin: end of the step before; None where it has no mark.
        spans: of each phase and of the waits, the pairs of marks before and after; None where one is missing.
        is_lost: the GPU reported a fault, which is training's own to tell.
    """

    begin: Mark
    end: Mark
    spans: dict[str | None, list[tuple[Mark, Mark]] | None] = field(default_factory=dict)
    is_lost: bool = False

    def are_there(self) -> bool:
        """Whether the GPU has passed the end of the step; also True where that cannot be known."""
        try:
            return self.is_lost or bool(self.end.query())
        except RuntimeError:
            logger.debug("device times are lost", exc_info=True)
            self.is_lost = True
            return True

    def read(self) -> tuple[int | None, Exposed]:
        """The step's time and that of each span, once they are there; those that are unknown are None and absent."""
        if not self.are_there() or self.is_lost:
            return None, {}
        exposed: Exposed = {}
        for name, pairs in self.spans.items():
            times = [None] if pairs is None else [_time_between(*pair) for pair in pairs]
            if None not in times:
                exposed[name] = sum(times)  # type: ignore[arg-type]
        return None if self.begin is None else _time_between(self.begin, self.end), exposed


class DeviceClock:
    """Marks ends of training steps, and what happens in them, on the current CUDA stream.

    Nothing happens in a process that has not used CUDA, nor while a graph is being captured, and after a failure.
    """

    def __init__(self) -> None:
        self._has_failed = False
        self._last_end: Mark = None
        self._spans: dict[str | None, list[tuple[Mark, Mark]] | None] = {}

    def mark(self) -> Mark:
        """A mark behind the work that is launched by now; never raises."""
        torch = sys.modules.get("torch")
        if torch is None or self._has_failed:
            return None
        try:
            cuda = torch.cuda
            if not cuda.is_initialized() or cuda.is_current_stream_capturing():
                return None
            event = cuda.Event(enable_timing=True)
            event.record()
            return event
        except Exception:  # training must never be hurt
            logger.debug("the GPU takes no marks", exc_info=True)
            self._has_failed = True
            return None

    def add_span(self, name: str | None, before: Mark, after: Mark) -> None:
        """Count what happened between two marks for the running step; without marks its time is unknown."""
        pairs = self._spans.setdefault(name, [])
        if before is None or after is None:
            self._spans[name] = None
        elif pairs is not None:
            pairs.append((before, after))

    def end_step(self) -> DeviceTimes | None:
        """End the running step and begin the next; None without a GPU."""
        begin, self._last_end = self._last_end, self.mark()
        spans, self._spans = self._spans, {}
        return None if self._last_end is None else DeviceTimes(begin, self._last_end, spans)


def _time_between(before: Mark, after: Mark) -> int | None:
    """Nanoseconds, at least 0; None where the GPU cannot tell: marks of two devices, or one that it has not passed."""
    try:
        return max(int(before.elapsed_time(after) * 1e6), 0)
    except (RuntimeError, ValueError):
        return None
