"""Capture runner: between steps, prepares, starts, ends and hands over the capture that is due.

A capture's limits (size, overhead, deadline) are checked after each profiled step at no cost.
"""

from __future__ import annotations

import functools
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from stepscope.core.protocol.captures import CaptureProgress, CaptureRequest, CaptureState, EarlyStop
from stepscope.training.captures.plan import CapturePlan, CaptureWindow
from stepscope.training.captures.recording import DETACHMENT, OtherProfilerWatch, Recording
from stepscope.training.captures.trace_export import TraceWriter
from stepscope.training.steps.telemetry import RecentStepTime, StepRecord

logger = logging.getLogger(__name__)

_WAITS_FOR_TRACE_SECONDS = 2.0
"""Total time between steps for a trace still being written when the next capture is due, which is then skipped."""


class TraceWritten(Protocol):
    """Takes the path of a trace that is whole."""

    def __call__(self, trace: Path, /, *, is_requested: bool) -> None: ...


class CaptureRunner:
    """Takes a rank's captures, one after another: prepares, starts and ends their recordings between steps.

    Args:
        plan: the capture that each step belongs to.
        new_recording: makes the recording of a window.
        before_start: called just before a recording starts.
        before_stepping_aside: closes every span of stepscope: one that ends under another profiler than it began under
            makes torch write into freed memory.
        step_time: recent time of a step without the profiler.
        trace_written: takes each whole trace of operators, and whether it was requested; on the writer's thread.

    Attributes:
        latest: first step of the latest full capture of all ranks that has whole steps; None without one.

    Raises:
        OSError: from every method, when a scheduled capture cannot be written. The failure of a requested one is
            reported instead.
    """

    def __init__(
        self,
        plan: CapturePlan,
        new_recording: Callable[[CaptureWindow], Recording],
        *,
        before_start: Callable[[], None],
        before_stepping_aside: Callable[[], None],
        step_time: RecentStepTime,
        trace_written: TraceWritten | None = None,
    ) -> None:
        self.latest: int | None = None
        self._plan = plan
        self._new_recording = new_recording
        self._before_start = before_start
        self._before_stepping_aside = before_stepping_aside
        self._step_time = step_time
        self._trace_written = trace_written
        self._window: CaptureWindow | None = None
        self._skipped: CaptureWindow | None = None
        self._logged_reasons: set[str] = set()
        self._recording: Recording | None = None
        self._costs: CaptureCosts | None = None
        self._forecast = TraceSizeForecast()
        self._writer = TraceWriter()
        self._seconds_to_wait = _WAITS_FOR_TRACE_SECONDS
        self._watch = OtherProfilerWatch(self._make_room)

    @property
    def is_writing(self) -> bool:
        """Whether a trace is not whole on disk yet."""
        return self._writer.is_writing

    @property
    def is_capturing(self) -> bool:
        return self._costs is not None

    def move_to(self, index: int, ended: StepRecord | None) -> None:
        """Between two steps: end the capture that is over, prepare or start the one that step `index` belongs to."""
        self._plan.advance(index)
        DETACHMENT.check()
        if not self._writer.is_writing:
            self._writer.finish()
            if self._recording is None:
                self._watch.stop()
        window = self._window
        if window is not None:
            if self._costs is not None and ended is not None:
                self._count(window, self._costs, ended, index)
            if ended is None or window.is_cancelled or (index >= window.stop and self._costs is None):
                self._drop()
            elif index >= window.stop:
                self._finish(ended)
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
                self._finish(open_step)
            self._writer.finish()
        finally:
            self._watch.stop()
            DETACHMENT.wait()
            self._plan.close("training ended before it began")

    def discard(self) -> None:
        """Stop what runs and leave no file of it; what is being written is written."""
        recording, self._recording = self._recording, None
        window, self._window, self._costs = self._window, None, None
        try:
            if window is not None:
                self._report(window, CaptureState.FAILED, "measuring has stopped")
            if recording is not None:
                recording.discard()
            self._writer.finish()
        finally:
            self._watch.stop()
            DETACHMENT.wait()
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
        self._window, self._recording = window, self._new_recording(window)
        with _added_to_prepare_time(ended):
            self._recording.prepare()

    def _start(self, window: CaptureWindow, index: int, ended: StepRecord | None) -> None:
        deadline_ns = window.request.deadline_unix_ns if window.request is not None else None
        if deadline_ns is not None and time.time_ns() > deadline_ns:
            self._report(window, CaptureState.CANCELLED, "its deadline passed before it began")
            self._plan.cut(window, index)
            self._drop()
            return
        self._wait_for_writer(ended)
        if self._window is not window or self._recording is None:
            self._window, self._recording = window, self._new_recording(window)
        self._before_start()
        with _added_to_prepare_time(ended):
            self._recording.start()
        self._costs = CaptureCosts(window.request, self._forecast, self._step_time.median_ns)
        self._watch.start()
        self._report(window, CaptureState.STARTED)

    def _count(self, window: CaptureWindow, costs: CaptureCosts, ended: StepRecord, index: int) -> None:
        recording = self._recording
        assert recording is not None
        stop = costs.add(ended)
        if recording.is_recording:
            recording.num_whole_steps += 1
        else:
            stop = window.stopped_by = EarlyStop.OTHER_PROFILER
        if stop is not None and window.is_requested and index < window.stop:
            window.stopped_by = stop
            self._plan.cut(window, index)

    def _drop(self) -> None:
        recording, self._window, self._recording, self._costs = self._recording, None, None, None
        try:
            if recording is not None:
                recording.discard()
        except RuntimeError:
            logger.debug("a cancelled capture had been ended by another profiler", exc_info=True)

    def _fail(self, window: CaptureWindow, index: int, error: Exception) -> None:
        self._report(window, CaptureState.FAILED, str(error))
        if window.is_requested:
            logger.warning("the requested capture of step %d has failed: %s", window.start, error)
            self._plan.cut(window, index)
        elif isinstance(error, RuntimeError):  # another profiler's, which may be gone at the next capture
            self._skip(window, error)
        else:
            raise error
        self._drop()

    def _skip(self, window: CaptureWindow, error: RuntimeError) -> None:
        self._skipped = window
        level = logging.DEBUG if str(error) in self._logged_reasons else logging.WARNING
        self._logged_reasons.add(str(error))
        logger.log(level, "the capture of step %d is skipped, later ones are tried: %s", window.start, error)

    def _finish(self, last_step: StepRecord) -> None:
        window, recording, costs = self._window, self._recording, self._costs
        self._window = self._recording = self._costs = None
        assert window is not None
        assert recording is not None
        started_ns = time.monotonic_ns()
        try:
            if recording.num_whole_steps:
                self._writer.write(functools.partial(self._write, window, recording, costs, recording.finish()))
                self._seconds_to_wait = _WAITS_FOR_TRACE_SECONDS
                self.latest = self.latest if window.is_partial or window.is_light else recording.first_step
            else:
                recording.discard()
                self._report(window, CaptureState.FAILED, "not one whole step was recorded")
        except (RuntimeError, OSError) as error:
            self._fail(window, self._plan.step, error)
        last_step.export_ns = time.monotonic_ns() - started_ns

    def _write(
        self, window: CaptureWindow, recording: Recording, costs: CaptureCosts | None, make_file: Callable[[], None]
    ) -> None:
        """Make the trace file and report the result; runs on the writer's thread."""
        try:
            make_file()
            num_bytes, num_steps = recording.target.stat().st_size, recording.num_whole_steps
        except Exception as error:
            self._report(window, CaptureState.FAILED, str(error))
            if not window.is_requested:
                raise
            logger.warning("the requested trace of step %d cannot be written: %s", window.start, error)
            return
        if costs is not None and costs.num_steps == num_steps and not window.is_light:
            self._forecast.learn(num_bytes, costs.num_operators, num_steps)
        done = CaptureProgress(
            CaptureState.DONE,
            steps=num_steps,
            path=str(recording.target),
            bytes=num_bytes,
            overhead=None if costs is None else costs.overhead,
        )
        self._plan.report(window, done)
        if self._trace_written is not None and not window.is_light:
            self._trace_written(recording.target, is_requested=window.is_requested or bool(window.ids))

    def _report(self, window: CaptureWindow, state: CaptureState, reason: str | None = None) -> None:
        self._plan.report(window, CaptureProgress(state, reason))

    def _make_room(self) -> None:
        """Step aside for another torch profiler that is about to begin."""
        recording = self._recording
        if recording is not None and recording.records_this_thread:
            self._before_stepping_aside()
            try:
                recording.step_aside()
            except (RuntimeError, OSError):  # it is lost, which `finish` raises
                logger.debug("stepping aside failed", exc_info=True)
            logger.warning(
                "another torch profiler began while stepscope profiled step %d and on; it goes on alone, stepscope"
                " keeps the %d whole steps it has",
                recording.first_step,
                recording.num_whole_steps,
            )
        self._writer.wait()
        DETACHMENT.wait()


