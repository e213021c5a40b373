"""State of each GPU that is probed: its newest readings, how it answers, its XID errors, and the snapshot of all.

XIDs are handed on once, and all are counted. NVML and the kernel log report mostly the same ones; each misses some. Of
one XID of one GPU the larger count is right: what both reported is not counted twice. A gauge of the last XID, as DCGM
has it, would hide a repeat.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stepscope.core.hardware.devices import Device, device_in
from stepscope.core.metrics.readings import GPU, Collection, Finding, Missing, MissingReason, Reading, with_labels

_UP = GPU + "up"


@dataclass(slots=True)
class ProbeTarget:
    """One GPU that is probed: whether and how fast it answers, and its newest readings.

    Attributes:
        reason: why it does not answer; None while it does.
        answered_ns: when it answered last, ns since the epoch; None: never.
        seconds: duration of its last answer; None: never.
        is_apart: whether a process of its own reads it.
        key: its PCI bus id, as NVML writes it.
        parts: its newest readings, those read together in one part, and when each part came, monotonic seconds.
        slow_rounds: answers in a row that took too long.
        times_apart: how often it was given a process of its own.
    """

    device: Device
    reason: MissingReason | None = None
    detail: str = ""
    answered_ns: int | None = None
    seconds: float | None = None
    is_apart: bool = False
    key: str = ""
    parts: dict[str, tuple[Collection, float]] = field(default_factory=dict, compare=False)
    slow_rounds: int = field(default=0, compare=False)
    times_apart: int = field(default=0, compare=False)

    @property
    def index(self) -> int:
        return int(self.device.index)

    def fails(self, reason: MissingReason, detail: str) -> None:
        """Note that it does not answer. Old readings stay if they may still hold: a GPU that is gone draws no power."""
        self.reason, self.detail = reason, detail
        if reason is not MissingReason.TIMED_OUT:
            self.parts = {}

    def collection(self, now_ns: int, now: float, stale_seconds: float) -> Collection:
        """Its readings now, and why some or all are missing.

        Args:
            now_ns: the time, ns since the epoch.
            now: the same, monotonic seconds: clocks are set.
            stale_seconds: age from which a reading is left out.
        """
        reason, detail, labels = self.reason, self.detail, self.device.labels()
        fresh = [part for part, came in self.parts.values() if now - came < stale_seconds]
        if reason is None and self.parts and not fresh:
            reason, detail = MissingReason.TIMED_OUT, ""
        if reason is None and not self.parts:
            return Collection(missing=(Missing("", labels, MissingReason.NOT_YET, "it has not answered yet"),))
        whole = Collection.joined(fresh)
        if reason is None:
            return whole
        up = Reading(_UP, 0.0, with_labels(labels, reason=reason), now_ns)
        if self.answered_ns is not None:
            seconds = max(0.0, (now_ns - self.answered_ns) / 1e9)
            detail = f"{detail}; it answered last {seconds:.0f} s ago".removeprefix("; ")
        return Collection(
            (*(reading for reading in whole.readings if reading.metric != _UP), up),
            (*whole.missing, Missing("", labels, reason, detail)),
            whole.findings,
        )


@dataclass(slots=True)
class ProbeCounts:
    """Events of the probe processes since the start.

    Attributes:
        timed_out: answers that did not come in time.
        crashed: processes that ended without being asked to.
        refused: times that the driver could not be used at all.
        left_behind: processes that hang in the kernel now, though they were killed.
        findings_dropped: findings dropped because too many waited to be taken.
    """

    started: int = 0
    timed_out: int = 0
    crashed: int = 0
    refused: int = 0
    left_behind: int = 0
    findings_dropped: int = 0


@dataclass(frozen=True, slots=True)
class ProbeSnapshot:
    """All probed GPUs at one moment.

    Attributes:
        collection: the newest readings, each with its own time; those too old are left out and missing.
    """

    collection: Collection
    targets: tuple[ProbeTarget, ...]
    counts: ProbeCounts


_MAX_WAITING = 4096
_SOURCES = frozenset({"nvml", "kernel_log"})
"""Names that XIDs are counted under."""
_SET_BACK_NS = 10**9
"""XIDs further in the future came before the clock was set back: a later one replaces them as the last."""


@dataclass(frozen=True, slots=True)
class XidCount:
    """One XID of one GPU for a restarted agent: how often each source reported it, and when it came last."""

    device: Device
    xid: str
    by_source: dict[str, int]
    last_ns: int


@dataclass(slots=True)
class _Occurrences:
    """One XID of one GPU: how often each source reported it, and when it came last."""

    device: Device
    by_source: Counter[str] = field(default_factory=Counter)
    last_ns: int = 0

    @property
    def count(self) -> int:
        return max(self.by_source.values(), default=0)


class XidLog:
    """XIDs that the GPU probes and the kernel log reported since the first look at this boot. May be used by several
    threads.

    Attributes:
        num_dropped: XIDs dropped because too many waited to be taken; they are counted all the same.
    """

    def __init__(self, *, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_clock_ns = wall_clock_ns
        self.num_dropped = 0
        self._lock = threading.Lock()
        self._waiting: deque[Finding] = deque()
        self._occurrences: dict[tuple[str, str], _Occurrences] = {}
        self._last: dict[str, tuple[int, str]] = {}

    def add(self, findings: Iterable[Finding], source: str, *, is_before_start: bool = False) -> None:
        """Count the findings that are XIDs.

        Args:
            findings: with the labels of their GPU, the same from all sources.
            source: name of the source that reports them.
            is_before_start: they came before the agent started: no other source reports them any more.
        """
        with self._lock:
            for finding in findings:
                if finding.code == "xid":
                    self._add(finding, source, is_before_start=is_before_start)

    def saved(self) -> list[XidCount]:
        """What `restore` takes."""
        with self._lock:
            return [
                XidCount(one.device, xid, dict(one.by_source), one.last_ns)
                for (_, xid), one in self._occurrences.items()
            ]

    def restore(self, counts: Iterable[XidCount], resumed: frozenset[str]) -> None:
        """Go on with the counts of an earlier agent.

        Args:
            resumed: sources that go on where they ended; the others report nothing of before any more.
        """
        with self._lock:
            for one in counts:
                key, device = (one.device.key, one.xid), one.device
                known = self._occurrences[key] = _Occurrences(device, Counter(one.by_source), one.last_ns)
                for source in _SOURCES - resumed:
                    known.by_source[source] = known.count
                self._last[device.key] = max((one.last_ns, one.xid), self._last.get(device.key, (0, "")))

    def _add(self, finding: Finding, source: str, *, is_before_start: bool) -> None:
        labels = dict(finding.labels)
        xid, gpu = labels["xid"], device_in(labels).without_instance()
        known = self._occurrences.setdefault((gpu.key, xid), _Occurrences(gpu))
        known.device = gpu
        before = known.count
        known.by_source[source] += 1
        if is_before_start:
            for other in _SOURCES:
                known.by_source[other] = max(known.by_source[other], known.by_source[source])
        if known.count == before:
            return  # another source has reported it
        until_ns = self._wall_clock_ns() + _SET_BACK_NS
        known.last_ns = max(finding.time_ns, known.last_ns if known.last_ns <= until_ns else 0)
        last = self._last.get(gpu.key, (0, ""))
        self._last[gpu.key] = max((finding.time_ns, xid), last if last[0] <= until_ns else (0, ""))
        self._waiting.append(finding)
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popleft()
            self.num_dropped += 1

    def take(self) -> list[Finding]:
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def readings(self) -> list[Reading]:
        """Counts and times of XIDs, the last XID of each GPU; nothing of a GPU that had none."""
        found = []
        with self._lock:
            devices = {key: one.device for (key, _), one in self._occurrences.items()}
            for (key, xid), one in self._occurrences.items():
                labels = with_labels(devices[key].labels(), xid=xid)
                found.append(Reading(GPU + "xid_errors_total", float(one.count), labels, one.last_ns))
                found.append(Reading(GPU + "xid_last_timestamp_seconds", one.last_ns / 1e9, labels, one.last_ns))
            found += [
                Reading(GPU + "xid_last", float(xid), devices[key].labels(), time_ns)
                for key, (time_ns, xid) in self._last.items()
            ]
        return found
