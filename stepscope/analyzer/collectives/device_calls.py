"""Communication calls of a rank with a device: group, kind, size and peers of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.call_arguments import (
    CallArguments,
    IssuedOperators,
    LaunchContext,
    launch_contexts,
    operators_by_id,
    read_call_arguments,
)
from stepscope.analyzer.collectives.calls import (
    AFTER_STEPS,
    BEFORE_STEPS,
    FROM_ROOT_KINDS,
    P2P_KINDS,
    TO_ROOT_KINDS,
    Call,
    PeerCall,
    kind_in_name,
)
from stepscope.analyzer.collectives.process_groups import dimension_of_call
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.analyzer.rows import distinct, graph_launches
from stepscope.trace.columns import NONE, TraceColumns


def device_calls(trace: TraceColumns, rank: int, activities: Activities, steps: HostSteps) -> list[Call]:
    """The communication kernels of a rank in launch order, with their arguments.

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
    """Positions of the communication kernels in launch order, and when each was launched.

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


class _CallReader:
    """Reads one rank's calls in launch order, with counters of calls per peer and known groups of streams."""

    def __init__(self, trace: TraceColumns, rank: int, activities: Activities, chosen: npt.NDArray[np.intp]) -> None:
        self._trace = trace
        self._rank = rank
        self._activities = activities
        self._chosen = chosen
        self._entry_of_row = {int(row): entry for entry, row in enumerate(trace.communication.row)}
        self._operator_of_id = operators_by_id(trace)
        self._contexts = launch_contexts(trace, activities.launch_lane[chosen], activities.launch_ns[chosen])
        self._issued = IssuedOperators(trace)
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
        )

    def _arguments(self, row: int, position: int, context: LaunchContext) -> tuple[list[CallArguments], bool]:
        """Arguments of the kernel's calls, and whether they are recorded (and not read from an annotation)."""
        lane, launch = int(self._activities.launch_lane[position]), int(self._activities.launch_ns[position])
        issued = self._issued.since_last(lane, launch) if lane != NONE else []
        entry = self._entry_of_row.get(row)
        operator = self._operator_of_id.get(int(self._trace.external_id[row]))
        if entry is not None:
            return [read_call_arguments(self._trace, entry, operator)], True
        if operator is not None and not issued:
            return [read_call_arguments(self._trace, operator, operator)], True
        if issued:
            return issued, self._issued.by_arguments
        if context.kind in ("send", "recv") and context.peer is not None:
            return [CallArguments(context.kind, peer_place=context.peer, num_bytes=context.num_bytes)], False
        return [], False

    def _groups_by_stream(self) -> dict[int, tuple[int, ...]]:
        """The group of each stream that only one group uses: a communicator keeps its stream, so this holds for calls
        without arguments too."""
        groups: dict[int, set[tuple[int, ...]]] = {}
        for position in self._chosen.tolist():
            entry = self._entry_of_row.get(int(self._activities.row[position]))
            members = read_call_arguments(self._trace, entry, None).members if entry is not None else None
            if members is not None:
                groups.setdefault(int(self._activities.stream[position]), set()).add(members)
        return {stream: next(iter(seen)) for stream, seen in groups.items() if len(seen) == 1}

    def _peers(self, parts: list[CallArguments], members: tuple[int, ...] | None, step: int) -> tuple[PeerCall, ...]:
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


def _kind_of(parts: list[CallArguments], peers: tuple[PeerCall, ...], context: LaunchContext, name: str) -> str:
    if peers:
        return parts[0].kind if len(peers) == 1 else "p2p"
    by_arguments = next((part.kind for part in reversed(parts) if part.kind not in P2P_KINDS), None)
    by_span = None if context.kind in P2P_KINDS else context.kind
    return by_arguments or by_span or kind_in_name(name)


def _num_bytes(parts: list[CallArguments], kind: str) -> int | None:
    """Sum over a coalesced group; of concurrent sends and receives, the larger direction."""
    if any(part.num_bytes is None for part in parts):
        return None
    if kind not in P2P_KINDS:
        return sum(part.num_bytes or 0 for part in parts if part.kind == kind) or None
    sent = sum(part.num_bytes or 0 for part in parts if part.kind == "send")
    received = sum(part.num_bytes or 0 for part in parts if part.kind == "recv")
    return max(sent, received) or None


def _root(parts: list[CallArguments], context: LaunchContext, kind: str, members: tuple[int, ...] | None) -> int | None:
    """The root of a rooted kind as a global rank."""
    if kind not in FROM_ROOT_KINDS | TO_ROOT_KINDS:
        return None
    place = _only({part.root for part in parts})
    place = context.root if place is None else place
    return members[place] if place is not None and members is not None and place < len(members) else None


def _only(values: set[int | None]) -> int | None:
    return values.pop() if len(values) == 1 else None