@contextmanager
def _added_to_prepare_time(ended: StepRecord | None) -> Iterator[None]:
    """Add the time to the step that ended before; None before the first one."""
    began_ns = time.monotonic_ns()
    try:
        yield
    finally:
        if ended is not None:
            ended.prepare_ns += time.monotonic_ns() - began_ns


_BYTES_PER_OPERATOR = 1000.0
"""Compressed trace per operator that autograd numbers, with its children, backward, launches and kernels: 830 to 1200
in recorded DDP, FSDP and launch-bound runs on H100s and in pipelines on CPUs."""


class TraceSizeForecast:
    """Forecast of a captured trace's size, corrected by every trace that this process has written."""

    def __init__(self) -> None:
        self._bytes_per_operator = _BYTES_PER_OPERATOR
        self._bytes_per_step = 0.0

    def num_bytes(self, num_operators: int, num_steps: int) -> float:
        """Size of a compressed trace; 0 while it is unknown: no autograd in the loop, and no trace yet."""
        return num_operators * self._bytes_per_operator or num_steps * self._bytes_per_step

    def learn(self, num_bytes: int, num_operators: int, num_steps: int) -> None:
        """Correct the forecast by a written trace."""
        self._bytes_per_step = num_bytes / num_steps
        if num_operators:
            self._bytes_per_operator = num_bytes / num_operators


