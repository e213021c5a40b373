"""State of each GPU that is probed: its newest readings, how it answers, and the snapshot of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.readings import GPU, Collection, Missing, MissingReason, Reading, with_labels

_UP = GPU + "up"


@dataclass(slots=True)
class Target:
    """One GPU: whether and how fast it answers, and its newest readings.

    Attributes:
        reason: why it does not answer; None while it does.
        detail: one line on it.
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
        """NVML's index."""
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
        started: processes started.
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
class Snapshot:
    """All GPUs at one moment.

    Attributes:
        collection: the newest readings, each with its own time; those too old are left out and missing.
        targets: the GPUs, by index.
        counts: of the processes.
    """

    collection: Collection
    targets: tuple[Target, ...]
    counts: ProbeCounts
