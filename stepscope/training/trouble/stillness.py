"""Has a thread stopped getting anywhere? A slow one is not stuck: its stack moves, or bytes do, or helpers compute."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

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
class _Look:
    seconds: float
    stack: tuple[tuple[int, int], ...]
    num_bytes: int
    processor_seconds: float


class OwnProcesses:
    """Child processes of stepscope's own: what they compute is no sign that training gets on."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.seconds = 0.0
        """Processor time of those that have been waited for."""

    def reap(self, pid: int) -> int | None:
        """Wait for one without waiting; its exit code, None while it runs."""
        try:
            found, status, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:  # someone else waited for it
            self.running.discard(pid)
            return -1
        if not found:
            return None
        self.running.discard(pid)
        self.seconds += usage.ru_utime + usage.ru_stime
        return os.waitstatus_to_exitcode(status)


own_processes = OwnProcesses()


class Stillness:
    """Watches one thread of this process by looking at it now and then, from another thread.

    Args:
        num_samples: of its stack, a few milliseconds apart, at each look. A loop that mostly waits for the GPU in one
            line is found elsewhere now and then.
    """

    def __init__(self, thread_id: int, *, num_samples: int = 1) -> None:
        self._thread_id = thread_id
        self._num_samples = num_samples
        self._before: _Look | None = None
        self._still_since = 0.0

    def reset(self) -> None:
        """It has moved for certain."""
        self._before = None

    def look(self) -> float:
        """Seconds since the thread got anywhere, as far as looks have told."""
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

    def _now(self) -> _Look:
        return _Look(time.monotonic(), self._stack(), _bytes_moved(), _helpers_seconds())

    def _stack(self) -> tuple[tuple[int, int], ...]:
        return tuple((id(frame.f_code), frame.f_lasti) for frame in frames_of(self._thread_id))


def frames_of(thread_id: int) -> Iterator[FrameType]:
    """A thread's Python frames, the innermost first; none where it has ended."""
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_compiling(thread_id: int) -> bool:
    """Whether the thread is inside torch.compile or a kernel's compiler."""
    return any(part in frame.f_code.co_filename for frame in frames_of(thread_id) for part in _COMPILERS)


def is_saving(thread_id: int) -> bool:
    """Whether the thread is inside a function that writes or reads a checkpoint, by its file or its name."""
    return any(
        frame.f_code.co_name.startswith(_SAVES) or any(part in frame.f_code.co_filename for part in _WRITERS)
        for frame in frames_of(thread_id)
    )


def _has_moved(before: _Look, now: _Look) -> bool:
    seconds = max(now.seconds - before.seconds, 1e-3)
    return (
        before.stack != now.stack
        or now.num_bytes - before.num_bytes > _BUSY_BYTES_PER_SECOND * seconds
        or now.processor_seconds - before.processor_seconds > _BUSY_PROCESSORS * seconds
    )


def _bytes_moved() -> int:
    """Read and written by this process, with what it read through mapped files; 0 where /proc does not tell."""
    total = 0
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(": ")
            total += int(value) if name in {"rchar", "wchar", "read_bytes"} else 0
    return total


def _helpers_seconds() -> float:
    """Processor time of all child processes; and of this one where it uses no GPU, for which a host may wait busily."""
    times = os.times()
    total = times.children_user + times.children_system - own_processes.seconds
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        total += times.user + times.system - time.thread_time()  # looking costs as well
    ticks = os.sysconf("SC_CLK_TCK")
    waiting = [os.getpid()]
    while waiting:
        for child in _children(waiting.pop()):
            if child in own_processes.running:
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
