"""Which edges does the job's graph have, kind by kind, before it is put in order?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.call_words import FROM_ROOT_KINDS, SYNCHRONIZING_KINDS, TO_ROOT_KINDS
from stepscope.analyzer.alignment.matching import CallId, Matches
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.what_if.rank_graph import Edges, RankGraph
from stepscope.trace.columns import NONE

Nodes = npt.NDArray[np.int64]

ORIGIN = 0
"""The node at the beginning of time."""


class EdgeKind(IntEnum):
    """What an edge means; a scenario changes weights kind by kind."""

    FIXED = 0
    """from the origin: history, where it was measured"""
    HOST = 1
    """from one call's return to the next one's"""
    ORDER = 2
    """a thread's own order"""
    LAUNCH = 3
    STREAM = 4
    EVENT = 5
    BLOCKING = 6
    QUEUE = 7
    TRANSFER = 8


@dataclass(frozen=True, slots=True)
class EdgeBlock:
    """Edges of one kind, parallel arrays.

    Attributes:
        source, target: nodes.
        base_ns: what the edge takes beside what it carries.
        carries: activity whose duration it carries, or NONE.
        item: what a scenario changes it by: the call (HOST, BLOCKING), the communication (TRANSFER), the activity that
            follows (STREAM); else NONE.
    """

    kind: EdgeKind
    source: Nodes
    target: Nodes
    base_ns: Nanoseconds
    carries: Nodes
    item: Nodes

    def __len__(self) -> int:
        return len(self.source)

    def only(self, kept: npt.NDArray[np.bool_]) -> EdgeBlock:
        """The edges that are kept."""
        columns = (self.source, self.target, self.base_ns, self.carries, self.item)
        return EdgeBlock(self.kind, *(column[kept] for column in columns))


@dataclass(frozen=True, slots=True)
class Part:
    """One rank in the job's arrays: where its calls, activities and communications begin."""

    rank: int
    graph: RankGraph
    first_call: int
    first_activity: int
    first_communication: int
    offset_ns: int
    """the rank's clock less the job's"""

    @property
    def calls(self) -> slice:
        """Its host calls among all ranks'."""
        return slice(self.first_call, self.first_call + len(self.graph.host))

    @property
    def activities(self) -> slice:
        return slice(self.first_activity, self.first_activity + len(self.graph.device))

    @property
    def communications(self) -> slice:
        count = int(np.count_nonzero(self.graph.device.call != NONE))
        return slice(self.first_communication, self.first_communication + count)


@dataclass(frozen=True, slots=True)
class Layout:
    """All ranks' items, numbered one rank after another; nodes are calls, then activities' starts, then
    communications' ends, after the origin.

    Attributes:
        activity_of_communication: by communication.
        communication_of_activity: by activity, or NONE.
    """

    parts: dict[int, Part]
    num_calls: int
    num_activities: int
    activity_of_communication: Nodes
    communication_of_activity: Nodes

    @property
    def num_nodes(self) -> int:
        return 1 + self.num_calls + self.num_activities + len(self.activity_of_communication)

    def call_nodes(self, calls: npt.ArrayLike) -> Nodes:
        return np.asarray(calls, np.int64) + 1

    def start_nodes(self, activities: npt.ArrayLike) -> Nodes:
        return np.asarray(activities, np.int64) + 1 + self.num_calls

    def end_nodes(self, communications: npt.ArrayLike) -> Nodes:
        return np.asarray(communications, np.int64) + 1 + self.num_calls + self.num_activities


def lay_out(graphs: Mapping[int, RankGraph], offsets_ns: Mapping[int, int]) -> Layout:
    """Number the items of all ranks."""
    parts: dict[int, Part] = {}
    calls = activities = communications = 0
    of_communication, of_activity = [], []
    for rank, graph in graphs.items():
        parts[rank] = Part(rank, graph, calls, activities, communications, offsets_ns.get(rank, 0))
        place = np.flatnonzero(graph.device.call != NONE)
        place = place[np.argsort(graph.device.call[place])]
        numbers = np.full(len(graph.device), NONE, np.int64)
        numbers[place] = communications + np.arange(len(place))
        of_communication.append(place + activities)
        of_activity.append(numbers)
        calls += len(graph.host)
        activities += len(graph.device)
        communications += len(place)
    return Layout(parts, calls, activities, np.concatenate(of_communication), np.concatenate(of_activity))


def rank_blocks(layout: Layout, part: Part, origin_ns: int) -> list[EdgeBlock]:
    """The edges within one rank; times count from the origin."""
    graph, host, device = part.graph, part.graph.host, part.graph.device
    shift = origin_ns + part.offset_ns
    calls = layout.call_nodes(part.first_call + np.arange(len(host)))
    starts = layout.start_nodes(part.first_activity + np.arange(len(device)))
    numbers = part.first_call + np.arange(len(host))
    follows_one = host.follows != NONE
    opens = np.where(follows_one, 0, host.opens_ns - shift)
    own_order = np.flatnonzero(host.follows_own != NONE)
    history = np.flatnonzero(device.is_history)
    communicates = history[layout.communication_of_activity[part.first_activity + history] != NONE]
    launched = np.flatnonzero((device.launched_by != NONE) & ~device.is_history)
    before_call = np.where(follows_one, calls[host.follows], ORIGIN)
    ends = layout.end_nodes(layout.communication_of_activity[part.first_activity + communicates])
    return [
        _block(EdgeKind.HOST, before_call, calls, opens, item=numbers),
        _block(EdgeKind.ORDER, calls[host.follows_own[own_order]], calls[own_order], 0),
        _block(EdgeKind.FIXED, ORIGIN, starts[history], device.start_ns[history] - shift),
        _block(EdgeKind.FIXED, ORIGIN, ends, device.end_ns[communicates] - shift),
        _block(EdgeKind.LAUNCH, calls[device.launched_by[launched]], starts[launched], graph.launch_ns),
        _after(layout, part, EdgeKind.STREAM, _new(graph, graph.streams), starts, graph.stream_gap_ns),
        _after(layout, part, EdgeKind.EVENT, _new(graph, graph.events), starts, graph.event_ns),
        _after(layout, part, EdgeKind.BLOCKING, (graph.blocking, slice(None)), calls, graph.blocking_ns),
        _block(EdgeKind.QUEUE, starts[graph.queue.source], calls[graph.queue.target], 0),
    ]


