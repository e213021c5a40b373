"""Capture plan: the capture that each step belongs to, by the schedule and by requests, and where a request has room.

`CapturePlan` is used by the training thread. Requests reach it through `post` and are read between two steps, so that a
step never changes its state. `CaptureCalendar` has no clock and no I/O: ranks that see the same requests in the same
order give them the same steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from stepscope.core.protocol.captures import Alignment, CaptureProgress, CaptureRequest, CaptureState, EarlyStop
from stepscope.core.protocol.messages import Cancel
from stepscope.training.captures.schedule import ProfilerState, Schedule
from stepscope.training.steps.telemetry import NEVER

REQUEST_WARMUP = 1
"""Steps before a requested capture in which the profiler is prepared."""

Report = Callable[[str, CaptureProgress], None]
"""Takes the id of a capture and its progress."""


@dataclass(slots=True)
class CaptureWindow:
    """One capture in this rank's plan.

    Attributes:
        stop: the step after its last.
        warmup: steps before it in which the profiler is prepared.
        request: its limits and ranks; None for a scheduled capture.
        ids: the requests that wait for it; several when some have joined, none for a scheduled capture that no request
            has joined.
        is_light: it records the GPU's activities and runtime calls alone.
        is_cancelled: nothing of it is to be kept.
    """

    start: int
    stop: int
    warmup: int
    request: CaptureRequest | None = None
    ids: list[str] = field(default_factory=list)
    is_light: bool = False
    is_cancelled: bool = False
    stopped_by: EarlyStop | None = None

    @property
    def is_requested(self) -> bool:
        """Whether it was requested while training went on; then its failure is an answer and concerns no other."""
        return self.request is not None

    @property
    def is_partial(self) -> bool:
        return self.request is not None and self.request.ranks is not None


@dataclass(frozen=True, slots=True)
class CaptureSlot:
    """The steps that a plan gives a capture.

    Attributes:
        joined: another capture has these steps, which hold those requested.
        of_schedule: that other one is scheduled.
        is_light: it is a light one, which does not hold what a request asks for.
    """

    start: int
    steps: int
    joined: bool = False
    of_schedule: bool = False
    is_light: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.steps


@dataclass(frozen=True, slots=True)
class AgreedCapture:
    """A capture that the ranks have agreed on."""

    request: CaptureRequest
    slot: CaptureSlot
    aligned_by: Alignment


class CapturePlan:
    """Capture plan of a rank: the schedule merged with requests.

    Args:
        takes_scheduled: whether this rank takes the scheduled captures; it always takes requested ones.
        report: takes the progress of each request; called on the training thread and on that of the writer.

    Attributes:
        running_step: number of the step that runs, on any thread; between two calls of `advance` nothing changes.
        when_posted: called, on any thread, when something is to be read before the next step begins.
    """

    def __init__(self, schedule: Schedule, *, takes_scheduled: bool, report: Report) -> None:
        self._step = 0
        self.running_step: Callable[[], int] = lambda: 0
        self.when_posted: Callable[[], None] = lambda: None
        self._schedule = schedule
        self._takes_scheduled = takes_scheduled
        self._report = report
        self._inbox: deque[AgreedCapture | Cancel] = deque()
        self._requested: list[CaptureWindow] = []
        self._scheduled = self._scheduled_from(0)

    def post(self, item: AgreedCapture | Cancel) -> None:
        """Add or cancel a capture before the next step begins; from any thread."""
        self._inbox.append(item)
        self.when_posted()

    @property
    def step(self) -> int:
        """The step that runs, or is about to begin."""
        return max(self._step, self.running_step())

    @property
    def has_posted(self) -> bool:
        """Whether something waits for the next step to begin."""
        return bool(self._inbox)

    def due_step(self, index: int) -> int:
        """The first step after `index`, the running one, before which something changes unless more is posted."""
        windows = [window for window in self._windows() if window.stop >= index]
        starts = [window.start - window.warmup for window in windows]
        return min((max(start, index + 1) for start in starts), default=NEVER)

    def advance(self, index: int) -> None:
        """Step `index` is about to begin."""
        self._step = index
        if self._scheduled is not None and self._scheduled.stop <= index:
            self._scheduled = self._scheduled_from(index)
        if self._requested:
            self._requested = [window for window in self._requested if window.stop > index]
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, AgreedCapture):
                self._admit(item)
            else:
                self._cancel(item.id)

    def window_for(self, index: int) -> CaptureWindow | None:
        """The capture that this rank takes in step `index`, or prepares in it."""
        if self._requested:
            for window in self._requested:
                if window.start - window.warmup <= index < window.stop:
                    return window
        scheduled = self._scheduled
        if scheduled is None or not self._takes_scheduled or index < scheduled.start - scheduled.warmup:
            return None
        return scheduled if index < scheduled.stop else None

    def state(self, index: int) -> ProfilerState:
        """What happens during `index`, the running step; by the schedule also where other ranks take its captures."""
        window = self.window_for(index) or self._scheduled
        if window is None or not window.start - window.warmup <= index < window.stop:
            return ProfilerState.WAIT
        return ProfilerState.ACTIVE if index >= window.start else ProfilerState.WARMUP

    def cut(self, window: CaptureWindow, index: int) -> None:
        """End a requested capture before step `index`, sooner than requested."""
        window.stop = min(window.stop, index)

    def report(self, window: CaptureWindow, progress: CaptureProgress) -> None:
        """Report the progress of a capture to all requests that wait for it; its steps are filled in."""
        steps = window.stop - window.start if progress.steps is None else progress.steps
        progress = replace(progress, start_step=window.start, steps=steps, stopped_by=window.stopped_by)
        for capture_id in tuple(window.ids):
            self._report(capture_id, progress)
        if progress.state.is_final:
            window.ids.clear()

    def close(self, reason: str) -> None:
        """Fail the captures that have not begun: no step follows."""
        self.advance(self.step)
        for window in self._windows():
            self.report(window, CaptureProgress(CaptureState.FAILED, reason))
        self._requested = []

    def _windows(self) -> list[CaptureWindow]:
        return [*self._requested, *([self._scheduled] if self._scheduled is not None else [])]

    def _scheduled_from(self, index: int) -> CaptureWindow | None:
        schedule = self._schedule
        start = schedule.capture_from(index)
        if start is None:
            return None
        stop = start + schedule.num_steps(start)
        return CaptureWindow(start, stop, schedule.warmup, is_light=schedule.is_light(start))

    def _admit(self, agreed: AgreedCapture) -> None:
        request, slot = agreed.request, agreed.slot
        progress = CaptureProgress(CaptureState.ACCEPTED, None, slot.start, slot.steps, agreed.aligned_by, slot.joined)
        window = self._window_of(slot)
        if window is None and slot.start < self.step:
            reason = f"too late: step {slot.start} has begun, step {self.step} is next"
            self._report(request.id, replace(progress, state=CaptureState.REFUSED, reason=reason, joined=False))
            return
        if window is None:
            if slot.of_schedule and self._takes_scheduled:  # a later one than the next
                window = CaptureWindow(slot.start, slot.stop, self._schedule.warmup)
            else:
                window = CaptureWindow(slot.start, slot.stop, REQUEST_WARMUP, request)
            self._requested.append(window)
        window.ids.append(request.id)
        self._report(request.id, progress)

    def _window_of(self, slot: CaptureSlot) -> CaptureWindow | None:
        """The capture of just these steps that this rank takes anyway."""
        for window in self._windows():
            if (window.start, window.stop) == (slot.start, slot.stop):
                return window if window is not self._scheduled or self._takes_scheduled else None
        return None

    def _cancel(self, capture_id: str) -> None:
        for window in self._windows():
            if capture_id in window.ids:
                window.ids.remove(capture_id)
                if not window.ids and window.is_requested:
                    window.is_cancelled = True
                    self.cut(window, self.step)
                self._report(capture_id, CaptureProgress(CaptureState.CANCELLED, "as asked", window.start))
                return


_SEARCHED_STEPS = 10_000
_MAX_KEPT = 64


class CaptureCalendar:
    """Calendar of a rank's captures: the slots of the schedule's and of those that ranks have agreed on."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._slots: list[tuple[str, CaptureSlot]] = []

    def place(self, capture_id: str, start: int, steps: int) -> CaptureSlot | str:
        """The slot of a capture of these steps, kept from now on; or why there is none for it."""
        own = CaptureSlot(start, steps)
        others = self._overlapping(own)
        for other, slot in others:
            if slot.start <= start and own.stop <= slot.stop and not slot.is_light:
                return CaptureSlot(slot.start, slot.steps, joined=True, of_schedule=other is None)
        for other, slot in others:
            what = "the schedule" if other is None else f"request {other}"
            return (
                f"steps {start} to {own.stop - 1} and the step before, which prepares the profiler, overlap"
                f" the capture of steps {slot.start} to {slot.stop - 1} by {what}"
            )
        self._slots = [*self._slots, (capture_id, own)][-_MAX_KEPT:]
        return own

    def free_start(self, earliest: int, steps: int) -> int | None:
        """The first step from `earliest` on at which so many can be captured; None when there is no room soon."""
        start = earliest
        while start < earliest + _SEARCHED_STEPS:
            others = self._overlapping(CaptureSlot(start, steps))
            if not others:
                return start
            start = max(slot.stop for _, slot in others) + REQUEST_WARMUP
        return None

    def _overlapping(self, own: CaptureSlot) -> list[tuple[str | None, CaptureSlot]]:
        """Captures that share a step with this one, warm-ups included; those of the schedule, without id, first."""
        found: list[tuple[str | None, CaptureSlot]] = []
        schedule = self._schedule
        next_start = schedule.capture_from(max(own.start - REQUEST_WARMUP, 0))
        while next_start is not None and next_start - schedule.warmup < own.stop:
            slot = CaptureSlot(next_start, schedule.num_steps(next_start), is_light=schedule.is_light(next_start))
            found.append((None, slot))
            next_start = schedule.capture_from(slot.stop)
        for capture_id, slot in self._slots:
            if slot.start - REQUEST_WARMUP < own.stop and own.start - REQUEST_WARMUP < slot.stop:
                found.append((capture_id, slot))
        return found
