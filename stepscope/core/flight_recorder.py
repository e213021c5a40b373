"""What did the communicators of one rank do last? A flight recorder's dump, as torch's NCCL and gloo backends keep it.

Sequence numbers count the collectives of one process group from 1; times are ns since the epoch by the host's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
