"""Hangs: flight recorder dumps, the report `stepscope.hang/1`, and the live state `stepscope.live-hang/1`.

A dump is one rank's record of its latest collectives, kept by torch's NCCL and gloo backends. Sequence numbers count
the collectives of one process group from 1; times are ns since the epoch by the host's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stepscope.core.protocol.fields import Rank
from stepscope.core.vocabulary import Cause, Notice, Reason

HANG_SCHEMA = "stepscope.hang/1"


class HangKind(StrEnum):
    """Hang document: where the ranks that cause a hang are stuck."""

    HOST = "host"  # it does not call the awaited collective: Python, data, checkpoint, a lock
    DEVICE = "device"  # it has called, but its GPU does not finish the collective
    DESYNC = "desync"  # ranks call different collectives
    UNKNOWN = "unknown"  # the dumps name no rank: the network, or all ranks alike


@dataclass(frozen=True, slots=True)
class HangEvidence:
    """Hang document: one observation on these ranks."""

    ranks: list[int]
    message: str


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """Hang document: which ranks cause the hang, and why.

    Attributes:
        cause: hang, none, or insufficient_evidence.
        kind: None without a hang.
        reasons: the kind as a reason of a verdict; missing_rank where the named ranks left no dump.
        ranks: that cause the hang; empty where no rank is proven to.
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
    """Hang document: ranks that wait in the same call.

    Attributes:
        ranks: that wait.
        operation: their oldest unfinished call; None: none is open.
        process_group, description, sequence: of that call.
        waits_for: ranks that have not called it yet.
        stack: of that call, or of the last one, innermost first: "function (file:line)".
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
    """The document `stepscope.hang/1`."""

    verdict: HangVerdict
    ranks: list[int]
    missing_ranks: list[int]
    groups: list[WaitingGroup] = field(default_factory=list)
    warnings: list[Notice] = field(default_factory=list)
    schema: str = HANG_SCHEMA


def group_words(name: str | None, description: str | None) -> str:
    """Document of a hang: field of a process group as a name for people, its description where it has one."""
    return description if description not in (None, "", "undefined") else f"group {name}"


STUCK_SCHEMA = "stepscope.stuck/1"
LIVE_HANG_SCHEMA = "stepscope.live-hang/1"
RANK_STATE_SCHEMA = "stepscope.rank-state/1"
STALE_SECONDS = 15.0
"""Age from which a rank's state is stale: ranks write it every few seconds."""


@dataclass(frozen=True, slots=True)
class StuckReport:
    """Document of one rank whose step does not end: flight/rank{r}.stuck.json (`stepscope.stuck/1`).

    Attributes:
        began_ns: start of the step, ns since the epoch.
        age_seconds: of the step.
        limit_seconds: stall threshold: the age from which a step is reported.
        median_seconds: of earlier steps; None where there are too few.
        is_still: False where this rank makes progress, and is reported because another does not.
        seen_ns: when the state was taken; ended_ns: end of the step, None while it is open.
        open_spans: names of the open spans of `profile()`.
        where: the innermost collective, phase or function that has a name.
        collective: the oldest unfinished one: name, group, sequence, since_ns; None without any.
        threads: name and frames (name, filename, line) of each thread.
    """

    rank: int
    host: str
    step: int
    began_ns: int
    age_seconds: float
    limit_seconds: float
    median_seconds: float | None
    is_still: bool
    seen_ns: int = 0
    ended_ns: int | None = None
    open_spans: list[str] = field(default_factory=list)
    where: str = ""
    collective: dict[str, Any] | None = None
    threads: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RankState:
    """Document of one rank in a long step, written by the rank itself (`stepscope.rank-state/1`).

    Attributes:
        step: the open step.
        since_ns: when it began to write its state, ns since the epoch.
        seen_ns: when it wrote this state.
        age_seconds: of the step.
        limit_seconds: stall threshold: the age from which the state is written.
        is_still: the training thread makes no progress: no code, no bytes, no helper process that computes.
        doing: what may take long: a named phase, "compilation", "a checkpoint"; else empty.
        where: the innermost collective, phase or function that has a name.
        is_in_collective: its Python is inside a call of torch.distributed.
        device_wait: the call in which its Python waits for the device ("item() in train (train.py:7)"); empty if it is
            in none that is known to wait.
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
    device_wait: str = ""


class LiveHangState(StrEnum):
    """Hang document: state of a running job."""

    NONE = "none"  # no step exceeds its stall threshold
    UNDECIDED = "undecided"  # one does; it is too early for a verdict
    BUSY = "busy"  # ranks wait for others that make progress
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class LiveHang:
    """Document of a running job's hang check at one moment (`stepscope.live-hang/1`).

    Attributes:
        kind: None without a hang.
        ranks: that cause the hang, or are busy.
        step, age_seconds: the oldest open step and its age.
        silent_ranks: ranks that should have written their state and have not.
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


