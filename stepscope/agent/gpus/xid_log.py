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

from stepscope.core.hardware.devices import Device, device_in
from stepscope.core.metrics.readings import GPU, Finding, Reading, with_labels

_MAX_WAITING = 4096
_SET_BACK_NS = 10**9
"""XIDs further in the future came before the clock was set back: a later one replaces them as the last."""


@dataclass(slots=True)
class _Occurrences:
    """One XID of one GPU: how often each source reported it, and when it came last."""

    by_source: Counter[str] = field(default_factory=Counter)
    last_ns: int = 0

    @property
    def count(self) -> int:
        return max(self.by_source.values(), default=0)


class XidLog:
    """XIDs since the agent started. May be used by several threads.

    Attributes:
        num_dropped: XIDs dropped because too many waited to be taken; they are counted all the same.
    """

    def __init__(self, *, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_clock_ns = wall_clock_ns
        self.num_dropped = 0
        self._lock = threading.Lock()
        self._waiting: deque[Finding] = deque()
        self._occurrences: dict[tuple[Device, str], _Occurrences] = {}
        self._last: dict[Device, tuple[int, str]] = {}

    def add(self, findings: Iterable[Finding], source: str) -> None:
        """Count the findings that are XIDs.

        Args:
            findings: with the labels of their GPU, the same from all sources.
            source: name of the source that reports them.
        """
        with self._lock:
            for finding in findings:
                if finding.code == "xid":
                    self._add(finding, source)

    def _add(self, finding: Finding, source: str) -> None:
        labels = dict(finding.labels)
        xid, gpu = labels["xid"], device_in(labels).without_instance()
        known = self._occurrences.setdefault((gpu, xid), _Occurrences())
        before = known.count
        known.by_source[source] += 1
        if known.count == before:
            return  # another source has reported it
        until_ns = self._wall_clock_ns() + _SET_BACK_NS
        known.last_ns = max(finding.time_ns, known.last_ns if known.last_ns <= until_ns else 0)
        last = self._last.get(gpu, (0, ""))
        self._last[gpu] = max((finding.time_ns, xid), last if last[0] <= until_ns else (0, ""))
        self._waiting.append(finding)
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popleft()
            self.num_dropped += 1

    def take(self) -> list[Finding]:
        """XIDs since the last call."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def readings(self) -> list[Reading]:
        """Counts and times of XIDs, the last XID of each GPU; nothing of a GPU that had none."""
        found = []
        with self._lock:
            for (gpu, xid), one in self._occurrences.items():
                labels = with_labels(gpu.labels(), xid=xid)
                found.append(Reading(GPU + "xid_errors_total", float(one.count), labels, one.last_ns))
                found.append(Reading(GPU + "xid_last_timestamp_seconds", one.last_ns / 1e9, labels, one.last_ns))
            found += [
                Reading(GPU + "xid_last", float(xid), gpu.labels(), time_ns)
                for gpu, (time_ns, xid) in self._last.items()
            ]
        return found
