"""Device times of training steps: how long the GPU took for a step, and for what the host waited for or did in it.

Marks are CUDA events on the training thread's current stream. The GPU's time between two marks is what happened between
them costs the job: next to nothing while earlier work keeps the GPU busy, all of it once the GPU has run out of work. A
mark costs two microseconds and is read only after the GPU has passed it, so the host never waits.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.core.loader_waits import Instant, Interval, Mark

logger = logging.getLogger(__name__)

_MOST_KEPT_EVENTS = 1000


class _Mark:
    """CUDA event that is used again once nobody refers to its mark: to make one takes three times as long."""

    __slots__ = ("_kept", "event", "stream")

    def __init__(self, event: Any, kept: deque[Any], stream: Any) -> None:
        self.event = event
        self.stream = stream
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
    _has_passed: bool = False

    def has_passed(self) -> bool:
        """Whether the GPU has passed the end of the step; also True where that can never be known."""
        if not self._has_passed and not is_capturing_graph():
            self._ask()
        return self._has_passed

    def _ask(self) -> bool:
        try:
            self._has_passed = bool(self.end.event.query())
        except RuntimeError:
            logger.debug("device times are lost", exc_info=True)
            self.is_lost = self._has_passed = True
        return self._has_passed

    def duration_ns(self) -> int | None:
        """The GPU's time from the end of the step before; None when unknown."""
        return None if self.is_lost else _time_between(self.begin, self.end)

    def exposed_ns(self, intervals: Iterable[Interval]) -> int | None:
        """The GPU's time in some intervals of the step; None when that of one is unknown."""
        times = [None if self.is_lost else _time_between(began.mark, ended.mark) for began, ended in intervals]
        known = [time_ns for time_ns in times if time_ns is not None]
        return sum(known) if len(known) == len(times) else None


def ask_how_far(steps: Sequence[DeviceStep]) -> None:
    """Find out which of some steps, in their order, the GPU has passed; a question costs it some microseconds.

    A stream passes its marks in their order, so that of those at the end of one stream few are asked. Not to be called
    while a graph is captured.
    """
    if not steps:
        return
    first = next((n for n in range(len(steps), 0, -1) if steps[n - 1].end.stream != steps[-1].end.stream), 0)
    behind = len(steps)
    while first < behind:  # all before `first` are known, and all from `behind` on are not passed
        middle = behind - 1 if behind == len(steps) else (first + behind) // 2
        if not steps[middle]._ask():
            behind = middle
            continue
        for step in steps[first:middle]:
            step._has_passed = True
        first = middle + 1


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

    Nothing is marked before `look` has seen that this process uses CUDA, while a graph is captured, after a failure.
    """

    def __init__(self) -> None:
        self._calls: _CudaCalls | None = None
        self._has_failed = False
        self._stream_key: Any = None
        self._stream: Any = None
        self._kept: deque[Any] = deque()
        # by device: an event belongs to the one that it was recorded on
        self._kept_by_device: defaultdict[int, deque[Any]] = defaultdict(lambda: deque(maxlen=_MOST_KEPT_EVENTS))

    def now(self) -> Instant:
        """The current instant, behind the work that is launched by now; never raises."""
        return Instant(time.monotonic_ns(), self.mark())

    def mark(self) -> Mark:
        """How far the work that is launched by now has come; None where that is not to be known. Never raises."""
        calls = self._calls
        if calls is None:
            return None
        try:
            if calls.is_capturing():
                return None
            key = calls.current_stream(calls.current_device())
            if key != self._stream_key:  # torch's own look-up makes an object each time, which takes longer than a mark
                self._stream_key, self._stream = key, calls.stream_object()
                self._kept = self._kept_by_device[self._stream.device_index]
            kept = self._kept
            event = kept.pop() if kept else calls.new_event()
            calls.record(event, self._stream)
            return _Mark(event, kept, key)
        except Exception:  # training must never be hurt
            logger.debug("the GPU takes no marks", exc_info=True)
            self._has_failed, self._calls = True, None
            return None

    def look(self) -> None:
        """See whether this process uses CUDA by now, which it then does for good; torch may be imported late."""
        if self._calls is None and not self._has_failed and _cuda_in_use() is not None:
            self._calls = _CudaCalls(sys.modules["torch"])


class _CudaCalls:
    """torch's calls that a mark takes, without their wrappers in Python where torch has them so."""

    __slots__ = ("current_device", "current_stream", "is_capturing", "new_event", "record", "stream_object")

    def __init__(self, torch: Any) -> None:
        core, cuda = torch._C, torch.cuda
        self.is_capturing = getattr(core, "_cuda_isCurrentStreamCapturing", cuda.is_current_stream_capturing)
        self.current_device = getattr(core, "_cuda_getDevice", cuda.current_device)
        self.current_stream = getattr(core, "_cuda_getCurrentStream", lambda _: cuda.current_stream())
        self.stream_object = cuda.current_stream
        self.new_event = functools.partial(cuda.Event, enable_timing=True)
        self.record = getattr(getattr(core, "_CudaEventBase", cuda.Event), "record", cuda.Event.record)


def _time_between(before: Mark, after: Mark) -> int | None:
    """Nanoseconds; None where a mark is missing or not passed yet, or they are of two devices."""
    if before is None or after is None:
        return None
    try:
        return max(int(before.event.elapsed_time(after.event) * 1e6), 0)
    except (RuntimeError, ValueError):
        return None
