"""Which capture is due at this step, and when does each one start, end and reach the disk?"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from stepscope.training.capture import Capture
from stepscope.training.other_profilers import BeginWatch
from stepscope.training.schedule import Schedule, State
from stepscope.training.telemetry import StepRecord
from stepscope.training.trace_export import TraceWriter

logger = logging.getLogger(__name__)


class Captures:
    """Takes a rank's captures, one after another.

    Args:
        new_capture: makes the capture whose first step has this index.
        before_start: called just before one starts.
        before_stepping_aside: closes every span of ours: one that ends under another profiler than it began under
            makes torch write into freed memory.

    Attributes:
        latest: first step of the latest capture that has whole steps; None without one.

    Raises:
        OSError, RuntimeError: from every method, when a capture cannot be taken or written.
    """

    def __init__(
        self,
        schedule: Schedule,
        new_capture: Callable[[int], Capture],
        *,
        before_start: Callable[[], None],
        before_stepping_aside: Callable[[], None],
    ) -> None:
        self.latest: int | None = None
        self._schedule = schedule
        self._new_capture = new_capture
        self._before_start = before_start
        self._before_stepping_aside = before_stepping_aside
        self._capture: Capture | None = None
        self._writer = TraceWriter()
        self._watch = BeginWatch(self._make_room)

    def move_to(self, index: int, ended: StepRecord | None) -> None:
        """Between two steps: end the capture that is over, prepare or start the one that step `index` belongs to."""
        if not self._writer.is_writing:
            self._writer.finish()
            if self._capture is None:
                self._watch.stop()
        start = self._schedule.capture_at(index)
        if self._capture is not None and ended is not None and ended.captured:
            if self._capture.is_recording:
                self._capture.num_whole_steps += 1
            if start == self._capture.first_step:
                return
            self._leave(ended)
        state = self._schedule.state(index)
        if state is State.WARMUP and self._capture is None:
            self._writer.finish()  # torch crashes when it exports one recording while it makes another
            self._capture = self._new_capture(self._schedule.next_capture(index))
            self._capture.prepare()
        elif state is State.ACTIVE and start is not None:
            self._writer.finish()
            self._capture = self._capture or self._new_capture(start)
            self._before_start()
            self._capture.start()
            self._watch.start()

    def close(self, open_step: StepRecord | None) -> None:
        """Keep the whole steps of the capture that runs, and wait until everything is on disk."""
        try:
            if self._capture is not None and open_step is not None:
                self._leave(open_step)
            self._writer.finish()
        finally:
            self._watch.stop()

    def discard(self) -> None:
        """Stop what runs and leave no file of it; what is being written is written."""
        capture, self._capture = self._capture, None
        try:
            if capture is not None:
                capture.discard()
            self._writer.finish()
        finally:
            self._watch.stop()

    def _leave(self, last_step: StepRecord) -> None:
        capture, self._capture = self._capture, None
        assert capture is not None
        started_ns = time.monotonic_ns()
        if capture.num_whole_steps:
            self._writer.write(capture.finish())
            self.latest = capture.first_step
        else:
            capture.discard()
        last_step.export_ns = time.monotonic_ns() - started_ns

    def _make_room(self) -> None:
        """Another torch profiler is about to begin."""
        capture = self._capture
        if capture is not None and capture.records_this_thread:
            self._before_stepping_aside()
            try:
                capture.step_aside()
            except (RuntimeError, OSError):  # it is lost, which `finish` says
                logger.debug("stepping aside failed", exc_info=True)
            logger.warning(
                "another torch profiler began while stepscope captured step %d and on; it goes on alone, stepscope"
                " keeps the %d whole steps it has",
                capture.first_step,
                capture.num_whole_steps,
            )
        self._writer.wait()
