"""How do the ranks' graphs become one that can be replayed? Nodes in topological order, two predecessors each.

Every edge held when it was measured, so the measured order of the nodes is a topological order: they are sorted once,
and an edge that points backwards in it (clocks, rounding) is refuted and left out. A node that waits for more than two
others is preceded by slots that only take the later of two, so that a replay is one short loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.matching import Matches
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.ordering import order_of
from stepscope.analyzer.what_if.edge_blocks import EdgeBlock, Layout, Nodes, lay_out, rank_blocks, transfer_block
from stepscope.analyzer.what_if.rank_graph import RankGraph

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
