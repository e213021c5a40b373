"""Hangs: flight recorder dumps, the report `stepscope.hang/1`, and the live state `stepscope.live-hang/1`.

A dump is one rank's record of its newest collectives, as torch's NCCL and gloo backends keep it. Sequence numbers
count the collectives of one process group from 1; times are ns since the epoch by the host's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stepscope.core.documents.evidence import Notice
from stepscope.core.protocol.fields import Rank
from stepscope.core.vocabulary.causes import Cause, Reason

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


LIVE_HANG_SCHEMA = "stepscope.live-hang/1"
RANK_STATE_SCHEMA = "stepscope.rank-state/1"
STALE_SECONDS = 15.0
"""Ranks say how they are every few seconds: who has not for so long does not any more."""


@dataclass(frozen=True, slots=True)
class RankState:
    """How one rank is whose step lasts long, as it says itself.

    Attributes:
        step: the open one.
        since_ns: when it began to say so, ns since the epoch.
        seen_ns: when it looked last.
        age_seconds: of the step.
        limit_seconds: the age from which that is worth a look.
        is_still: its training thread gets nowhere: no code, no bytes, no helper that computes.
        doing: what takes long by nature: a named phase, "compilation", "a checkpoint"; empty: nothing of that.
        where: the innermost thing that has a name: a collective, a function.
        is_in_collective: its Python stands in a call of torch.distributed.
    """

    rank: int
    host: str
    step: int
    since_ns: int
    seen_ns: int
    age_seconds: float
    limit_seconds: float
    is_still: bool
    doing: str
    where: str
    is_in_collective: bool


class LiveHangState(StrEnum):
    """What is to be said of the job."""

    NONE = "none"  # no step lasts longer than it may
    UNDECIDED = "undecided"  # one does; it is too early to say more
    BUSY = "busy"  # it is waited for ranks that are at work
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class LiveHang:
    """The answer at one moment.

    Attributes:
        kind: what of the guilty is stuck; None without a hang.
        ranks: whom it names: the guilty, or those at work.
        step, age_seconds: the oldest open step and its age.
        silent_ranks: those that should have said something and have not.
    """

    state: LiveHangState
    kind: HangKind | None = None
    reasons: list[Reason] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    confidence: float = 0.0
    summary: str = ""
    evidence: list[HangEvidence] = field(default_factory=list)
    step: int | None = None
    age_seconds: float = 0.0
    silent_ranks: list[Rank] = field(default_factory=list)
    schema: str = LIVE_HANG_SCHEMA


_LEAST_SECONDS = 12.0
"""Leaves time to judge the job and to report it within 30 s of a stop (docs/guides/hang.md)."""

_TIMES_MEDIAN, _TIMES_USUAL_LONGEST = 4.0, 2.0
_USUAL_QUANTILE = 0.95
"""One step in twenty may hold a checkpoint, and is no measure of the others."""


def stall_threshold_seconds(steps: Iterable[float]) -> float:
    """That age, seconds.

    Args:
        steps: seconds that the last ones took, at least one, in any order.
    """
    ordered = sorted(steps)
    median, usual = ordered[len(ordered) // 2], ordered[int(_USUAL_QUANTILE * (len(ordered) - 1))]
    return max(_LEAST_SECONDS, _TIMES_MEDIAN * median, _TIMES_USUAL_LONGEST * usual)


MOST_RANKS = 1 << 20
OF_ALL = "default_pg"
"""What torch calls the group of all ranks."""
_MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class StackFrame:
    """Where a call was made."""

    function: str
    file: str
    line: int


def stack_lines(frames: Sequence[StackFrame]) -> list[str]:
    """The calls as lines, the innermost first; of a deep stack the first ones."""
    return [f"{frame.function} ({frame.file}:{frame.line})" for frame in frames[:_MOST_LINES]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective, or one message between two ranks.

    Attributes:
        record: its place in the order in which this rank called.
        group, description: name and meaning of its process group, as torch and its user call it.
        group_id: this rank's own number for the group, under which `FlightDump.progress` has it.
        sequence: number of the collective in its group; of a message, of the collective before it.
        name: "all_reduce", "send 0->3".
        backend: "nccl", "gloo".
        is_p2p: a message between two ranks, which `name` numbers within the group.
        is_done: it has ended here, or was given up.
        is_given_up: it may have ended without completing: gloo no longer tracks it and says no more, or it lasted until
            its timeout, of which NCCL says that it completed.
        created_ns, started_ns, completed_ns: None where not known; only NCCL with timing on knows the start.
        input_sizes, output_sizes: shapes of the tensors.
        dtypes: of the inputs.
        frames: the innermost call first.
    """

    record: int
    group: str
    description: str
    group_id: int
    sequence: int
    name: str
    backend: str
    is_p2p: bool
    is_done: bool
    is_given_up: bool = False
    created_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    frames: tuple[StackFrame, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a rank has come in a group, as sequence numbers; None where not known."""

    enqueued: int | None
    completed: int | None


@dataclass(frozen=True, slots=True)
class FlightDump:
    """One rank's recorder at one moment.

    Attributes:
        rank: of the whole job.
        where: the file.
        version: of the format.
        groups: members of each group by its name, in the group's own order; None where the dump does not say.
        descriptions: what each group is, by its name.
        progress: by the rank's own number of the group.
        operations: the newest of each rank, in the order of the calls.
        written_ns: when, ns since the epoch; None where not known. A copy may be younger.
    """

    rank: int
    where: str
    version: str
    groups: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    progress: dict[int, GroupProgress] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    written_ns: int | None = None
