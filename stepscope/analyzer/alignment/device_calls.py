"""Which communication calls did a rank make: of which group, what kind, how large, with which peers?"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.trace.columns import NONE, Category, CommunicationCalls, IntColumn, ProcessGroup, TraceColumns

BEFORE_STEPS = -1
"""Step of a call that was launched before the first profiled step."""

AFTER_STEPS = -2
"""Step of a call that was launched after the last one, or in a trace without steps."""

_KIND_OF_WORD = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "scatter": "scatter",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "send": "send",
    "recv": "recv",
}
_KIND_IN_NAME = (
    (re.compile(r"send_?recv|sendrecv", re.IGNORECASE), "p2p"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
)
_BYTES_OF_DTYPE = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "long": 8,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
_NO_TRANSFER = frozenset({"wait", "init", "init_ranks", "comms_init"})
"""Described like collectives, but nothing is sent."""
P2P_KINDS = frozenset({"send", "recv", "p2p"})
SYNCHRONIZING_KINDS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Nobody leaves before everybody has come."""


@dataclass(frozen=True, slots=True)
class PeerCall:
    """One direction of a point-to-point call; `ordinal` counts the calls from source to destination in the step."""

    source: int
    destination: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Call:
    """One communication call of one rank, as it ran on the device (or, without a device, on the host).

    Attributes:
        rank: who made it.
        start_ns, end_ns: on the rank's clock.
        step: the step number it was launched in, or BEFORE_STEPS, or AFTER_STEPS.
        group: members, or None where the trace does not tell.
        kind: all_reduce, all_gather, ..., send, recv, p2p (several directions at once), unknown.
        num_bytes: the larger of input and output on this rank, or None.
        peers: the directions of a point-to-point call; empty for the others.
        described: whether the trace itself says what the call is.
        sequence: the group's own count of its calls (torch >= 2.12), or None.
    """

    rank: int
    start_ns: int
    end_ns: int
    step: int
    group: tuple[int, ...] | None
    kind: str
    num_bytes: int | None
    peers: tuple[PeerCall, ...]
    described: bool
    sequence: int | None = None


def device_calls(trace: TraceColumns, rank: int, activities: Activities, steps: HostSteps) -> list[Call]:
    """The communication kernels of a rank in launch order, each with what the trace tells about it.

    A kernel's own arguments come first; torch records none on send/receive kernels, so these take the operators
    issued on the launching thread since the previous communication kernel; then the stream's known group and
    the kernel's name.
    """
    chosen = activities.of(Work.COMMUNICATION)
    launched = activities.launch_ns[chosen]
    chosen = chosen[
        np.lexsort((activities.start_ns[chosen], np.where(launched == NONE, np.iinfo(np.int64).min, launched)))
    ]
    reader = _CallReader(trace, rank, activities)
    place = np.where(activities.launch_ns[chosen] == NONE, NONE, steps.position_of(activities.launch_ns[chosen]))
    first = steps.start_ns[0] if len(steps) else 0
    calls = []
    for position, where in zip(chosen.tolist(), place.tolist(), strict=True):
        launch = int(activities.launch_ns[position])
        if where != NONE:
            step = int(steps.index[where])
        else:
            step = AFTER_STEPS if launch != NONE and launch >= first else BEFORE_STEPS
        calls.append(reader.read(position, step))
    return calls


