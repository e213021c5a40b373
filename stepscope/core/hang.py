"""Why does a job stand still? The typed form of the `stepscope.hang/1` document."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepscope.core.analysis import Notice
from stepscope.core.causes import Cause, Reason

HANG_SCHEMA = "stepscope.hang/1"


class HangKind(StrEnum):
    """What of the guilty ranks is stuck."""

    HOST = "host"  # it does not call what the others wait for: Python, data, checkpoint, a lock
    DEVICE = "device"  # it has called, and its GPU does not finish what the others' have
    DESYNC = "desync"  # ranks call different collectives where all must call the same
    UNKNOWN = "unknown"  # the dumps blame nobody: the network, or all alike


@dataclass(frozen=True, slots=True)
class HangEvidence:
    """One line of why: what is so on these ranks."""

    ranks: list[int]
    message: str


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """The answer.

    Attributes:
        cause: hang, none, or insufficient_evidence.
        kind: None without a hang.
        reasons: the kind in the words of all verdicts; missing_rank where those named left no dump.
        ranks: whom it names; none where nobody is proven to be at fault.
        confidence: 0 to 1.
    """

    cause: Cause | str
    kind: HangKind | None
    reasons: list[Reason]
    ranks: list[int]
    confidence: float
    summary: str
    evidence: list[HangEvidence] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Ranks that stand at the same place.

    Attributes:
        ranks: who.
        operation: the oldest call of theirs that has not ended; None: none is open.
        process_group, description, sequence: of that call.
        waits_for: ranks that have not called it yet.
        stack: where it was called, or where the last call was made, innermost first: "function (file:line)".
    """

    ranks: list[int]
    operation: str | None
    process_group: str | None
    description: str | None
    sequence: int | None
    waits_for: list[int]
    stack: list[str]


@dataclass(frozen=True, slots=True)
class HangReport:
    """All that `stepscope hang` says."""

    verdict: HangVerdict
    ranks: list[int]
    missing_ranks: list[int]
    groups: list[WaitingGroup] = field(default_factory=list)
    warnings: list[Notice] = field(default_factory=list)
    schema: str = HANG_SCHEMA


def group_words(name: str | None, description: str | None) -> str:
    """How a process group is called: by its meaning where its maker gave one."""
    return description if description not in (None, "", "undefined") else f"group {name}"
