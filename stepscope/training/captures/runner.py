"""Capture runner: between steps, prepares, starts, ends and hands over the capture that is due."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepscope.core.protocol.messages import AnswerState, EarlyStop
from stepscope.training.captures.limits import CaptureCosts, SizeForecast
from stepscope.training.captures.plan import CapturePlan, CaptureWindow
from stepscope.training.captures.recording import Capture, OtherProfilerWatch
from stepscope.training.captures.trace_export import TraceWriter
from stepscope.training.steps.telemetry import RecentStepTime, StepRecord

logger = logging.getLogger(__name__)


_WAITS_FOR_TRACE_SECONDS = 2.0
"""In all, between steps, for a trace still being written when the next capture is due; then that one is skipped."""


class CaptureRunner:
    """Takes a rank's captures, one after another.

    Args:
        plan: which step belongs to which capture.
        new_capture: makes the capture whose first step has this index.
        before_start: called just before one starts.
        before_stepping_aside: closes every span of ours: one that ends under another profiler than it began under
            makes torch write into freed memory.
        pace: how long steps take without the profiler.

    Attributes:
        latest: first step of the latest capture of all ranks that has whole steps; None without one.

    Raises:
        OSError: from every method, when a scheduled capture cannot be written. A requested one is answered so.
    """

    def __init__(
        self,
        plan: CapturePlan,
        new_capture: Callable[[int], Capture],
        *,
        before_start: Callable[[], None],
        before_stepping_aside: Callable[[], None],
        pace: RecentStepTime,
    ) -> None:
        self.latest: int | None = None
        self._plan = plan
        self._new_capture = new_capture
        self._before_start = before_start
        self._before_stepping_aside = before_stepping_aside
        self._pace = pace
        self._window: CaptureWindow | None = None
        self._skipped: CaptureWindow | None = None
        self._reasons_said: set[str] = set()
        self._capture: Capture | None = None
        self._costs: CaptureCosts | None = None
        self._forecast = SizeForecast()
        self._writer = TraceWriter()
        self._seconds_to_wait = _WAITS_FOR_TRACE_SECONDS
        self._watch = OtherProfilerWatch(self._make_room)

    @property
    def is_writing(self) -> bool:
        """Whether a trace is not whole on disk yet."""
        return self._writer.is_writing

    @property
    def is_capturing(self) -> bool:
        """Whether the running step is captured."""
        return self._costs is not None

    def move_to(self, index: int, ended: StepRecord | None) -> None:
        """Between two steps: end the capture that is over, prepare or start the one that step `index` belongs to."""
        self._plan.advance(index)
        if not self._writer.is_writing:
            self._writer.finish()
            if self._capture is None:
                self._watch.stop()
        window = self._window
        if window is not None:
            if self._costs is not None and ended is not None:
                self._count(window, self._costs, ended, index)
            if ended is None or window.is_cancelled or (index >= window.stop and self._costs is None):
                self._drop()
            elif index >= window.stop:
                self._leave(ended)
        coming = self._plan.window_for(index)
        if coming is None or coming is self._skipped:
            return
        if coming is self._window and (index < coming.start or self._costs is not None):
            return
        try:
            if index < coming.start:
                self._prepare(coming, ended)
            else:
                self._start(coming, index, ended)
        except (RuntimeError, OSError) as error:
            self._fail(coming, index, error)

    def close(self, open_step: StepRecord | None) -> None:
        """Keep the whole steps of the capture that runs, and wait until everything is on disk."""
        try:
            if self._window is not None and open_step is not None:
                if self._costs is not None and self._costs.num_steps:
                    self._window.stopped_by = EarlyStop.TRAINING_ENDED
                self._leave(open_step)
            self._writer.finish()
        finally:
            self._watch.stop()
            self._plan.close("training ended before it began")

    def discard(self) -> None:
        """Stop what runs and leave no file of it; what is being written is written."""
        capture, self._capture = self._capture, None
        window, self._window, self._costs = self._window, None, None
        try:
            if window is not None:
                self._plan.answer(window, AnswerState.FAILED, "measuring has stopped")
            if capture is not None:
                capture.discard()
            self._writer.finish()
        finally:
            self._watch.stop()
            self._plan.close("measuring has stopped")

    def _wait_for_writer(self, ended: StepRecord | None) -> None:
        """torch crashes when it exports one recording while it makes another; training does not wait long for that."""
        if self._writer.is_writing and self._seconds_to_wait > 0:
            began_ns = time.monotonic_ns()
            self._writer.wait(self._seconds_to_wait)
            waited_ns = time.monotonic_ns() - began_ns
            self._seconds_to_wait = max(self._seconds_to_wait - waited_ns / 1e9, 0.0)
            if ended is not None:
                ended.export_ns += waited_ns
        if self._writer.is_writing:
            raise RuntimeError("the trace of the capture before is still being written")
        self._writer.finish()

    def _prepare(self, window: CaptureWindow, ended: StepRecord | None) -> None:
        self._wait_for_writer(ended)
        self._window, self._capture = window, self._new_capture(window.start)
        with _added_to_prepare_time(ended):
            self._capture.prepare()

    def _start(self, window: CaptureWindow, index: int, ended: StepRecord | None) -> None:
        deadline_ns = window.limits.deadline_ns
        if deadline_ns is not None and time.time_ns() > deadline_ns:
            self._plan.answer(window, AnswerState.CANCELLED, "its deadline passed before it began")
            self._plan.cut(window, index)
            self._drop()
            return
        self._wait_for_writer(ended)
        if self._window is not window or self._capture is None:
            self._window, self._capture = window, self._new_capture(window.start)
        self._before_start()
        with _added_to_prepare_time(ended):
            self._capture.start()
        self._costs = CaptureCosts(window.limits, self._forecast, self._pace.median_ns)
        self._watch.start()
        self._plan.answer(window, AnswerState.STARTED)

    def _count(self, window: CaptureWindow, costs: CaptureCosts, ended: StepRecord, index: int) -> None:
        capture = self._capture
        assert capture is not None
        stop = costs.add(ended)
        if capture.is_recording:
            capture.num_whole_steps += 1
        else:
            stop = window.stopped_by = EarlyStop.OTHER_PROFILER
        if stop is not None and window.is_requested and index < window.stop:
            window.stopped_by = stop
            self._plan.cut(window, index)

    def _drop(self) -> None:
        """Leave a capture of which nothing is wanted."""
        capture, self._window, self._capture, self._costs = self._capture, None, None, None
        try:
            if capture is not None:
                capture.discard()
        except RuntimeError:
            logger.debug("a cancelled capture had been ended by another profiler", exc_info=True)

    def _fail(self, window: CaptureWindow, index: int, error: Exception) -> None:
        self._plan.answer(window, AnswerState.FAILED, str(error))
        if window.is_requested:
            logger.warning("the capture of step %d that was asked for is left: %s", window.start, error)
            self._plan.cut(window, index)
        elif isinstance(error, RuntimeError):  # another profiler's, which may be gone at the next capture
            self._skip(window, error)
        else:
            raise error
        self._drop()

    def _skip(self, window: CaptureWindow, error: RuntimeError) -> None:
        self._skipped = window
        level = logging.DEBUG if str(error) in self._reasons_said else logging.WARNING
        self._reasons_said.add(str(error))
        logger.log(level, "the capture of step %d is skipped, later ones are tried: %s", window.start, error)

    def _leave(self, last_step: StepRecord) -> None:
        window, capture, costs = self._window, self._capture, self._costs
        self._window = self._capture = self._costs = None
        assert window is not None
        assert capture is not None
        started_ns = time.monotonic_ns()
        try:
            if capture.num_whole_steps:
                self._writer.write(functools.partial(self._write, window, capture, costs, capture.finish()))
                self._seconds_to_wait = _WAITS_FOR_TRACE_SECONDS
                self.latest = self.latest if window.is_partial else capture.first_step
            else:
                capture.discard()
                self._plan.answer(window, AnswerState.FAILED, "not one whole step was recorded")
        except (RuntimeError, OSError) as error:
            self._fail(window, self._plan.step, error)
        last_step.export_ns = time.monotonic_ns() - started_ns

    def _write(
        self, window: CaptureWindow, capture: Capture, costs: CaptureCosts | None, make_file: Callable[[], None]
    ) -> None:
        """On the writer's thread: make the file, and say what has become of it."""
        try:
            make_file()
            num_bytes, num_steps = capture.target.stat().st_size, capture.num_whole_steps
        except Exception as error:
            self._plan.answer(window, AnswerState.FAILED, str(error))
            if not window.is_requested:
                raise
            logger.warning("the trace of step %d that was asked for cannot be written: %s", window.start, error)
            return
        if costs is not None and costs.num_steps == num_steps:
            self._forecast.learn(num_bytes, costs.num_operators, num_steps)
        self._plan.answer(
            window,
            AnswerState.DONE,
            steps=num_steps,
            path=str(capture.target),
            num_bytes=num_bytes,
            overhead=None if costs is None else costs.overhead,
        )

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


@contextmanager
def _added_to_prepare_time(ended: StepRecord | None) -> Iterator[None]:
    """Count the time to the step that ended before; before the first one nobody waits for it."""
    began_ns = time.monotonic_ns()
    try:
        yield
    finally:
        if ended is not None:
            ended.prepare_ns += time.monotonic_ns() - began_ns