class _CallReader:
    """Reads one rank's calls in launch order; remembers which peers and streams it has seen."""

    def __init__(self, trace: TraceColumns, rank: int, activities: Activities) -> None:
        self._trace = trace
        self._rank = rank
        self._activities = activities
        self._entry_of_row = {int(row): entry for entry, row in enumerate(trace.communication.row)}
        self._operators = _Operators(trace)
        self._group_of_stream = self._groups_by_stream()
        self._ordinals: dict[tuple[int, int, int], int] = {}

    def read(self, position: int, step: int) -> Call:
        trace, activities = self._trace, self._activities
        row = int(activities.row[position])
        entry = self._entry_of_row.get(row)
        lane, launch = int(activities.launch_lane[position]), int(activities.launch_ns[position])
        issued = self._operators.since_last(lane, launch) if lane != NONE else []
        entries = [entry] if entry is not None else issued
        kinds = [self._kind(e) for e in entries]
        name_kind = _kind_in_name(trace.names[int(trace.name[row])])
        group = self._group(entries)
        if group is None:
            group = self._group_of_stream.get(int(activities.stream[position]))
        peers = self._peers(entries, kinds, group, step)
        if peers:
            kind = kinds[0] if len(peers) == 1 else "p2p"
        else:
            kind = next((k for k in reversed(kinds) if k not in P2P_KINDS), name_kind)
        return Call(
            rank=self._rank,
            start_ns=int(activities.start_ns[position]),
            end_ns=int(activities.end_ns[position]),
            step=step,
            group=group,
            kind=kind,
            num_bytes=max((b for e in entries if (b := self._num_bytes(e)) is not None), default=None),
            peers=peers,
            described=bool(entries),
            sequence=self._sequence(entries),
        )

    def _groups_by_stream(self) -> dict[int, tuple[int, ...]]:
        """A communicator keeps its stream: what one call says of its group holds for the silent ones."""
        groups: dict[int, tuple[int, ...]] = {}
        for position in self._activities.of(Work.COMMUNICATION).tolist():
            entry = self._entry_of_row.get(int(self._activities.row[position]))
            group = self._group([entry]) if entry is not None else None
            if group is not None:
                groups.setdefault(int(self._activities.stream[position]), group)
        return groups

    def _kind(self, entry: int) -> str:
        calls = self._trace.communication
        word = calls.kinds[int(calls.kind[entry])].lower()
        return _KIND_OF_WORD.get(word, word)

    def _group(self, entries: list[int]) -> tuple[int, ...] | None:
        for entry in entries:
            place = int(self._trace.communication.group[entry])
            if place != NONE and (members := _members(self._trace, self._trace.groups[place])) is not None:
                return members
        return None

    def _num_bytes(self, entry: int) -> int | None:
        calls = self._trace.communication
        elements = max(int(calls.in_elements[entry]), int(calls.out_elements[entry]))
        dtype = int(calls.dtype[entry])
        if elements < 0 or dtype == NONE:
            return None
        size = _BYTES_OF_DTYPE.get(calls.dtypes[dtype].lower())
        return None if size is None else elements * size

    def _sequence(self, entries: list[int]) -> int | None:
        numbers = {int(self._trace.communication.sequence[entry]) for entry in entries}
        return numbers.pop() if len(numbers) == 1 and NONE not in numbers else None

    def _peers(
        self, entries: list[int], kinds: list[str], group: tuple[int, ...] | None, step: int
    ) -> tuple[PeerCall, ...]:
        calls: CommunicationCalls = self._trace.communication
        peers = []
        for entry, kind in zip(entries, kinds, strict=True):
            if kind not in ("send", "recv"):
                continue
            told = int(calls.destination_rank[entry] if kind == "send" else calls.source_rank[entry])
            if told == NONE:
                continue
            peer = group[told] if group is not None and told < len(group) else told
            source, destination = (self._rank, peer) if kind == "send" else (peer, self._rank)
            key = (step, source, destination)
            ordinal = self._ordinals[key] = self._ordinals.get(key, -1) + 1
            peers.append(PeerCall(source, destination, ordinal))
        return tuple(peers)


class _Operators:
    """The described communication operators of each host thread, handed out in issue order."""

    def __init__(self, trace: TraceColumns) -> None:
        calls = trace.communication
        is_operator = trace.category[calls.row] == Category.CPU_OP
        waits = np.array(
            [kind.lower() in ("wait", "init", "init_ranks", "comms_init") for kind in calls.kinds] or [False]
        )
        entries = np.flatnonzero(is_operator & ~waits[calls.kind])
        self._start = trace.start_ns[calls.row[entries]]
        order = np.argsort(self._start, kind="stable")
        self._entries, self._start = entries[order], self._start[order]
        self._lane: IntColumn = trace.lane[calls.row[self._entries]]
        self._taken_until: dict[int, int] = {}

    def since_last(self, lane: int, launch_ns: int) -> list[int]:
        """Operators that `lane` issued up to `launch_ns` and that no earlier call of this function returned."""
        after = self._taken_until.get(lane, -1)
        self._taken_until[lane] = launch_ns
        low, high = np.searchsorted(self._start, [after, launch_ns], side="right")
        return [int(e) for e, on in zip(self._entries[low:high], self._lane[low:high], strict=True) if on == lane]


def _kind_in_name(name: str) -> str:
    return next((kind for pattern, kind in _KIND_IN_NAME if pattern.search(name)), "unknown")


def _members(trace: TraceColumns, group: ProcessGroup) -> tuple[int, ...] | None:
    if group.ranks:
        return group.ranks
    listed = (g.ranks for g in trace.header.groups if g.name == group.name)
    return next((ranks for ranks in listed if ranks), None)
