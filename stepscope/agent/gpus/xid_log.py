"""XID errors since the agent started: each is handed on once, and all are counted.

NVML and the kernel log report mostly the same XIDs; each misses some. Of one XID of one GPU the larger count is right:
what both reported is not counted twice. A gauge of the last XID, as DCGM has it, would hide a repeat.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stepscope.core.metrics.gpu import GPU
from stepscope.core.metrics.readings import Finding, Labels, Reading, with_labels

_MOST_WAITING = 4096
_GPU_LABELS = ("gpu", "uuid", "pci_bus_id")
_SET_BACK_NS = 10**9
"""What lies so far in the future came before the clock was set back: it is not the last for ever."""


@dataclass(slots=True)
class _Kind:
    """One XID of one GPU: how often each source told it, and when it came last."""

    told: Counter[str] = field(default_factory=Counter)
    last_ns: int = 0

    @property
    def count(self) -> int:
        return max(self.told.values(), default=0)


class XidLog:
    """XIDs since the agent started. May be used by several threads.

    Attributes:
        num_dropped: those that nobody took before there were too many; they are counted all the same.
    """

    def __init__(self, *, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        """
        Args:
            wall_clock_ns: now, ns since the epoch.
        """
        self._wall_clock_ns = wall_clock_ns
        self.num_dropped = 0
        self._lock = threading.Lock()
        self._waiting: deque[Finding] = deque()
        self._kinds: dict[tuple[Labels, str], _Kind] = {}
        self._last: dict[Labels, tuple[int, str]] = {}

    def add(self, findings: Iterable[Finding], source: str) -> None:
        """Take note of those that are XIDs.

        Args:
            findings: with the labels of their GPU, the same whatever the source.
            source: who told them.
        """
        with self._lock:
            for finding in findings:
                if finding.code == "xid":
                    self._add(finding, source)

    def _add(self, finding: Finding, source: str) -> None:
        xid = dict(finding.labels)["xid"]
        gpu = tuple(pair for pair in finding.labels if pair[0] in _GPU_LABELS)
        kind = self._kinds.setdefault((gpu, xid), _Kind())
        before = kind.count
        kind.told[source] += 1
        if kind.count == before:
            return  # another source told it already
        until_ns = self._wall_clock_ns() + _SET_BACK_NS
        kind.last_ns = max(finding.time_ns, kind.last_ns if kind.last_ns <= until_ns else 0)
        last = self._last.get(gpu, (0, ""))
        self._last[gpu] = max((finding.time_ns, xid), last if last[0] <= until_ns else (0, ""))
        self._waiting.append(finding)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            self.num_dropped += 1

    def take(self) -> list[Finding]:
        """Those that came since the last time."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def readings(self) -> list[Reading]:
        """Counts and times; nothing of a GPU that had none."""
        told = []
        with self._lock:
            for (gpu, xid), kind in self._kinds.items():
                labels = with_labels(gpu, xid=xid)
                told.append(Reading(GPU + "xid_errors_total", float(kind.count), labels, kind.last_ns))
                told.append(Reading(GPU + "xid_last_timestamp_seconds", kind.last_ns / 1e9, labels, kind.last_ns))
            told += [Reading(GPU + "xid_last", float(xid), gpu, time_ns) for gpu, (time_ns, xid) in self._last.items()]
        return told
