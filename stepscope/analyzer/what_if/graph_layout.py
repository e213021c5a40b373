"""Nodes and edges of a job's dependency graph: how they are numbered, and what an edge carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.what_if.rank_graph import Mask, RankGraph
from stepscope.trace.columns import NONE, IntColumn

Nodes = npt.NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound="np.generic[Any]")

ORIGIN = 0
"""Node at the beginning of time."""


class EdgeKind(IntEnum):
    """Kind of a dependency edge, which decides how a scenario changes its weight."""

    FIXED = 0
    """from the origin: history, at its measured time"""
    HOST = 1
    """from the return of one call to the return of the next"""
    ORDER = 2
    """between calls of one thread"""
    LAUNCH = 3
    STREAM = 4
    EVENT = 5
    BLOCKING = 6
    QUEUE = 7
    TRANSFER = 8
    ARRIVAL = 9
    """of a member of a large collective, at the node that stands for all of them"""


@dataclass(frozen=True, slots=True)
class EdgeBlock:
    """Dependency edges of one kind, parallel arrays.

    Attributes:
        source, target: nodes.
        base_ns: weight without the duration of the activity in `carries`.
        carries: activity whose duration is part of the weight, or NONE.
        item: index into the scenario's array that changes the weight: the call (HOST, BLOCKING), the communication
            (TRANSFER), the following activity (STREAM); else NONE.
    """

    kind: EdgeKind
    source: IntColumn
    target: IntColumn
    base_ns: Nanoseconds
    carries: IntColumn
    item: IntColumn

    def __len__(self) -> int:
        return len(self.source)

    def only(self, kept: Mask) -> EdgeBlock:
        """The edges for which `kept` is true."""
        if kept.all():
            return self
        columns = (self.source, self.target, self.base_ns, self.carries, self.item)
        return EdgeBlock(self.kind, *(column[kept] for column in columns))


class RankPart(NamedTuple):
    """One rank in the job graph's arrays: where its items begin, and its clock minus the job's."""

    rank: int
    graph: RankGraph
    first_call: int
    first_activity: int
    first_communication: int
    offset_ns: int

    @property
    def calls(self) -> slice:
        """Its host calls among those of all ranks."""
        return slice(self.first_call, self.first_call + len(self.graph.host))

    @property
    def activities(self) -> slice:
        return slice(self.first_activity, self.first_activity + len(self.graph.device))

    @property
    def communications(self) -> slice:
        count = int(np.count_nonzero(self.graph.device.call != NONE))
        return slice(self.first_communication, self.first_communication + count)


class GraphLayout(NamedTuple):
    """Numbering of the items of all ranks in a job graph, one rank after another.

    Nodes are the origin, then calls, then starts of activities, then ends of communications, then the last arrivals of
    large collectives.
    """

    parts: dict[int, RankPart]
    num_calls: int
    num_activities: int
    activity_of_communication: Nodes
    communication_of_activity: Nodes
    num_arrivals: int = 0

    @property
    def num_nodes(self) -> int:
        return int(self.arrival_nodes(self.num_arrivals))

    def joined(self, column: Callable[[RankGraph], npt.NDArray[_Scalar]]) -> npt.NDArray[_Scalar]:
        """A column of all ranks' graphs, in the numbering of the items."""
        return np.concatenate([column(part.graph) for part in self.parts.values()])

    def call_nodes(self, calls: npt.ArrayLike) -> Nodes:
        return np.asarray(calls, np.int64) + 1

    def start_nodes(self, activities: npt.ArrayLike) -> Nodes:
        return np.asarray(activities, np.int64) + 1 + self.num_calls

    def end_nodes(self, communications: npt.ArrayLike) -> Nodes:
        return np.asarray(communications, np.int64) + 1 + self.num_calls + self.num_activities

    def arrival_nodes(self, arrivals: npt.ArrayLike) -> Nodes:
        return self.end_nodes(arrivals) + len(self.activity_of_communication)


def edge_block(
    kind: EdgeKind,
    source: npt.ArrayLike,
    target: Nodes,
    base_ns: npt.ArrayLike,
    *,
    carries: Nodes | None = None,
    item: Nodes | None = None,
) -> EdgeBlock:
    """Dependency edges of one kind; a scalar stands for all of them."""
    size = len(target)
    none = np.broadcast_to(np.int32(NONE), size)

    def column(values: npt.ArrayLike) -> IntColumn:
        return np.broadcast_to(np.asarray(values, np.int32), size)  # a job has fewer than two billion nodes

    return EdgeBlock(
        kind,
        column(source),
        column(target),
        np.broadcast_to(np.asarray(base_ns, np.int64), size),
        none if carries is None else column(carries),
        none if item is None else column(item),
    )


def joined_blocks(blocks: Sequence[EdgeBlock]) -> EdgeBlock:
    """Dependency edges of all these blocks, which are of one kind."""
    if len(blocks) == 1:
        return blocks[0]
    columns = (
        np.concatenate([getattr(block, name) for block in blocks])
        for name in ("source", "target", "base_ns", "carries", "item")
    )
    return EdgeBlock(blocks[0].kind, *columns)
