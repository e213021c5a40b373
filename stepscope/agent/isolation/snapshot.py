"""What is known of all GPUs at this moment, how old is it, and how do the processes fare that read them?"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.readings import Collection, Labels, MissingReason


@dataclass(frozen=True, slots=True)
class TargetState:
    """How one GPU answers.

    Attributes:
        labels: which it is.
        reason: why it does not answer; None while it does.
        detail: one line on it.
        answered_ns: when it answered last, ns since the epoch; None: never.
        seconds: how long its last answer took; None: never.
        is_apart: whether a process of its own reads it.
    """

    labels: Labels
    reason: MissingReason | None
    detail: str
    answered_ns: int | None
    seconds: float | None
    is_apart: bool


@dataclass(slots=True)
class ProbeCounts:
    """What happened to the processes since the start.

    Attributes:
        started: processes started.
        timed_out: answers that did not come in time.
        crashed: processes that ended without being asked to.
        refused: times that the driver could not be used at all.
        left_behind: processes that hang in the kernel now, though they were killed.
        findings_dropped: findings that nobody took before there were too many.
    """

    started: int = 0
    timed_out: int = 0
    crashed: int = 0
    refused: int = 0
    left_behind: int = 0
    findings_dropped: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it.

    Attributes:
        collection: the newest readings, each with its own time; those too old are left out and missing.
        targets: the GPUs, by index.
        counts: of the processes.
    """

    collection: Collection
    targets: tuple[TargetState, ...]
    counts: ProbeCounts
