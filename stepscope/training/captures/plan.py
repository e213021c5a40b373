"""Capture plan: which capture each step belongs to, by the schedule and by requests, and where a request has room.

`CapturePlan` lives on the training thread. Requests reach it through `post` and are read between two steps, so that a
step never changes its state. `CaptureCalendar` has no clock and no I/O: ranks that see the same requests in the same
order give them the same steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.core.protocol.messages import Alignment, Answer, AnswerState, EarlyStop
from stepscope.training.captures.limits import CaptureLimits
from stepscope.training.captures.schedule import Schedule, State

REQUEST_WARMUP = 1
"""Steps before a requested capture in which the profiler is prepared."""


@dataclass(slots=True)
class CaptureWindow:
    """One capture of this rank.

    Attributes:
        start: its first step.
        stop: the step after its last.
        warmup: steps before it in which the profiler is prepared.
        is_requested: asked for while training went on, so that its failure is an answer and concerns nobody else.
        ids: the requests that wait for it; several when some have joined, none for a scheduled capture of nobody's.
        is_partial: only some ranks take it.
        is_cancelled: nothing of it is to be kept.
    """

    start: int
    stop: int
    warmup: int
    limits: CaptureLimits = field(default_factory=CaptureLimits)
    is_requested: bool = False
    ids: list[str] = field(default_factory=list)
    is_partial: bool = False
    is_cancelled: bool = False
    stopped_by: EarlyStop | None = None


@dataclass(frozen=True, slots=True)
class AgreedCapture:
    """A capture that the ranks have agreed on.

    Attributes:
        joined: another capture, of just these steps, holds those asked for.
        of_schedule: that other one is scheduled.
        is_partial: only some ranks are asked.
    """

    id: str
    start: int
    steps: int
    aligned_by: Alignment
    limits: CaptureLimits
    joined: bool = False
    of_schedule: bool = False
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class CancelledCapture:
    """A capture that is wanted no more."""

    id: str


class CapturePlan:
    """The schedule merged with requests.

    Args:
        takes_scheduled: whether this rank takes the scheduled captures; requested ones it takes always.
        tell: is given what has become of each request; called on the training thread and on that of the writer.

    Attributes:
        step: the step that runs.
    """

    def __init__(self, schedule: Schedule, *, takes_scheduled: bool, tell: Callable[[Answer], None]) -> None:
        self.step = 0
        self._schedule = schedule
        self._takes_scheduled = takes_scheduled
        self._tell = tell
        self._inbox: deque[AgreedCapture | CancelledCapture] = deque()
        self._requested: list[CaptureWindow] = []
        self._scheduled = self._scheduled_from(0)

    def post(self, item: AgreedCapture | CancelledCapture) -> None:
        """Ask from any thread; looked at before the next step begins."""
        self._inbox.append(item)

    def advance(self, index: int) -> None:
        """Step `index` is about to begin."""
        self.step = index
        if self._scheduled is not None and self._scheduled.stop <= index:
            self._scheduled = self._scheduled_from(index)
        if self._requested:
            self._requested = [window for window in self._requested if window.stop > index]
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, AgreedCapture):
                self._admit(item)
            else:
                self._drop(item.id)

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

    def state(self, index: int) -> State:
        """What happens during `index`, the running step; by the schedule also where other ranks take its captures."""
        window = self.window_for(index) or self._scheduled
        if window is None or not window.start - window.warmup <= index < window.stop:
            return State.WAIT
        return State.ACTIVE if index >= window.start else State.WARMUP

    def cut(self, window: CaptureWindow, index: int) -> None:
        """A requested capture is over before step `index`, sooner than was asked."""
        window.stop = min(window.stop, index)

    def answer(
        self,
        window: CaptureWindow,
        state: AnswerState,
        reason: str | None = None,
        *,
        steps: int | None = None,
        path: str | None = None,
        num_bytes: int | None = None,
        overhead: float | None = None,
    ) -> None:
        """Tell all who wait for the capture what has become of it."""
        for capture_id in tuple(window.ids):
            self._tell(
                Answer(
                    capture_id,
                    state,
                    reason,
                    start_step=window.start,
                    steps=window.stop - window.start if steps is None else steps,
                    path=path,
                    bytes=num_bytes,
                    overhead=overhead,
                    stopped_by=window.stopped_by,
                )
            )
        if state.is_final:
            window.ids.clear()

    def close(self, reason: str) -> None:
        """No step comes any more: what has not begun fails."""
        self.advance(self.step)
        for window in self._windows():
            self.answer(window, AnswerState.FAILED, reason)
        self._requested = []

    def _windows(self) -> list[CaptureWindow]:
        return [*self._requested, *([self._scheduled] if self._scheduled is not None else [])]

    def _scheduled_from(self, index: int) -> CaptureWindow | None:
        start = self._schedule.capture_from(index)
        return None if start is None else CaptureWindow(start, start + self._schedule.active, self._schedule.warmup)

    def _admit(self, asked: AgreedCapture) -> None:
        window = self._window_of(asked)
        if window is None and asked.start < self.step:
            reason = f"too late: step {asked.start} has begun, step {self.step} is next"
            self._tell(Answer(asked.id, AnswerState.REFUSED, reason, asked.start, asked.steps, asked.aligned_by))
            return
        if window is None:
            stop = asked.start + asked.steps
            if asked.of_schedule and self._takes_scheduled:  # a later one than the next
                window = CaptureWindow(asked.start, stop, self._schedule.warmup)
            else:
                window = CaptureWindow(
                    asked.start, stop, REQUEST_WARMUP, asked.limits, is_requested=True, is_partial=asked.is_partial
                )
            self._requested.append(window)
        window.ids.append(asked.id)
        self._tell(
            Answer(asked.id, AnswerState.ACCEPTED, None, asked.start, asked.steps, asked.aligned_by, asked.joined)
        )

    def _window_of(self, asked: AgreedCapture) -> CaptureWindow | None:
        """The capture of just these steps that this rank takes anyway."""
        for window in self._windows():
            if (window.start, window.stop) == (asked.start, asked.start + asked.steps):
                return window if window is not self._scheduled or self._takes_scheduled else None
        return None

    def _drop(self, capture_id: str) -> None:
        for window in self._windows():
            if capture_id in window.ids:
                window.ids.remove(capture_id)
                if not window.ids and window.is_requested:
                    window.is_cancelled = True
                    self.cut(window, self.step)
                self._tell(Answer(capture_id, AnswerState.CANCELLED, "as asked", window.start))
                return


_SEARCHED_STEPS = 10_000
_MAX_KEPT = 64


@dataclass(frozen=True, slots=True)
class CaptureSlot:
    """Where a capture takes place.

    Attributes:
        joined: it is another one's, whose steps these are.
        of_schedule: that other one is scheduled.
    """

    start: int
    steps: int
    joined: bool = False
    of_schedule: bool = False


class CaptureCalendar:
    """The captures of the schedule and those that were given a place."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._places: list[tuple[str, CaptureSlot]] = []

    def place(self, capture_id: str, start: int, steps: int) -> CaptureSlot | str:
        """The place of a capture of these steps, kept from now on; or why there is none for it."""
        others = self._others(start, start + steps)
        for other, place in others:
            if place.start <= start and start + steps <= place.start + place.steps:
                return CaptureSlot(place.start, place.steps, joined=True, of_schedule=other is None)
        for other, place in others:
            what = "the schedule" if other is None else f"request {other}"
            last = place.start + place.steps - 1
            return (
                f"steps {start} to {start + steps - 1} and the step before, which prepares the profiler, do not go with"
                f" the capture of steps {place.start} to {last} by {what}"
            )
        own = CaptureSlot(start, steps)
        self._places = [*self._places, (capture_id, own)][-_MAX_KEPT:]
        return own

    def free_start(self, earliest: int, steps: int) -> int | None:
        """The first step from `earliest` on at which so many can be captured; None when there is no room soon."""
        start = earliest
        while start < earliest + _SEARCHED_STEPS:
            others = self._others(start, start + steps)
            if not others:
                return start
            start = max(place.start + place.steps for _, place in others) + REQUEST_WARMUP
        return None

    def _others(self, start: int, stop: int) -> list[tuple[str | None, CaptureSlot]]:
        """Captures that share a step with this one, warm-ups counted; those of the schedule, without id, first."""
        found: list[tuple[str | None, CaptureSlot]] = []
        schedule = self._schedule
        next_start = schedule.capture_from(max(start - REQUEST_WARMUP, 0))
        while next_start is not None and next_start - schedule.warmup < stop:
            found.append((None, CaptureSlot(next_start, schedule.active)))
            next_start = schedule.capture_from(next_start + schedule.active)
        for capture_id, place in self._places:
            if place.start - REQUEST_WARMUP < stop and start - REQUEST_WARMUP < place.start + place.steps:
                found.append((capture_id, place))
        return found
