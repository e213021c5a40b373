"""Run delay of steps: how long the threads that launch their work were runnable without a CPU, by the kernel's count.

The training thread launches the forward pass and the update, and on a GPU autograd's own threads launch the backward
pass. The kernel counts each thread's delay in /proc/self/task/<id>/schedstat; a time that a cgroup's limit takes counts
as well. A reading takes some microseconds, so that steps shorter than `READ_EVERY_NS` share one, by their durations.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stepscope.training.steps.telemetry import StepRecord

READ_EVERY_NS = 50_000_000
"""From one reading to the next, at least: a thousandth of this time."""

_TASKS = Path("/proc/self/task")
_MOST_BYTES = 80  # three numbers of 64 bits
_AUTOGRAD_NAME = "pt_autograd"
"""How the names begin that torch gives to autograd's threads; there is one for each GPU in sight."""


class RunDelay:
    """Adds `run_delay_ns` to training steps, summed over the thread that makes this object and autograd's at work.

    Where the kernel does not tell, it stays unknown.
    """

    def __init__(self, tasks: Path = _TASKS) -> None:
        self._tasks = tasks
        self._autograd: list[_Thread] = []
        self._known: set[str] = set()
        self._readings: deque[tuple[int, int]] = deque()
        self._launching: tuple[_Thread, ...] = ()
        with suppress(OSError, ValueError):
            thread = _Thread(tasks / str(threading.get_native_id()))
            if thread.has_run:
                self._launching = (thread,)

    def read(self, index: int) -> None:
        """Count what was added since the last call to the steps from then to this one, which ends."""
        if self._launching:
            self._readings.append((index, self._added_ns()))

    def skip(self) -> None:
        """Count what was added since the last call to no step."""
        self._added_ns()

    def add_to(self, records: Sequence[StepRecord]) -> None:
        """Divide what was read among the steps, the last of which has been read."""
        first = 0
        while self._readings and first < len(records):
            index, added_ns = self._readings.popleft()
            end = first
            while end < len(records) and records[end].index <= index:
                end += 1
            shares = divided(added_ns, [record.duration_ns for record in records[first:end]])
            for record, share_ns in zip(records[first:end], shares, strict=True):
                record.run_delay_ns = share_ns
            first = end

    def run_task(self) -> None:
        """Once a second, on another thread: find autograd's threads, and which of them have worked since."""
        if not self._launching:
            return
        tasks = set(os.listdir(self._tasks))
        for task in tasks - self._known:
            with suppress(OSError, ValueError):  # it has ended
                if (self._tasks / task / "comm").read_text(encoding="utf-8").startswith(_AUTOGRAD_NAME):
                    self._autograd.append(_Thread(self._tasks / task))
        self._known = tasks
        training, *counted = self._launching
        at_work = []
        for thread in self._autograd.copy():
            try:
                if thread.has_worked():
                    at_work.append(thread)
                    if thread not in counted:
                        thread.added_ns()  # before it counts, from here on
            except (OSError, IndexError, ValueError):
                self._autograd.remove(thread)
        self._launching = (training, *at_work)

    def close(self) -> None:
        for thread in {*self._launching, *self._autograd}:
            thread.close()
        self._launching = ()
        self._autograd.clear()

    def _added_ns(self) -> int:
        added_ns = 0
        for thread in self._launching:
            try:
                added_ns += thread.added_ns()
            except (OSError, IndexError, ValueError):  # it has ended
                continue
        return added_ns


def divided(total: int, sizes: Sequence[int]) -> list[int]:
    """Whole shares of a total in proportion to sizes of at least 0, which add up to it; equal ones where all are 0."""
    whole, parts = sum(sizes), sizes
    if whole <= 0:
        whole, parts = len(sizes), [1] * len(sizes)
    shares, reached, given = [], 0, 0
    for part in parts:
        reached += part
        share = total * reached // whole - given
        given += share
        shares.append(share)
    return shares


class _Thread:
    """A thread of this process, by its file of the kernel's scheduler.

    Raises:
        OSError, IndexError, ValueError: from every method; the thread has ended, or the kernel does not tell.
    """

    def __init__(self, task: Path) -> None:
        self._file = os.open(task / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._cpu_ns, self._delay_ns, num_slices = self._read()
        self.has_run = num_slices > 0
        """False where the kernel does not count."""

    def has_worked(self) -> bool:
        """Whether it has had a CPU since the last call, or since it was found."""
        before, (self._cpu_ns, _, _) = self._cpu_ns, self._read()
        return self._cpu_ns > before

    def added_ns(self) -> int:
        """Its delay since the last call."""
        before, self._delay_ns = self._delay_ns, int(os.pread(self._file, _MOST_BYTES, 0).split()[1])
        return self._delay_ns - before

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        """Closed when it has ended, or the run that it belongs to is forgotten."""
        if hasattr(self, "_file"):
            self.close()

    def _read(self) -> tuple[int, int, int]:
        cpu_ns, delay_ns, num_slices = map(int, os.pread(self._file, _MOST_BYTES, 0).split())
        return cpu_ns, delay_ns, num_slices
