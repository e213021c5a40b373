"""Which XID errors came? Each is told once to who takes them, and counted for ever.

A gauge of the last one, as DCGM has it, sticks at its value and hides a repeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from stepscope.core.gpu_metrics import GPU
from stepscope.core.readings import Finding, Labels, Reading, with_labels

_MOST_WAITING = 4096


class XidLog:
    """XIDs since the agent started.

    Attributes:
        num_dropped: those that nobody took before there were too many; they are counted all the same.
    """

    def __init__(self) -> None:
        self.num_dropped = 0
        self._waiting: deque[Finding] = deque()
        self._counts: dict[tuple[Labels, str], tuple[int, int]] = {}
        self._last: dict[Labels, tuple[int, str]] = {}

    def add(self, findings: Iterable[Finding]) -> None:
        """Take note of those that are XIDs."""
        for finding in findings:
            if finding.code != "xid":
                continue
            self._waiting.append(finding)
            xid = dict(finding.labels)["xid"]
            gpu = tuple(pair for pair in finding.labels if pair[0] in ("gpu", "uuid"))
            count, last_ns = self._counts.get((gpu, xid), (0, 0))
            self._counts[gpu, xid] = (count + 1, max(last_ns, finding.time_ns))
            self._last[gpu] = max(self._last.get(gpu, (0, "")), (finding.time_ns, xid))

        with suppress(IndexError):  # they are being taken
            while len(self._waiting) > _MOST_WAITING:
                self._waiting.popleft()
                self.num_dropped += 1

    def take(self) -> list[Finding]:
        """Those that came since the last time; may be called by another thread."""
        taken = []
        with suppress(IndexError):  # the log itself drops the oldest of too many
            while True:
                taken.append(self._waiting.popleft())
        return taken

    def readings(self) -> list[Reading]:
        """Counts and times; nothing of a GPU that had none."""
        told = []
        for (gpu, xid), (count, last_ns) in self._counts.items():
            labels = with_labels(gpu, xid=xid)
            told.append(Reading(GPU + "xid_errors_total", float(count), labels, last_ns))
            told.append(Reading(GPU + "xid_last_timestamp_seconds", last_ns / 1e9, labels, last_ns))
        told += [Reading(GPU + "xid_last", float(xid), gpu, time_ns) for gpu, (time_ns, xid) in self._last.items()]
        return told
