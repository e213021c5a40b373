"""Device times of training steps: how long the GPU took for a step, and for what the host waited for or did in it.

Marks are CUDA events on the training thread's current stream. The GPU's time between two marks is what happened between
them costs the job: next to nothing while earlier work keeps the GPU busy, all of it once the GPU has run out of work. A
mark costs two microseconds and is read only after the GPU has passed it, so the host never waits.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stepscope.core.loader_waits import Instant, Interval, Mark

logger = logging.getLogger(__name__)

_MOST_KEPT_EVENTS = 1000


class _Mark:
    """CUDA event that is used again once nobody refers to its mark: to make one takes three times as long."""

    __slots__ = ("_kept", "event")

    def __init__(self, event: Any, kept: deque[Any]) -> None:
        self.event = event
        self._kept = kept

    def __del__(self) -> None:
        self._kept.append(self.event)


@dataclass(slots=True)
class DeviceStep:
    """A finished step on its way through the GPU.

    Attributes:
        begin: mark at the end of the step before; None where it has none.
        is_lost: the GPU reported a fault, which is training's own to tell.
    """

    begin: Mark
    end: Mark
    is_lost: bool = False

    def has_passed(self) -> bool:
        """Whether the GPU has passed the end of the step; also True where that can never be known."""
        try:
            return self.is_lost or (not is_capturing_graph() and bool(self.end.event.query()))
        except RuntimeError:
            logger.debug("device times are lost", exc_info=True)
            self.is_lost = True
            return True

    def duration_ns(self) -> int | None:
        """The GPU's time from the end of the step before; None when unknown."""
        return None if self.is_lost else _time_between(self.begin, self.end)

    def exposed_ns(self, intervals: Iterable[Interval]) -> int | None:
        """The GPU's time in some intervals of the step; None when that of one is unknown."""
        times = [None if self.is_lost else _time_between(began.mark, ended.mark) for began, ended in intervals]
        known = [time_ns for time_ns in times if time_ns is not None]
        return sum(known) if len(known) == len(times) else None


def is_capturing_graph() -> bool:
    """Whether the current stream captures a CUDA graph: to ask for any event then breaks the capture."""
    cuda = _cuda_in_use()
    return cuda is not None and bool(cuda.is_current_stream_capturing())


def _cuda_in_use() -> Any:
    """torch.cuda, where this process has used CUDA; torch may be imported later than this module."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


class DeviceClock:
    """Marks instants of training, and the ends of its steps, on the current CUDA stream.

    Nothing is marked in a process that has not used CUDA, nor while a graph is being captured, and after a failure.
    """

    def __init__(self) -> None:
        self._has_failed = False
        self._last_end: Mark = None
        self._stream_key: Any = None
        self._stream: Any = None
        # by device: an event belongs to the one that it was recorded on
        self._kept: defaultdict[int, deque[Any]] = defaultdict(lambda: deque(maxlen=_MOST_KEPT_EVENTS))

    def now(self) -> Instant:
        """The current instant, behind the work that is launched by now; never raises."""
        return Instant(time.monotonic_ns(), self._mark())

    def end_step(self) -> DeviceStep | None:
        """End the running step and begin the next; None without a GPU."""
        begin, self._last_end = self._last_end, self._mark()
        return None if self._last_end is None else DeviceStep(begin, self._last_end)

    def _mark(self) -> Mark:
        if self._has_failed:
            return None
        try:
            cuda = _cuda_in_use()
            if cuda is None or is_capturing_graph():
                return None
            stream = self._current_stream(cuda)
            kept = self._kept[stream.device_index]
            mark = _Mark(kept.pop() if kept else cuda.Event(enable_timing=True), kept)
            mark.event.record(stream)
            return mark
        except Exception:  # training must never be hurt
            logger.debug("the GPU takes no marks", exc_info=True)
            self._has_failed = True
            return None

    def _current_stream(self, cuda: Any) -> Any:
        """torch's own look-up makes an object each time, which takes longer than recording an event."""
        look_up = getattr(sys.modules["torch"]._C, "_cuda_getCurrentStream", None)
        if look_up is None:  # another torch
            return cuda.current_stream()
        key = look_up(cuda.current_device())
        if key != self._stream_key:
            self._stream_key, self._stream = key, cuda.current_stream()
        return self._stream


def _time_between(before: Mark, after: Mark) -> int | None:
    """Nanoseconds; None where a mark is missing or not passed yet, or they are of two devices."""
    if before is None or after is None:
        return None
    try:
        return max(int(before.event.elapsed_time(after.event) * 1e6), 0)
    except (RuntimeError, ValueError):
        return None
