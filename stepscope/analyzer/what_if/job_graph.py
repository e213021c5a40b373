"""Dependency graph of a job: the edges of all ranks, and its nodes in topological order.

Every edge was satisfied when it was measured, so the measured order of the nodes is a topological order: they are
sorted once, and an edge that points backwards in it (clock error, rounding) is dropped. A node with more than two
predecessors is preceded by slots that each take the later of two, so that a replay is one short loop (`replay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import Call, Matches
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.what_if.graph_layout import (
    ORIGIN,
    EdgeBlock,
    EdgeKind,
    GraphLayout,
    Nodes,
    RankPart,
    edge_block,
    joined_blocks,
)
from stepscope.analyzer.what_if.rank_graph import Edges, RankGraph
from stepscope.analyzer.what_if.transfer_edges import transfer_edges
from stepscope.trace.columns import NONE
from stepscope.trace.rows import sorted_order


def _lay_out(graphs: Mapping[int, RankGraph], offsets_ns: Mapping[int, int]) -> GraphLayout:
    """Number the items of all ranks."""
    parts: dict[int, RankPart] = {}
    calls = activities = communications = 0
    of_communication, of_activity = [], []
    for rank, graph in graphs.items():
        parts[rank] = RankPart(rank, graph, calls, activities, communications, offsets_ns.get(rank, 0))
        place = np.flatnonzero(graph.device.call != NONE)
        place = place[np.argsort(graph.device.call[place])]
        numbers = np.full(len(graph.device), NONE, np.int64)
        numbers[place] = communications + np.arange(len(place))
        of_communication.append(place + activities)
        of_activity.append(numbers)
        calls += len(graph.host)
        activities += len(graph.device)
        communications += len(place)
    return GraphLayout(parts, calls, activities, np.concatenate(of_communication), np.concatenate(of_activity))


def _rank_blocks(layout: GraphLayout, part: RankPart, origin_ns: int) -> list[EdgeBlock]:
    """Edges within one rank; times count from the origin."""
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
        edge_block(EdgeKind.HOST, before_call, calls, opens, item=numbers),
        edge_block(EdgeKind.ORDER, calls[host.follows_own[own_order]], calls[own_order], 0),
        edge_block(EdgeKind.FIXED, ORIGIN, starts[history], device.start_ns[history] - shift),
        edge_block(EdgeKind.FIXED, ORIGIN, ends, device.end_ns[communicates] - shift),
        edge_block(EdgeKind.LAUNCH, calls[device.launched_by[launched]], starts[launched], graph.launch_ns),
        _after(layout, part, EdgeKind.STREAM, graph.streams, starts, graph.stream_gap_ns),
        _after(layout, part, EdgeKind.EVENT, graph.events, starts, graph.event_ns),
        _after(layout, part, EdgeKind.BLOCKING, graph.blocking, calls, graph.blocking_ns),
        edge_block(EdgeKind.QUEUE, starts[graph.queue.source], calls[graph.queue.target], 0),
    ]


def _after(
    layout: GraphLayout, part: RankPart, kind: EdgeKind, edges: Edges, targets: Nodes, base_ns: Nanoseconds | int
) -> EdgeBlock:
    """Edges from the end of an activity: the end node of a communication, else the start node plus the duration.

    Activities that are history keep their measured time, so edges to them are left out.
    """
    is_blocking = kind is EdgeKind.BLOCKING  # the target is a call
    kept = np.full(len(edges), True) if is_blocking else ~part.graph.device.is_history[edges.target]
    edges = edges.only(kept)
    base = base_ns if isinstance(base_ns, int) else base_ns[kept]
    source = part.first_activity + edges.source
    communication = layout.communication_of_activity[source]
    is_communication = communication != NONE
    nodes = np.where(is_communication, layout.end_nodes(communication), layout.start_nodes(source))
    carries = np.where(is_communication, NONE, source)
    item = (part.first_call if is_blocking else part.first_activity) + edges.target
    return edge_block(kind, nodes, targets[edges.target], base, carries=carries, item=item)


NEVER = -(2**60)
"""Weight of a disabled edge."""


@dataclass(frozen=True, slots=True)
class JobGraph:
    """Dependency graph of a job, ready to be replayed.

    Attributes:
        layout: numbering of the items.
        edges: all enabled edges, kind by kind.
        weight_place: by edge of `edges`, in order, the index of its weight in the flat array of 2 x slots.
        first_source, second_source: by slot, the slots it waits for (slot 0 is the origin).
        slot_of_node: slot of each node, or NONE for nodes after the last boundary.
        origin_ns: zero of all times, on the job's clock.
        host_ns: shape (calls, HOST_WORK).
        num_unmatched: communications without a partner.
    """

    layout: GraphLayout
    edges: tuple[EdgeBlock, ...]
    weight_place: Nodes
    first_source: Nodes
    second_source: Nodes
    slot_of_node: Nodes
    origin_ns: int
    host_ns: npt.NDArray[np.int64]
    duration_ns: Nanoseconds
    transfer_ns: Nanoseconds
    num_unmatched: int

    @property
    def num_slots(self) -> int:
        return len(self.first_source)


def join_ranks(
    graphs: Mapping[int, RankGraph],
    calls_of_rank: Mapping[int, Sequence[Call]],
    matches: Matches,
    offsets_ns: Mapping[int, int],
) -> JobGraph:
    """Join the dependency graphs of all ranks.

    Graphs are on each rank's own clock, which is `offsets_ns` ahead of the job's; calls are on the job's clock.
    """
    layout = _lay_out(graphs, offsets_ns)
    parts = layout.parts.values()
    origin = min(min(p.graph.host.opens_ns, int(p.graph.device.start_ns.min())) - p.offset_ns for p in parts)
    starts = np.concatenate([p.graph.device.start_ns - p.offset_ns for p in parts]) - origin
    ends = np.concatenate([p.graph.device.end_ns - p.offset_ns for p in parts]) - origin
    communication = layout.activity_of_communication
    last = np.maximum(ends[communication], starts[communication] + 1)  # ends no earlier than just after its start
    transfers = transfer_edges(layout, calls_of_rank, matches, starts, last)
    layout = layout._replace(num_arrivals=len(transfers.key))
    of_ranks = zip(*(_rank_blocks(layout, part, origin) for part in parts), strict=True)
    blocks = [*map(joined_blocks, of_ranks), transfers.edges, transfers.arrivals]
    returned = np.concatenate([p.graph.host.key_ns - p.offset_ns for p in parts]) - origin
    key = np.concatenate(([NEVER], returned, starts, last, transfers.key))
    place = np.empty(layout.num_nodes, np.int64)
    # at the same instant calls return, then communications end, then activities start, then the last has arrived
    phase = np.repeat(
        [0, 2, 1, 3], [1 + layout.num_calls, layout.num_activities, len(communication), layout.num_arrivals]
    )
    order = sorted_order(key, phase)
    place[order] = np.arange(layout.num_nodes)
    cut = max(int(place[end_of_steps(layout, rank)].max()) for rank in layout.parts)
    edges = [block.only((place[block.source] < place[block.target]) & (place[block.target] <= cut)) for block in blocks]
    weight_place, first, second, slot_of_node = _slots(edges, place, order[: cut + 1])
    return JobGraph(
        layout=layout,
        edges=tuple(edges),
        weight_place=weight_place,
        first_source=first,
        second_source=second,
        slot_of_node=slot_of_node,
        origin_ns=origin,
        host_ns=layout.joined(lambda graph: graph.host.work_ns),
        duration_ns=layout.joined(lambda graph: graph.device.duration_ns),
        transfer_ns=transfers.transfer_ns,
        num_unmatched=transfers.num_unmatched,
    )


def end_of_steps(layout: GraphLayout, rank: int) -> Nodes:
    """Boundary nodes of a rank in the job graph; with one boundary also the ends (or starts) of its last activities."""
    part = layout.parts[rank]
    boundaries = layout.start_nodes(part.first_activity + part.graph.boundaries)
    if len(boundaries) > 1:
        return boundaries
    last = part.first_activity + part.graph.last
    communication = layout.communication_of_activity[last]
    ends = np.where(communication >= 0, layout.end_nodes(communication), layout.start_nodes(last))
    return np.concatenate((boundaries, ends))


def _slots(edges: Sequence[EdgeBlock], place: Nodes, order: Nodes) -> tuple[Nodes, Nodes, Nodes, Nodes]:
    """Assign slots: each node has one less than predecessors (at least one), each edge one side of a slot."""
    source = np.concatenate([place[block.source] for block in edges])
    target = np.concatenate([place[block.target] for block in edges])
    degree = np.bincount(target, minlength=len(order))
    num_slots = np.maximum(degree - 1, 1)
    first_slot = np.cumsum(num_slots) - num_slots
    last_slot = first_slot + num_slots - 1
    by_target = np.argsort(target, kind="stable")
    opens = np.cumsum(degree) - degree
    nth = np.arange(len(target)) - opens[target[by_target]]
    # the first two edges of a node share its first slot; each further one takes the second side of its own slot
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
