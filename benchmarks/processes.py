"""What does a process use, and which are its children? By /proc."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path


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
    """Pages that it shares with others count whole."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def proportional_bytes(pid: int) -> int | None:
    """Pages of shared libraries count once among those who share them; None where the kernel does not tell."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return None


def times_woken(pid: int) -> int:
    """How often it waited for something and got it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _parent(pid: int) -> int | None:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None