class CaptureCosts:
    """Costs of one running capture, compared with its limits.

    Args:
        request: its limits; None has none.
        usual_ns: time of a step before it; None when unknown.

    Attributes:
        num_steps: whole steps so far.
        num_operators: operators that autograd has numbered in them.
    """

    def __init__(self, request: CaptureRequest | None, forecast: TraceSizeForecast, usual_ns: float | None) -> None:
        self.num_steps = self.num_operators = 0
        self._request = request
        self._forecast = forecast
        self._usual_ns = usual_ns
        self._durations: list[int] = []
        self._first_operator = operators_so_far()

    def add(self, record: StepRecord) -> EarlyStop | None:
        """Count a whole step; returns why the capture should end with it, or None."""
        self.num_steps += 1
        self.num_operators = operators_so_far() - self._first_operator
        self._durations.append(record.duration_ns)
        limits, overhead = self._request, self.overhead
        if limits is None:
            return None
        if limits.deadline_unix_ns is not None and record.end_ns >= limits.deadline_unix_ns:
            return EarlyStop.DEADLINE
        if limits.max_overhead is not None and overhead is not None and overhead > limits.max_overhead:
            return EarlyStop.MAX_OVERHEAD
        with_one_more = self._forecast.num_bytes(self.num_operators, self.num_steps) * (1 + 1 / self.num_steps)
        if limits.max_bytes is not None and with_one_more > limits.max_bytes:
            return EarlyStop.MAX_BYTES
        return None

    @property
    def overhead(self) -> float | None:
        """Share by which the profiled steps are longer than those before (median of each); None when unknown."""
        if not self._durations or not self._usual_ns:
            return None
        return statistics.median(self._durations) / self._usual_ns - 1


def operators_so_far() -> int:
    """In the training process, captures: operators that autograd has counted on this thread.

    0 in a torch without that count.
    """
    autograd = getattr(getattr(sys.modules.get("torch"), "_C", None), "_autograd", None)
    count = getattr(autograd, "_get_sequence_nr", None)
    return 0 if count is None else int(count())
