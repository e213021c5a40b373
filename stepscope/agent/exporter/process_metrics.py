"""Metrics of the agent's own process, under the names that Prometheus' client libraries have for them."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.agent.exporter.exposition import MetricSeries

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcessMetrics:
    """Series of this process: CPU, memory, open files. What cannot be read is left out."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._self = proc / "self"
        self._booted: float | None = None
        self._max_fds: float | None = None
        try:
            lines = (proc / "stat").read_text().splitlines()
            self._booted = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
            limits = (self._self / "limits").read_text().splitlines()
            self._max_fds = next(float(line.split()[3]) for line in limits if line.startswith("Max open files"))
        except (OSError, StopIteration, ValueError):  # hidden, or "unlimited"
            pass

    def series(self) -> list[MetricSeries]:
        """The series now, in the order of prometheus-client."""
        found: list[MetricSeries] = []

        def add(name: str, text: str, value: float | None, kind: str = "gauge") -> None:
            if value is not None:
                found.append(MetricSeries(f"process_{name}", kind, text, "", {(): value}))

        try:
            fields = (self._self / "stat").read_bytes().rpartition(b")")[2].split()
            num_fds = len(os.listdir(self._self / "fd"))
        except OSError:
            return []
        started = None if self._booted is None else self._booted + int(fields[19]) / _TICKS_PER_SECOND
        cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
        add("virtual_memory_bytes", "Virtual memory size in bytes.", float(fields[20]))
        add("resident_memory_bytes", "Resident memory size in bytes.", float(fields[21]) * _PAGE_BYTES)
        add("start_time_seconds", "Start time of the process since unix epoch in seconds.", started)
        add("cpu_seconds_total", "Total user and system CPU time spent in seconds.", cpu_seconds, "counter")
        add("open_fds", "Number of open file descriptors.", float(num_fds))
        add("max_fds", "Maximum number of open file descriptors.", self._max_fds)
        return found
