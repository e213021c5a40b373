"""Graph of a job: the edges of all ranks, and its nodes in topological order.

Job graph: Every edge held when it was measured, so the measured order of the nodes is a topological order: they are
sorted once, and an edge that points backwards in it (clocks, rounding) is refuted and left out. A node that waits for
more than two others is preceded by slots that only take the later of two, so that a replay is one short loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.calls import FROM_ROOT_KINDS, SYNCHRONIZING_KINDS, TO_ROOT_KINDS, Call
from stepscope.analyzer.alignment.matching import CallId, Matches
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.rows import order_of
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


NEVER = -(2**60)
"""Weight of an edge that does not count."""


@dataclass(frozen=True, slots=True)
class JobGraph:
    """All ranks' nodes and edges, in order.

    Attributes:
        layout: how items are numbered.
        edges: all edges that count, kind by kind.
        weight_place: by edge of `edges`, in order, the index of its weight in the flat array of 2 x slots.
        first_source, second_source: by slot, the slots it waits for (slot 0 is the origin).
        slot_of_node: slot of each node, or NONE for what comes after the last boundary.
        origin_ns: what times count from, on the job's clock.
        host_ns: shape (calls, HOST_WORK).
        duration_ns: by activity.
        transfer_ns: by communication.
        num_alone: communications without a partner.
    """

    layout: Layout
    edges: tuple[EdgeBlock, ...]
    weight_place: Nodes
    first_source: Nodes
    second_source: Nodes
    slot_of_node: Nodes
    origin_ns: int
    host_ns: npt.NDArray[np.int64]
    duration_ns: Nanoseconds
    transfer_ns: Nanoseconds
    num_alone: int

    @property
    def num_slots(self) -> int:
        return len(self.first_source)


def join_ranks(
    graphs: Mapping[int, RankGraph],
    calls_of_rank: Mapping[int, Sequence[Call]],
    matches: Matches,
    offsets_ns: Mapping[int, int],
) -> JobGraph:
    """One graph of all ranks.

    Args:
        graphs: by rank, on the rank's own clock.
        calls_of_rank: communication calls on the job's clock.
        matches: which of them belong together.
        offsets_ns: by rank, its clock less the job's.
    """
    layout = lay_out(graphs, offsets_ns)
    parts = layout.parts.values()
    origin = min(min(p.graph.host.opens_ns, int(p.graph.device.start_ns.min())) - p.offset_ns for p in parts)
    transfers, transfer_ns, alone = transfer_block(layout, calls_of_rank, matches)
    blocks = [block for part in parts for block in rank_blocks(layout, part, origin)] + [transfers]
    key = _keys(layout, origin)
    place = np.empty(layout.num_nodes, np.int64)
    order = order_of(key, _phase(layout))
    place[order] = np.arange(layout.num_nodes)
    cut = place[_boundary_nodes(layout)].max()
    edges = _in_order(blocks, place, cut)
    weight_place, first, second, slot_of_node = _slots(edges, place, order[: cut + 1])
    return JobGraph(
        layout=layout,
        edges=tuple(edges),
        weight_place=weight_place,
        first_source=first,
        second_source=second,
        slot_of_node=slot_of_node,
        origin_ns=origin,
        host_ns=np.concatenate([p.graph.host.work_ns for p in parts]),
        duration_ns=np.concatenate([p.graph.device.duration_ns for p in parts]),
        transfer_ns=transfer_ns,
        num_alone=alone,
    )


def _keys(layout: Layout, origin_ns: int) -> Nanoseconds:
    """When each node was measured; the origin first. A communication ends no earlier than just after its start."""
    parts = layout.parts.values()
    calls = np.concatenate([p.graph.host.key_ns - p.offset_ns for p in parts])
    starts = np.concatenate([p.graph.device.start_ns - p.offset_ns for p in parts])
    ends = np.concatenate([p.graph.device.end_ns - p.offset_ns for p in parts])
    communication = layout.activity_of_communication
    last = np.maximum(ends[communication], starts[communication] + 1)
    return np.concatenate(([NEVER], np.concatenate((calls, starts, last)) - origin_ns))


def _phase(layout: Layout) -> npt.NDArray[np.int8]:
    """At the same instant calls return first, then communications end, then activities start."""
    phase = np.zeros(layout.num_nodes, np.int8)
    phase[layout.end_nodes(np.arange(len(layout.activity_of_communication)))] = 1
    phase[layout.start_nodes(np.arange(layout.num_activities))] = 2
    return phase


def _boundary_nodes(layout: Layout) -> Nodes:
    """Every node that a step is measured by."""
    return np.concatenate([end_of_steps(layout, rank) for rank in layout.parts])


def end_of_steps(layout: Layout, rank: int) -> Nodes:
    """A rank's boundaries; with a single one also its last activities' ends (starts, of what is no communication)."""
    part = layout.parts[rank]
    boundaries = layout.start_nodes(part.first_activity + part.graph.boundaries)
    if len(boundaries) > 1:
        return boundaries
    last = part.first_activity + part.graph.last
    communication = layout.communication_of_activity[last]
    ends = np.where(communication >= 0, layout.end_nodes(communication), layout.start_nodes(last))
    return np.concatenate((boundaries, ends))


def _in_order(blocks: Sequence[EdgeBlock], place: Nodes, cut: int) -> list[EdgeBlock]:
    """The edges that point forwards and end no later than the cut."""
    return [block.only((place[block.source] < place[block.target]) & (place[block.target] <= cut)) for block in blocks]


def _slots(edges: Sequence[EdgeBlock], place: Nodes, order: Nodes) -> tuple[Nodes, Nodes, Nodes, Nodes]:
    """Give each node as many slots as it has predecessors less one, and each edge a side of a slot."""
    source = np.concatenate([place[block.source] for block in edges])
    target = np.concatenate([place[block.target] for block in edges])
    degree = np.bincount(target, minlength=len(order))
    num_slots = np.maximum(degree - 1, 1)
    first_slot = np.cumsum(num_slots) - num_slots
    last_slot = first_slot + num_slots - 1
    by_target = np.argsort(target, kind="stable")
    opens = np.cumsum(degree) - degree
    nth = np.arange(len(target)) - opens[target[by_target]]
    # the first two edges of a node share its first slot; each further one has the second side of a slot of its own
    slot = first_slot[target[by_target]] + np.maximum(nth - 1, 0)
    side = (nth > 0).astype(np.int64)
    sources = np.zeros((2, int(num_slots.sum())), np.int64)
    chained = np.ones(sources.shape[1], np.bool_)
    chained[first_slot] = False
    sources[0, chained] = np.flatnonzero(chained) - 1
    sources[side, slot] = last_slot[source[by_target]]
    weight_place = np.empty(len(target), np.int64)
    weight_place[by_target] = side * sources.shape[1] + slot
    slot_of_node = np.full(len(place), -1, np.int64)
    slot_of_node[order] = last_slot
    return weight_place, sources[0], sources[1], slot_of_node
