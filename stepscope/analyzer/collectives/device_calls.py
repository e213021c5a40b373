"""Communication calls of a rank with a device: group, kind, size and peers of each."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.call_arguments import (
    LaunchContext,
    largest_tensor_bytes,
    launch_contexts,
    peer_of_span,
    recorded_arguments,
)
from stepscope.analyzer.collectives.calls import (
    AFTER_STEPS,
    BEFORE_STEPS,
    FROM_ROOT_KINDS,
    NO_TRANSFER,
    P2P_KINDS,
    TO_ROOT_KINDS,
    Call,
    PeerCall,
    collective_kind,
    collective_kind_of_kernel,
)
from stepscope.analyzer.collectives.process_groups import dimension_of_call
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.analyzer.roofline.element_types import bytes_of_dtype
from stepscope.trace.columns import NONE, Category, IntColumn, ProcessGroup, TraceColumns
from stepscope.trace.rows import distinct, graph_launches


def device_calls(trace: TraceColumns, rank: int, activities: Activities, steps: HostSteps) -> list[Call]:
    """Collectives, sends and receives of a rank in launch order, from its communication kernels.

    Arguments come from the kernel itself, else (send/receive, coalesced groups) from the operators issued on the
    launching thread since the previous communication kernel, else from the spans open on that thread (before 2023,
    inference engines' kernels), else from the stream's known group and the kernel's name.
    """
    chosen, launched = calls_in_order(activities)
    place = np.where(launched == NONE, NONE, steps.position_of(launched))
    first = steps.start_ns[0] if len(steps) else 0
    reader = _CallReader(trace, rank, activities, chosen)
    graphs = _graph_launches(trace, steps, activities.launch_ns[chosen])
    calls = []
    for number, where in enumerate(place.tolist()):
        if where != NONE:
            step = int(steps.index[where])
        else:
            step = AFTER_STEPS if launched[number] != NONE and launched[number] >= first else BEFORE_STEPS
        calls.append(reader.read(number, step, graphs[number]))
    return _with_dimension_of_stream(calls)


def _with_dimension_of_stream(calls: list[Call]) -> list[Call]:
    """The calls, those without a dimension (launched before the trace) getting the one that all others of their group
    on their stream have."""
    seen: dict[tuple[int | None, tuple[int, ...] | None], set[str]] = {}
    for call in calls:
        if call.dimension is not None:
            seen.setdefault((call.stream, call.group), set()).add(call.dimension)
    only = {key: next(iter(dimensions)) for key, dimensions in seen.items() if len(dimensions) == 1}
    return [
        call if call.dimension is not None else replace(call, dimension=only.get((call.stream, call.group)))
        for call in calls
    ]


def calls_in_order(activities: Activities) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Positions of the communication kernels in launch order, and when each collective was launched.

    A lost launch was between its neighbours' on the stream, so such a call takes its predecessor's; NONE before a
    stream's first known launch.
    """
    chosen = activities.of(Work.COMMUNICATION)
    chosen = chosen[np.argsort(activities.start_ns[chosen], kind="stable")]
    launched = activities.launch_ns[chosen].copy()
    latest: dict[int, int] = {}
    for place, stream in enumerate(activities.stream[chosen].tolist()):
        launched[place] = latest.setdefault(stream, NONE) if launched[place] == NONE else launched[place]
        latest[stream] = int(launched[place])
    order = np.argsort(launched, kind="stable")
    return chosen[order], launched[order]


def _graph_launches(trace: TraceColumns, steps: HostSteps, launches: npt.NDArray[np.int64]) -> list[int | None]:
    """For each launch its index among the graph launches of its step; None for an ordinary launch."""
    starts = distinct(trace.start_ns[graph_launches(trace)])
    if not len(starts):
        return [None] * len(launches)
    place = steps.position_of(starts)
    begins = np.concatenate(([True], place[1:] != place[:-1]))
    ordinal = np.arange(len(starts)) - np.maximum.accumulate(np.where(begins, np.arange(len(starts)), 0))
    where = np.minimum(np.searchsorted(starts, launches), len(starts) - 1)
    return [int(ordinal[w]) if starts[w] == time else None for w, time in zip(where, launches, strict=True)]


_SEND_OR_RECEIVE = re.compile(r"^nccl:(send|recv) \d|^c10d::(send|recv_)$")


_Value = TypeVar("_Value")


class _CallArguments(NamedTuple):
    """Arguments of one collective call from its operator or kernel; None where unknown.

    `peer` is a global rank (from arguments), `peer_place` (from spans) and `root` are ranks in the group.
    """

    kind: str
    group: ProcessGroup | None = None
    members: tuple[int, ...] | None = None
    num_bytes: int | None = None
    dtype: str | None = None
    peer: int | None = None
    sequence: int | None = None
    communicator: int | None = None
    root: int | None = None
    peer_place: int | None = None


def _read_call_arguments(trace: TraceColumns, entry: int, operator: int | None) -> _CallArguments:
    """Arguments of a collective, an entry of `trace.communication`; `operator` is the entry that has its root."""
    calls = trace.communication
    kind = collective_kind(calls.kinds[int(calls.kind[entry])])
    place = int(calls.group[entry])
    group = trace.groups[place] if place != NONE else None
    elements = max(int(calls.in_elements[entry]), int(calls.out_elements[entry]))
    dtype = int(calls.dtype[entry])
    size = bytes_of_dtype(calls.dtypes[dtype]) if dtype != NONE else None
    groups = [] if group is None else [group, *(g for g in trace.header.groups if g.name == group.name)]
    members = next((one.ranks for one in groups if one.ranks), None)
    peer = int(calls.destination_rank[entry] if kind == "send" else calls.source_rank[entry])
    # torch writes the global rank; a number outside the group is an index into it, as other profilers write
    if members is not None and peer not in members and NONE != peer < len(members):
        peer = members[peer]
    return _CallArguments(
        kind=kind,
        group=group,
        members=members,
        num_bytes=elements * size if size is not None and elements >= 0 else None,
        dtype=calls.dtypes[dtype].lower() if dtype != NONE else None,
        peer=_or_none(peer),
        sequence=_or_none(int(calls.sequence[entry])),
        communicator=_or_none(int(calls.communicator[entry])),
        root=_or_none(int(calls.root_rank[operator])) if operator is not None else None,
    )


def _or_none(number: int) -> int | None:
    return None if number == NONE else number


def _operators_by_id(trace: TraceColumns) -> dict[int, int]:
    """External id -> entry of its communication operator, to which a kernel refers by this id."""
    calls = trace.communication
    operators = np.flatnonzero(trace.category[calls.row] == Category.CPU_OP)
    ids = trace.external_id[calls.row[operators]]
    return {int(i): int(entry) for i, entry in zip(ids, operators, strict=True) if i != NONE}


class _IssuedOperators:
    """Communication operators of each host thread, returned in issue order.

    Those with arguments, else (torch < 2.3) the spans of sends and receives that name their peer.
    """

    def __init__(self, trace: TraceColumns) -> None:
        calls = trace.communication
        is_operator = trace.category[calls.row] == Category.CPU_OP
        idle = np.array([kind.lower() in NO_TRANSFER for kind in calls.kinds] or [False])
        entries = np.flatnonzero(is_operator & ~idle[calls.kind])
        self.by_arguments = len(entries) > 0
        if self.by_arguments:
            rows = calls.row[entries]
            arguments = [_read_call_arguments(trace, int(entry), int(entry)) for entry in entries]
        else:
            rows = trace.rows_named(_SEND_OR_RECEIVE.match, Category.CPU_OP, Category.USER_ANNOTATION)
            arguments = []
            for row in rows.tolist():
                name = trace.names[int(trace.name[row])]
                dims, types, concrete = recorded_arguments(trace, row)
                kind, size = "send" if "send" in name else "recv", largest_tensor_bytes(dims, types)
                arguments.append(_CallArguments(kind, num_bytes=size, peer_place=peer_of_span(name, concrete)))
        order = np.argsort(trace.start_ns[rows], kind="stable")
        self._arguments = [arguments[place] for place in order.tolist()]
        self._start = trace.start_ns[rows][order]
        self._lane: IntColumn = trace.lane[rows][order]
        self._taken_until: dict[int, int] = {}

    def since_last(self, lane: int, launch_ns: int) -> list[_CallArguments]:
        """Operators that `lane` issued up to `launch_ns` and that no earlier call returned."""
        after = self._taken_until.get(lane, -1)
        self._taken_until[lane] = launch_ns
        low, high = np.searchsorted(self._start, [after, launch_ns], side="right")
        return [self._arguments[i] for i in range(low, high) if self._lane[i] == lane]


class _CallReader:
    """Reads one rank's calls in launch order, with counters of calls per peer and known groups of streams."""

    def __init__(self, trace: TraceColumns, rank: int, activities: Activities, chosen: npt.NDArray[np.intp]) -> None:
        self._trace = trace
        self._rank = rank
        self._activities = activities
        self._chosen = chosen
        self._entry_of_row = {int(row): entry for entry, row in enumerate(trace.communication.row)}
        self._operator_of_id = _operators_by_id(trace)
        self._contexts = launch_contexts(trace, activities.launch_lane[chosen], activities.launch_ns[chosen])
        self._issued = _IssuedOperators(trace)
        self._group_of_stream = self._groups_by_stream()
        self._ordinals: dict[tuple[int, int, int], int] = {}

    def read(self, number: int, step: int, graph_launch: int | None) -> Call:
        position, context = int(self._chosen[number]), self._contexts[number]
        activities = self._activities
        row, stream = int(activities.row[position]), int(activities.stream[position])
        parts, described = self._arguments(row, position, context)
        group, members = next(((p.group, p.members) for p in parts if p.members is not None), (None, None))
        if members is None:
            members = self._group_of_stream.get(stream)
        peers = self._peers(parts, members, step)
        name = self._trace.names[int(self._trace.name[row])]
        kind = _kind_of(parts, peers, context, name)
        return Call(
            rank=self._rank,
            start_ns=int(activities.start_ns[position]),
            end_ns=int(activities.end_ns[position]),
            step=step,
            group=members,
            kind=kind,
            num_bytes=_num_bytes(parts, kind) if parts else context.num_bytes,
            peers=peers,
            described=described,
            sequence=_only({part.sequence for part in parts}),
            communicator=_only({part.communicator for part in parts}),
            root=_root(parts, context, kind, members),
            stream=stream,
            graph_launch=graph_launch,
            dimension=dimension_of_call(group, context.open_spans, kind),
            dtype=_only({part.dtype for part in parts}),
        )

    def _arguments(self, row: int, position: int, context: LaunchContext) -> tuple[list[_CallArguments], bool]:
        """Arguments of the kernel's calls, and whether they are recorded (and not read from an annotation)."""
        lane, launch = int(self._activities.launch_lane[position]), int(self._activities.launch_ns[position])
        issued = self._issued.since_last(lane, launch) if lane != NONE else []
        entry = self._entry_of_row.get(row)
        operator = self._operator_of_id.get(int(self._trace.external_id[row]))
        if entry is not None:
            return [_read_call_arguments(self._trace, entry, operator)], True
        if operator is not None and not issued:
            return [_read_call_arguments(self._trace, operator, operator)], True
        if issued:
            return issued, self._issued.by_arguments
        if context.kind in ("send", "recv") and context.peer is not None:
            return [_CallArguments(context.kind, peer_place=context.peer, num_bytes=context.num_bytes)], False
        return [], False

    def _groups_by_stream(self) -> dict[int, tuple[int, ...]]:
        """The group of each stream that only one group uses: a communicator keeps its stream, so this holds for calls
        without arguments too."""
        groups: dict[int, set[tuple[int, ...]]] = {}
        for position in self._chosen.tolist():
            entry = self._entry_of_row.get(int(self._activities.row[position]))
            members = _read_call_arguments(self._trace, entry, None).members if entry is not None else None
            if members is not None:
                groups.setdefault(int(self._activities.stream[position]), set()).add(members)
        return {stream: next(iter(seen)) for stream, seen in groups.items() if len(seen) == 1}

    def _peers(self, parts: list[_CallArguments], members: tuple[int, ...] | None, step: int) -> tuple[PeerCall, ...]:
        peers = []
        for part in parts:
            peer, place = part.peer, part.peer_place
            if peer is None and place is not None:  # a rank in an unknown group is taken for a global one
                peer = members[place] if members is not None and place < len(members) else place
            if part.kind not in ("send", "recv") or peer is None:
                continue
            source, destination = (self._rank, peer) if part.kind == "send" else (peer, self._rank)
            key = (step, source, destination)
            ordinal = self._ordinals[key] = self._ordinals.get(key, -1) + 1
            peers.append(PeerCall(source, destination, ordinal))
        return tuple(peers)


def _kind_of(parts: list[_CallArguments], peers: tuple[PeerCall, ...], context: LaunchContext, name: str) -> str:
    if peers:
        return parts[0].kind if len(peers) == 1 else "p2p"
    by_arguments = next((part.kind for part in reversed(parts) if part.kind not in P2P_KINDS), None)
    by_span = None if context.kind in P2P_KINDS else context.kind
    return by_arguments or by_span or collective_kind_of_kernel(name)


def _num_bytes(parts: list[_CallArguments], kind: str) -> int | None:
    """Sum over a coalesced group; of concurrent sends and receives, the larger direction."""
    if any(part.num_bytes is None for part in parts):
        return None
    if kind not in P2P_KINDS:
        return sum(part.num_bytes or 0 for part in parts if part.kind == kind) or None
    sent = sum(part.num_bytes or 0 for part in parts if part.kind == "send")
    received = sum(part.num_bytes or 0 for part in parts if part.kind == "recv")
    return max(sent, received) or None


def _root(
    parts: list[_CallArguments], context: LaunchContext, kind: str, members: tuple[int, ...] | None
) -> int | None:
    """The root of a rooted kind as a global rank."""
    if kind not in FROM_ROOT_KINDS | TO_ROOT_KINDS:
        return None
    place = _only({part.root for part in parts})
    place = context.root if place is None else place
    return members[place] if place is not None and members is not None and place < len(members) else None


def _only(values: set[_Value]) -> _Value | None:
    return values.pop() if len(values) == 1 else None
