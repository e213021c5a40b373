"""What do the arguments in a trace say of each communication call: its kind, group, size, peer, root and number?"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.alignment.call_words import NO_TRANSFER, kind_of_word
from stepscope.analyzer.alignment.launch_context import arguments_of, largest_tensor_bytes, peer_of
from stepscope.analyzer.element_types import bytes_of_dtype
from stepscope.trace.columns import NONE, Category, IntColumn, ProcessGroup, TraceColumns

_SEND_OR_RECEIVE = re.compile(r"^nccl:(send|recv) \d|^c10d::(send|recv_)$")


@dataclass(frozen=True, slots=True)
class Told:
    """What an operator, or a kernel's own arguments, say of one call; None where they do not. `peer` is a rank of the
    job (arguments), `peer_place` a rank in the group (spans), and so is `root`."""

    kind: str
    group: ProcessGroup | None = None
    members: tuple[int, ...] | None = None
    num_bytes: int | None = None
    peer: int | None = None
    sequence: int | None = None
    communicator: int | None = None
    root: int | None = None
    peer_place: int | None = None


def told_by(trace: TraceColumns, entry: int, operator: int | None) -> Told:
    """Args: operator: the entry of the operator that issued it, which alone records the root."""
    calls = trace.communication
    kind = kind_of_word(calls.kinds[int(calls.kind[entry])])
    place = int(calls.group[entry])
    group = trace.groups[place] if place != NONE else None
    elements = max(int(calls.in_elements[entry]), int(calls.out_elements[entry]))
    dtype = int(calls.dtype[entry])
    size = bytes_of_dtype(calls.dtypes[dtype]) if dtype != NONE else None
    members = _members(trace, group) if group is not None else None
    peer = int(calls.destination_rank[entry] if kind == "send" else calls.source_rank[entry])
    return Told(
        kind=kind,
        group=group,
        members=members,
        num_bytes=elements * size if size is not None and elements >= 0 else None,
        peer=_rank_of_peer(_known(peer), members),
        sequence=_known(int(calls.sequence[entry])),
        communicator=_known(int(calls.communicator[entry])),
        root=_known(int(calls.root_rank[operator])) if operator is not None else None,
    )


def _rank_of_peer(number: int | None, members: tuple[int, ...] | None) -> int | None:
    """torch writes the peer as a rank of the job; a number that is none of the members can only be a place in the
    group (a profiler of another make)."""
    if number is None or members is None or number in members or number >= len(members):
        return number
    return members[number]


def _known(number: int) -> int | None:
    return None if number == NONE else number


def operators_by_id(trace: TraceColumns) -> dict[int, int]:
    """External id -> entry of the operator that records it: a kernel names its operator by this number."""
    calls = trace.communication
    operators = np.flatnonzero(trace.category[calls.row] == Category.CPU_OP)
    ids = trace.external_id[calls.row[operators]]
    return {int(i): int(entry) for i, entry in zip(ids, operators, strict=True) if i != NONE}


class Issued:
    """The communication operators of each host thread, handed out in issue order: those that record arguments, else
    (torch before 2.3) the sends and receives that name their peer."""

    def __init__(self, trace: TraceColumns) -> None:
        calls = trace.communication
        is_operator = trace.category[calls.row] == Category.CPU_OP
        idle = np.array([kind.lower() in NO_TRANSFER for kind in calls.kinds] or [False])
        entries = np.flatnonzero(is_operator & ~idle[calls.kind])
        self.by_arguments = len(entries) > 0
        if self.by_arguments:
            rows = calls.row[entries]
            told = [told_by(trace, int(entry), int(entry)) for entry in entries]
        else:
            rows = trace.rows_named(_SEND_OR_RECEIVE.match, Category.CPU_OP, Category.USER_ANNOTATION)
            told = [_told_by_span(trace, row) for row in rows.tolist()]
        order = np.argsort(trace.start_ns[rows], kind="stable")
        self._told = [told[place] for place in order.tolist()]
        self._start = trace.start_ns[rows][order]
        self._lane: IntColumn = trace.lane[rows][order]
        self._taken_until: dict[int, int] = {}

    def since_last(self, lane: int, launch_ns: int) -> list[Told]:
        """Operators that `lane` issued up to `launch_ns` and that no earlier call of this function returned."""
        after = self._taken_until.get(lane, -1)
        self._taken_until[lane] = launch_ns
        low, high = np.searchsorted(self._start, [after, launch_ns], side="right")
        return [self._told[i] for i in range(low, high) if self._lane[i] == lane]


def _told_by_span(trace: TraceColumns, row: int) -> Told:
    name = trace.names[int(trace.name[row])]
    dims, types, concrete = arguments_of(trace, row)
    kind = "send" if "send" in name else "recv"
    return Told(kind, num_bytes=largest_tensor_bytes(dims, types), peer_place=peer_of(name, concrete))


def _members(trace: TraceColumns, group: ProcessGroup) -> tuple[int, ...] | None:
    if group.ranks:
        return group.ranks
    listed = (g.ranks for g in trace.header.groups if g.name == group.name)
    return next((ranks for ranks in listed if ranks), None)