def _new(graph: RankGraph, edges: Edges) -> tuple[Edges, npt.NDArray[np.intp]]:
    """The edges whose target is no history, and their places."""
    kept = np.flatnonzero(~graph.device.is_history[edges.target])
    return Edges(edges.source[kept], edges.target[kept]), kept


def _after(
    layout: Layout,
    part: Part,
    kind: EdgeKind,
    chosen: tuple[Edges, npt.NDArray[np.intp] | slice],
    targets: Nodes,
    base_ns: Nanoseconds | int,
) -> EdgeBlock:
    """Edges from the ends of activities: of a communication from its node, of any other from its start and duration."""
    edges, kept = chosen
    base = base_ns if isinstance(base_ns, int) else base_ns[kept]
    source = part.first_activity + edges.source
    communication = layout.communication_of_activity[source]
    is_communication = communication != NONE
    nodes = np.where(is_communication, layout.end_nodes(communication), layout.start_nodes(source))
    first = part.first_call if kind is EdgeKind.BLOCKING else part.first_activity
    return _block(
        kind,
        nodes,
        targets[edges.target],
        base,
        carries=np.where(is_communication, NONE, source),
        item=first + edges.target,
    )


def transfer_block(
    layout: Layout, calls_of_rank: Mapping[int, Sequence[Call]], matches: Matches
) -> tuple[EdgeBlock, Nanoseconds, int]:
    """Each communication ends its transfer after the last of those it needs has come.

    Returns:
        The edges, by communication the transfer in nanoseconds, and how many have no partner: what they took when
        measured is taken for their transfer.
    """
    needed = _needed(calls_of_rank, matches)
    history = _is_history(layout)
    source: list[int] = []
    target: list[int] = []
    transfer: list[int] = []
    alone = 0
    for rank, part in layout.parts.items():
        for place, call in enumerate(calls_of_rank[rank]):
            number = part.first_communication + place
            others = [
                other
                for other in needed.get(CallId(rank, place), ())
                if other.rank in layout.parts and calls_of_rank[other.rank][other.place].start_ns <= call.end_ns
            ]
            is_history = history[layout.activity_of_communication[part.first_communication + place]]
            alone += not others and not is_history and (call.group is None or len(call.group) > 1)
            arrival = max([call.start_ns, *(calls_of_rank[o.rank][o.place].start_ns for o in others)])
            transfer.append(call.end_ns - arrival)
            for one in {CallId(rank, place), *others}:
                source.append(layout.parts[one.rank].first_communication + one.place)
                target.append(number)
    sources, targets = np.array(source, np.int64), np.array(target, np.int64)
    starts = layout.start_nodes(layout.activity_of_communication[sources])
    block = _block(EdgeKind.TRANSFER, starts, layout.end_nodes(targets), 0, item=targets)
    return _without_history(layout, block), np.array(transfer, np.int64), alone


def _needed(calls_of_rank: Mapping[int, Sequence[Call]], matches: Matches) -> dict[CallId, list[CallId]]:
    """Whose arrival each call needs: all members where the kind synchronises, else the root, or the root all; the
    partners of a point-to-point call."""
    needed: dict[CallId, list[CallId]] = dict(matches.peers)
    for match in matches.collectives:
        calls = {rank: calls_of_rank[rank][call.place] for rank, call in match.items()}
        kinds = {call.kind for call in calls.values()}
        roots = {call.root for call in calls.values()}
        if kinds <= SYNCHRONIZING_KINDS:
            needed.update({call: list(match.values()) for call in match.values()})
        elif kinds <= FROM_ROOT_KINDS and len(roots) == 1 and (root := roots.pop()) in match:
            needed.update({call: [match[root]] for call in match.values()})
        elif kinds <= TO_ROOT_KINDS and len(roots) == 1 and (root := roots.pop()) in match:
            needed.update({call: [call] for call in match.values()} | {match[root]: list(match.values())})
    return needed


def _is_history(layout: Layout) -> npt.NDArray[np.bool_]:
    """By activity."""
    return np.concatenate([part.graph.device.is_history for part in layout.parts.values()])


def _without_history(layout: Layout, block: EdgeBlock) -> EdgeBlock:
    """History ends when it was measured, whoever comes when."""
    return block.only(~_is_history(layout)[layout.activity_of_communication[block.item]])


def _block(
    kind: EdgeKind,
    source: npt.ArrayLike,
    target: Nodes,
    base_ns: npt.ArrayLike,
    *,
    carries: Nodes | None = None,
    item: Nodes | None = None,
) -> EdgeBlock:
    size = len(target)
    none = np.full(size, NONE, np.int64)
    return EdgeBlock(
        kind,
        np.broadcast_to(np.asarray(source, np.int64), size),
        target,
        np.broadcast_to(np.asarray(base_ns, np.int64), size),
        none if carries is None else carries,
        none if item is None else item,
    )