_MIN_SECONDS = 12.0
"""Leaves time to judge the job and to report it within 30 s of a stop (docs/guides/hang.md)."""

_MEDIAN_FACTOR, _LONGEST_FACTOR = 4.0, 2.0
_USUAL_QUANTILE = 0.95
"""Quantile of the usual longest step: one step in twenty may contain a checkpoint."""


def stall_threshold_seconds(steps: Iterable[float]) -> float:
    """Document of a hang: the threshold that its fields use: age in seconds from which an open step is checked.

    In training and in reports.

    Args:
        steps: durations of recent steps in seconds, at least one, in any order.
    """
    ordered = sorted(steps)
    median, usual = ordered[len(ordered) // 2], ordered[int(_USUAL_QUANTILE * (len(ordered) - 1))]
    return max(_MIN_SECONDS, _MEDIAN_FACTOR * median, _LONGEST_FACTOR * usual)


MAX_RANKS = 1 << 20
"""Larger numbers in a dump or in the name of one are not ranks."""
OF_ALL = "default_pg"
"""torch's name of the group of all ranks."""
_MAX_STACK_LINES = 8


@dataclass(frozen=True, slots=True)
class StackFrame:
    """Typed flight recorder: source location of a call."""

    function: str
    file: str
    line: int


def stack_lines(frames: Sequence[StackFrame]) -> list[str]:
    """Document of a hang: field of a stack as lines, the innermost calls only, innermost first."""
    return [f"{frame.function} ({frame.file}:{frame.line})" for frame in frames[:_MAX_STACK_LINES]]


@dataclass(frozen=True, slots=True)
class Operation:
    """Typed flight recorder: one collective, or one message between two ranks.

    Attributes:
        record: index in the order of this rank's calls.
        group, description: torch's name of the process group, and the user's description.
        group_id: this rank's own number for the group, a key of `FlightDump.progress`.
        sequence: number of the collective in its group; for a message, of the collective before it.
        name: "all_reduce", "send 0->3" (ranks within the group).
        backend: "nccl", "gloo".
        is_p2p: a message between two ranks.
        is_done: it has ended on this rank, or was given up.
        is_given_up: it may have ended without completing: gloo no longer tracks it, or it lasted until its timeout,
            after which NCCL reports it as completed.
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
    """Typed flight recorder: numbers of a rank's latest enqueued and completed collective; None where unknown."""

    enqueued: int | None
    completed: int | None


@dataclass(frozen=True, slots=True)
class FlightDump:
    """Typed flight recorder: one rank's flight recorder at one moment.

    Attributes:
        rank: in the whole job.
        where: the file.
        version: of the format.
        groups: ranks of each group by its name, in the group's order; None where the dump does not say.
        descriptions: of the groups by name.
        progress: by the rank's own number of the group.
        operations: the latest ones, in the order of the calls.
        written_ns: ns since the epoch; None where unknown. A copied file may be younger.
    """

    rank: int
    where: str
    version: str
    groups: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    progress: dict[int, GroupProgress] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    written_ns: int | None = None
