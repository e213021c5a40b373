"""Measurements of processes: CPU and wall seconds, memory and wake-ups by /proc, and the interval of a median."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

_POLLED_EVERY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one run.

    Attributes:
        peak_bytes: largest resident memory of the process itself (of its largest child, if that is larger).
        family_bytes: largest sum over the process and its children, looked at every 50 ms; None where /proc is not.
        succeeded: whether it ended with 0.
        output: what it printed.
    """

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    family_bytes: int | None
    succeeded: bool
    output: str

    @property
    def last_line(self) -> str:
        """Last line of the output, mostly the error."""
        lines = self.output.strip().splitlines()
        return lines[-1] if lines else "no output"


def measure(command: list[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command once."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | dict(environment or {}),
    )
    assert process.stdout is not None
    watch = _FamilyWatch(process.pid)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    family_bytes = watch.stop()
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    return Cost(
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        wall_seconds=time.monotonic() - began,
        peak_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        family_bytes=family_bytes,
        succeeded=process.returncode == 0,
        output=output,
    )


def median_cost(costs: list[Cost]) -> Cost:
    """Medians of several runs; the output of one that failed, if any did."""
    families = [cost.family_bytes for cost in costs if cost.family_bytes is not None]
    return Cost(
        cpu_seconds=median(cost.cpu_seconds for cost in costs),
        wall_seconds=median(cost.wall_seconds for cost in costs),
        peak_bytes=int(median(cost.peak_bytes for cost in costs)),
        family_bytes=int(median(families)) if families else None,
        succeeded=all(cost.succeeded for cost in costs),
        output=next((cost.output for cost in costs if not cost.succeeded), costs[0].output),
    )


class _FamilyWatch:
    """Sums the resident memory of a process and its children (with what they share counted in each)."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> int | None:
        self._ended.set()
        self._thread.join()
        return self._peak or None

    def _look(self) -> None:
        while not self._ended.wait(_POLLED_EVERY_SECONDS):
            with suppress(OSError, IndexError):  # one that ends meanwhile, or no /proc
                self._peak = max(self._peak, sum(map(resident_bytes, [self._pid, *children(self._pid)])))


def cpu_seconds(pid: int) -> float:
    """By clock_getcpuclockid(3), to the ns; in ticks of 10 ms where the kernel has no such clock."""
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Those that live; of all its threads."""
    return [other for other in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(other) == pid]


def resident_bytes(pid: int) -> int:
    """Resident memory (RSS): shared pages count whole."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def proportional_bytes(pid: int) -> int | None:
    """Proportional memory (PSS): shared pages are divided among their users; None if the kernel does not report it."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return None


def times_woken(pid: int) -> int:
    """Number of voluntary context switches."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _parent(pid: int) -> int | None:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


_SEED = 7
_RESAMPLES = 2000


class Interval(NamedTuple):
    """Median with its 95% interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """For people."""
        return f"{self.median:.4f} (95%: {self.low:.4f} to {self.high:.4f})"


def interval_of(values: Sequence[float]) -> Interval:
    """By resampling."""
    resampled = np.random.default_rng(_SEED).choice(values, (_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(resampled, axis=1), (2.5, 97.5))
    return Interval(median(values), float(low), float(high))
