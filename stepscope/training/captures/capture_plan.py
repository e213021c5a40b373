"""Which capture does each step of this rank belong to? The schedule, and what was asked for while training goes on.

Lives on the training thread. What others ask reaches it through `post` and is looked at between two steps, so that a
step never changes its mind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.core.agent_messages import Alignment, Answer, AnswerState, EarlyStop
from stepscope.training.captures.capture_limits import Limits
from stepscope.training.captures.schedule import Schedule, State

REQUEST_WARMUP = 1
"""Steps before a requested capture in which the profiler is prepared."""


@dataclass(slots=True)
class Window:
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
    limits: Limits = field(default_factory=Limits)
    is_requested: bool = False
    ids: list[str] = field(default_factory=list)
    is_partial: bool = False
    is_cancelled: bool = False
    stopped_by: EarlyStop | None = None


@dataclass(frozen=True, slots=True)
class Asked:
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
    limits: Limits
    joined: bool = False
    of_schedule: bool = False
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
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
        self._inbox: deque[Asked | Dropped] = deque()
        self._requested: list[Window] = []
        self._scheduled = self._scheduled_from(0)

    def post(self, item: Asked | Dropped) -> None:
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
            if isinstance(item, Asked):
                self._admit(item)
            else:
                self._drop(item.id)

    def window_for(self, index: int) -> Window | None:
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

    def cut(self, window: Window, index: int) -> None:
        """A requested capture is over before step `index`, sooner than was asked."""
        window.stop = min(window.stop, index)

    def answer(
        self,
        window: Window,
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

    def _windows(self) -> list[Window]:
        return [*self._requested, *([self._scheduled] if self._scheduled is not None else [])]

    def _scheduled_from(self, index: int) -> Window | None:
        start = self._schedule.capture_from(index)
        return None if start is None else Window(start, start + self._schedule.active, self._schedule.warmup)

    def _admit(self, asked: Asked) -> None:
        window = self._window_of(asked)
        if window is None and asked.start < self.step:
            reason = f"too late: step {asked.start} has begun, step {self.step} is next"
            self._tell(Answer(asked.id, AnswerState.REFUSED, reason, asked.start, asked.steps, asked.aligned_by))
            return
        if window is None:
            stop = asked.start + asked.steps
            if asked.of_schedule and self._takes_scheduled:  # a later one than the next
                window = Window(asked.start, stop, self._schedule.warmup)
            else:
                window = Window(
                    asked.start, stop, REQUEST_WARMUP, asked.limits, is_requested=True, is_partial=asked.is_partial
                )
            self._requested.append(window)
        window.ids.append(asked.id)
        self._tell(
            Answer(asked.id, AnswerState.ACCEPTED, None, asked.start, asked.steps, asked.aligned_by, asked.joined)
        )

    def _window_of(self, asked: Asked) -> Window | None:
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
