"""Stall detection: the age at which a step is suspect, and whether a thread still makes progress.

The thresholds come from the times of the steps before and from the timeout of the process groups. A slow thread is not
stuck: its stack changes, bytes are read or written, or child processes use CPU time.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.core.documents.hang import stall_threshold_seconds

_MIN_SECONDS = 60.0
"""Shorter stops are part of normal training: a garbage collection, a slow file, a recompilation of one kernel."""

_MIN_LONG_SECONDS = 600.0
"""First steps compile and load; a named phase takes as long as it takes."""

_TIMES_MEDIAN = 10.0
_TIMES_LONGEST = 3.0
SHARE_OF_TIMEOUT = 0.8
"""torch ends the job when a collective has waited for the timeout; the rest is time to write down what is known."""

_MIN_FIRST_LOOK_SECONDS = 5.0
_TIMES_MEDIAN_FIRST_LOOK = 1.5

_NUM_FIRST_STEPS = 3
_NUM_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class StepSituation:
    """What the open step is in, which decides the age at which it counts as stalled.

    Attributes:
        is_long_by_nature: inside a named phase, or compiling.
        timeout_seconds: the shortest timeout of torch's process groups; None without any.
    """

    is_long_by_nature: bool = False
    timeout_seconds: float | None = None


class StallThresholds:
    """Ages from which an open step counts as stalled, learned from finished steps.

    Args:
        seconds: the limit when the user gave one; else it is found.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._given = seconds
        self._num_steps = 0
        self._recent: deque[float] = deque(maxlen=_NUM_REMEMBERED)

    def add(self, seconds: float) -> None:
        self._num_steps += 1
        if self._num_steps > _NUM_FIRST_STEPS:
            self._recent.append(seconds)

    @property
    def median_seconds(self) -> float | None:
        """Of the last steps; None before the first ones are over."""
        recent = list(self._recent)
        return statistics.median(recent) if recent else None

    def limit_seconds(self, situation: StepSituation) -> float:
        """Age at which the open step is looked into."""
        if self._given is not None:
            return self._given
        recent = list(self._recent)
        median, longest = (statistics.median(recent), max(recent)) if recent else (0.0, 0.0)
        is_long = situation.is_long_by_nature or not recent
        least = _MIN_LONG_SECONDS if is_long else _MIN_SECONDS
        limit = max(least, _TIMES_MEDIAN * median, _TIMES_LONGEST * longest)
        return max(min(limit, _before(situation.timeout_seconds)), _TIMES_LONGEST * median)

    def look_seconds(self, timeout_seconds: float | None) -> float:
        """Age from which the open step is reported, so that the job can be judged as a whole."""
        recent = sorted(self._recent)
        if self._given is not None or not recent:
            return self.limit_seconds(StepSituation(timeout_seconds=timeout_seconds))
        within = min(stall_threshold_seconds(recent), _before(timeout_seconds))
        return max(within, _TIMES_LONGEST * recent[len(recent) // 2])

    def first_look_seconds(self, look_seconds: float) -> float:
        """Age from which reports of other ranks about the step are read; no step of usual length is as old."""
        usual = max(_MIN_FIRST_LOOK_SECONDS, _TIMES_MEDIAN_FIRST_LOOK * (self.median_seconds or 0.0))
        return min(usual, look_seconds / 2)


def _before(timeout_seconds: float | None) -> float:
    return math.inf if timeout_seconds is None else SHARE_OF_TIMEOUT * timeout_seconds


def parse_stuck_after(stuck_after: float | str) -> float | None:
    """Stall threshold of `profile(stuck_after=...)`: None for "auto", infinite for "off".

    Raises:
        ValueError: it is neither a word nor a number of seconds above 0.
    """
    if stuck_after == "auto":
        return None
    if stuck_after == "off":
        return math.inf
    try:
        seconds = float(stuck_after)
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f'stuck_after is "auto", "off" or seconds above 0, not {stuck_after!r}')
    return seconds


_BUSY_BYTES_PER_SECOND = 1_000_000.0
"""A checkpoint is written and a data set read at more; heartbeats and logs need less."""

_BUSY_PROCESSORS = 0.05
"""Compilers and loader workers that work use most of one, on a crowded host some of it; those that wait use none."""

_COMPILERS = (
    "/torch/_dynamo/convert_frame.py",
    "/torch/_inductor/graph.py",
    "/torch/_inductor/scheduler.py",
    "/torch/_inductor/async_compile.py",
    "/triton/compiler/",
)
"""What runs while torch.compile compiles, and not when the compiled code runs."""

_BETWEEN_SAMPLES_SECONDS = 0.02

_WRITERS = ("/torch/serialization.py", "/torch/distributed/checkpoint/", "/safetensors/")
_SAVES = "save"
"""How functions that write checkpoints are called: save, save_checkpoint, save_pretrained."""


@dataclass(frozen=True, slots=True)
class _ProgressSample:
    seconds: float
    stack: tuple[tuple[int, int], ...]
    num_bytes: int
    processor_seconds: float


class HelperProcesses:
    """Child processes of stepscope's own: what they compute and read is no sign that a stalled step makes progress.

    Attributes:
        seconds, num_bytes: of those that have been waited for, which the kernel then adds to their parent's.
    """

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.seconds = 0.0
        self.num_bytes = 0

    def reap(self, pid: int) -> int | None:
        """Exit code of a child without blocking; None while it runs."""
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            num_bytes = _bytes_moved(pid)
            found, status, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:  # someone else waited for it
            self.running.discard(pid)
            return -1
        if not found:
            return None
        self.running.discard(pid)
        self.seconds += usage.ru_utime + usage.ru_stime
        self.num_bytes += num_bytes
        return os.waitstatus_to_exitcode(status)


helper_processes = HelperProcesses()


class ThreadProgress:
    """Whether a stalled thread of this process makes progress, sampled now and then from another thread.

    Args:
        num_samples: of its stack, a few milliseconds apart, at each look. A loop that mostly waits for the GPU in one
            line is seen at another line now and then.
    """

    def __init__(self, thread_id: int, *, num_samples: int = 1) -> None:
        self._thread_id = thread_id
        self._num_samples = num_samples
        self._before: _ProgressSample | None = None
        self._still_since = 0.0

    def reset(self) -> None:
        """Forget the samples: the thread has made progress for certain."""
        self._before = None

    def look(self) -> float:
        """Seconds since the thread last made progress, as far as the samples show."""
        before, now = self._before, self._now()
        self._before = now
        has_moved = before is None or _has_moved(before, now)
        for _ in range(self._num_samples - 1):
            if not has_moved:
                time.sleep(_BETWEEN_SAMPLES_SECONDS)
                has_moved = self._stack() != now.stack
        if has_moved:
            self._still_since = now.seconds
        return now.seconds - self._still_since

    def _now(self) -> _ProgressSample:
        num_bytes = _bytes_moved("self") - helper_processes.num_bytes
        return _ProgressSample(time.monotonic(), self._stack(), num_bytes, _child_cpu_seconds())

    def _stack(self) -> tuple[tuple[int, int], ...]:
        return tuple((id(frame.f_code), frame.f_lasti) for frame in thread_frames(self._thread_id))


def thread_frames(thread_id: int) -> Iterator[FrameType]:
    """Python frames of a thread that may be stalled, the innermost first; none where it has ended."""
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        yield frame
        frame = frame.f_back


def frame_entries(frames: Iterable[FrameType]) -> list[dict[str, Any]]:
    """Frames of a stalled thread as reports and torch's memory snapshots have them: name, filename, line."""
    return [
        {"name": each.f_code.co_name, "filename": each.f_code.co_filename, "line": each.f_lineno or 0}
        for each in frames
    ]


def is_thread_compiling(thread_id: int) -> bool:
    """Whether a stalled thread is inside torch.compile or a kernel's compiler."""
    return any(part in frame.f_code.co_filename for frame in thread_frames(thread_id) for part in _COMPILERS)


def is_thread_saving(thread_id: int) -> bool:
    """Whether a stalled thread writes or reads a checkpoint, by the file or the name of a function it is in."""
    return any(
        frame.f_code.co_name.startswith(_SAVES) or any(part in frame.f_code.co_filename for part in _WRITERS)
        for frame in thread_frames(thread_id)
    )


def _has_moved(before: _ProgressSample, now: _ProgressSample) -> bool:
    seconds = max(now.seconds - before.seconds, 1e-3)
    return (
        before.stack != now.stack
        or now.num_bytes - before.num_bytes > _BUSY_BYTES_PER_SECOND * seconds
        or now.processor_seconds - before.processor_seconds > _BUSY_PROCESSORS * seconds
    )


def _bytes_moved(process: int | str) -> int:
    """Bytes read and written by a process and the children it has waited for; 0 where /proc does not report them."""
    total = 0
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{process}/io").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(": ")
            total += int(value) if name in {"rchar", "wchar", "read_bytes"} else 0
    return total


def _child_cpu_seconds() -> float:
    """Processor time of all child processes; and of this one where it uses no GPU, for which a host may wait busily."""
    times = os.times()
    total = times.children_user + times.children_system - helper_processes.seconds
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        total += times.user + times.system - time.thread_time()  # looking costs as well
    ticks = os.sysconf("SC_CLK_TCK")
    waiting = [os.getpid()]
    while waiting:
        for child in _children(waiting.pop()):
            if child in helper_processes.running:
                continue
            waiting.append(child)
            with suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def _children(process_id: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError, ValueError):
        for thread in Path(f"/proc/{process_id}/task").iterdir():
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found
