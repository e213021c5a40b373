"""Replay of a job's dependency graph under a scenario: the times of all nodes, and from them the steps.

Every node starts when the last of its predecessors allows it, so its time is the longest path from the origin. The
graph is acyclic and sorted once (`job_graph`), therefore one pass in that order computes all times: the forward pass
of the critical path method (Kelley and Walker, 1959). Each slot takes the later of two predecessors, which makes the
pass a loop of a few instructions, in C (`native/longest.c`) where that is built, else in Python, ten times slower.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.what_if.job_graph import NEVER, EdgeKind, JobGraph, Part, end_of_steps
from stepscope.analyzer.what_if.rank_graph import Mask
from stepscope.core.process import may_accelerate
from stepscope.trace.columns import NONE


def _import_accelerator() -> ModuleType | None:
    try:
        from stepscope.analyzer.what_if import _longest
    except ImportError:  # no compiler
        return None
    return _longest


ACCELERATOR = _import_accelerator()
Slots = npt.NDArray[np.int64]


def longest_times(source: Slots, weight: Nanoseconds, other: Slots, more: Nanoseconds) -> Nanoseconds:
    """Times of all slots, ns; slot 0 is at 0, every other slot waits for two earlier ones.

    Args:
        source, weight: by slot, its first predecessor and the weight of that edge, ns.
        other, more: the same for its second predecessor.
    """
    if ACCELERATOR is None or not may_accelerate():
        return longest_times_in_python(source, weight, other, more)
    columns = (np.ascontiguousarray(column, np.int64) for column in (source, weight, other, more))
    return np.frombuffer(ACCELERATOR.longest(*columns), np.int64)


def longest_times_in_python(source: Slots, weight: Nanoseconds, other: Slots, more: Nanoseconds) -> Nanoseconds:
    """`longest_times` without the accelerator."""
    times = [0]
    append = times.append
    # arrays yield one number at a time; as lists, four of a million take 140 MB
    steps = zip(*(array("q", column.tobytes()) for column in (source, weight, other, more)), strict=True)
    next(steps)
    for first, first_takes, second, second_takes in steps:
        a = times[first] + first_takes
        b = times[second] + second_takes
        append(a if a > b else b)
    return np.array(times, np.int64)


_CARRYING = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.BLOCKING)
"""Kinds of edges from the end of an activity, whose weight includes its duration."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Durations of everything in a job; a fix is a changed copy.

    Attributes:
        host_ns: by call, host time before and in it, shape (calls, HOST_WORK).
        duration_ns: by activity.
        transfer_ns: by communication.
        is_free: by activity, whether it starts without a gap after its predecessor on the stream.
        blocks: by call, whether it waits for device work.
    """

    host_ns: npt.NDArray[np.int64]
    duration_ns: Nanoseconds
    transfer_ns: Nanoseconds
    is_free: Mask
    blocks: Mask

    def scaled_host(self, columns: list[int], factor: float) -> Scenario:
        """The scenario with the host time of these columns multiplied by `factor`."""
        host = self.host_ns.copy()
        host[:, columns] = (host[:, columns] * factor).astype(np.int64)
        return replace(self, host_ns=host)


def as_measured(graph: JobGraph) -> Scenario:
    """The scenario of the measured job."""
    return Scenario(
        graph.host_ns,
        graph.duration_ns,
        graph.transfer_ns,
        np.zeros(graph.layout.num_activities, np.bool_),
        np.ones(graph.layout.num_calls, np.bool_),
    )


def replay(graph: JobGraph, scenario: Scenario) -> Nanoseconds:
    """Times of all nodes, ns from the origin; 0 for those after the last boundary."""
    flat = np.full(2 * graph.num_slots, NEVER, np.int64)
    flat[: graph.num_slots][graph.first_source > 0] = 0
    flat[0] = 0  # the origin
    flat[graph.weight_place] = _weights(graph, scenario)
    first, second = flat[: graph.num_slots], flat[graph.num_slots :]
    result = longest_times(graph.first_source, first, graph.second_source, second)
    return np.where(graph.slot_of_node == NONE, 0, result[graph.slot_of_node])


def _weights(graph: JobGraph, scenario: Scenario) -> Nanoseconds:
    """Weight of each edge in this scenario, ns."""
    durations = np.concatenate((scenario.duration_ns, [0]))  # NONE indexes the last
    weights = []
    for block in graph.edges:
        weight = block.base_ns
        if block.kind in _CARRYING:
            carried = durations[block.carries]
            weight = weight + carried
        if block.kind is EdgeKind.HOST:
            weight = weight + _row_sums(scenario.host_ns)[block.item]
        elif block.kind is EdgeKind.TRANSFER:
            weight = weight + scenario.transfer_ns[block.item]
        elif block.kind is EdgeKind.STREAM and scenario.is_free.any():
            weight = np.where(scenario.is_free[block.item], carried, weight)
        elif block.kind is EdgeKind.BLOCKING:
            weight = np.where(scenario.blocks[block.item], weight, NEVER)
        weights.append(weight)
    return np.concatenate(weights)


def _row_sums(table: npt.NDArray[np.int64]) -> Nanoseconds:
    """Row sums, column by column: numpy sums short rows slowly."""
    total = table[:, 0].copy()
    for column in range(1, table.shape[1]):
        total += table[:, column]
    return total


def step_times(graph: JobGraph, times: Nanoseconds, duration_ns: Nanoseconds) -> dict[int, Nanoseconds]:
    """Durations of each rank's whole steps, ns; a single step lasts from its begin to its last end."""
    steps = {}
    for rank, part in graph.layout.parts.items():
        nodes = end_of_steps(graph.layout, rank)
        at = times[nodes]
        if len(part.graph.boundaries) > 1:
            steps[rank] = np.diff(at)
            continue
        last = part.first_activity + part.graph.last
        communicates = graph.layout.communication_of_activity[last] != NONE
        ends = at[1:] + np.where(communicates, 0, duration_ns[last])
        steps[rank] = np.array([ends.max() - _begin_of_step(graph, part, at[0], times)])
    return steps


def _begin_of_step(graph: JobGraph, part: Part, boundary: int, times: Nanoseconds) -> int:
    """Begin of a rank's single step, ns from the origin: where the rank says, moved with the host call before it."""
    begins_ns = part.graph.begins_ns
    if begins_ns is None:
        return boundary
    shift = part.offset_ns + graph.origin_ns
    returned = part.graph.host.key_ns
    before = np.flatnonzero(returned <= begins_ns)
    if not len(before):
        return begins_ns - shift
    call = before[returned[before].argmax()]
    return int(times[graph.layout.call_nodes(part.first_call + call)]) + begins_ns - int(returned[call])


def measured_steps(graph: JobGraph) -> dict[int, Nanoseconds]:
    """Measured durations of each rank's whole steps, ns."""
    steps = {}
    for rank, part in graph.layout.parts.items():
        device, begins_ns = part.graph.device, part.graph.begins_ns
        at = device.start_ns[part.graph.boundaries]
        begin = at[0] if begins_ns is None else begins_ns
        steps[rank] = np.diff(at) if len(at) > 1 else np.array([device.end_ns[part.graph.last].max() - begin])
    return steps
