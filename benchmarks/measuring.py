"""What does a command cost? CPU and wall seconds of it and all its children, and the peak memory of the largest."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from benchmarks.processes import children, resident_bytes

_POLLED_EVERY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run cost.

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
        """What a failure mostly says last."""
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
