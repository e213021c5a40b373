"""Replay: when everything would have happened, in one pass over the graph in its order.

Longest: With the optional accelerator in C (`native/longest.c`) where it is built, else in Python, ten times as long.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.what_if.job_graph import NEVER, EdgeKind, JobGraph, end_of_steps
from stepscope.core.process import may_accelerate
from stepscope.trace.columns import NONE


def _find_accelerator() -> ModuleType | None:
    try:
        from stepscope.analyzer.what_if import _longest
    except ImportError:  # no compiler
        return None
    return _longest


ACCELERATOR = _find_accelerator()
Slots = npt.NDArray[np.int64]


def longest_times(source: Slots, weight: Nanoseconds, other: Slots, more: Nanoseconds) -> Nanoseconds:
    """Times of all slots; slot 0 is at 0, every other one waits for two earlier ones.

    Args:
        source, weight: by slot, the slot its first way comes from and what that way takes; ns.
        other, more: the same of the second way.
    """
    if ACCELERATOR is None or not may_accelerate():
        return longest_times_in_python(source, weight, other, more)
    ways = (np.ascontiguousarray(column, np.int64) for column in (source, weight, other, more))
    return np.frombuffer(ACCELERATOR.longest(*ways), np.int64)


def longest_times_in_python(source: Slots, weight: Nanoseconds, other: Slots, more: Nanoseconds) -> Nanoseconds:
    """The same without the accelerator."""
    times = [0]
    append = times.append
    # arrays hand out their numbers one at a time: as lists, four of a million take 140 MB
    steps = zip(*(array("q", column.tobytes()) for column in (source, weight, other, more)), strict=True)
    next(steps)
    for first, first_takes, second, second_takes in steps:
        a = times[first] + first_takes
        b = times[second] + second_takes
        append(a if a > b else b)
    return np.array(times, np.int64)


_CARRYING = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.BLOCKING)
"""Edges from the end of an activity, which carry its duration."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What everything takes; a fix is a changed copy.

    Attributes:
        host_ns: by call, host time before and in it, shape (calls, HOST_WORK).
        duration_ns: by activity.
        transfer_ns: by communication.
        is_free: by activity, whether it leaves its stream at once (no gap before it).
        blocks: by call, whether it waits for device work.
    """

    host_ns: npt.NDArray[np.int64]
    duration_ns: Nanoseconds
    transfer_ns: Nanoseconds
    is_free: npt.NDArray[np.bool_]
    blocks: npt.NDArray[np.bool_]

    def scaled_host(self, columns: list[int], factor: float) -> Scenario:
        """The same with host time of these columns multiplied."""
        host = self.host_ns.copy()
        host[:, columns] = (host[:, columns] * factor).astype(np.int64)
        return replace(self, host_ns=host)


def as_measured(graph: JobGraph) -> Scenario:
    """Nothing changed."""
    return Scenario(
        graph.host_ns,
        graph.duration_ns,
        graph.transfer_ns,
        np.zeros(graph.layout.num_activities, np.bool_),
        np.ones(graph.layout.num_calls, np.bool_),
    )


def replay(graph: JobGraph, scenario: Scenario) -> Nanoseconds:
    """Times of all nodes, ns from the origin; of those that come after the last boundary, 0."""
    flat = np.full(2 * graph.num_slots, NEVER, np.int64)
    flat[: graph.num_slots][graph.first_source > 0] = 0
    flat[0] = 0  # the origin
    flat[graph.weight_place] = _weights(graph, scenario)
    first, second = flat[: graph.num_slots], flat[graph.num_slots :]
    result = longest_times(graph.first_source, first, graph.second_source, second)
    return np.where(graph.slot_of_node == NONE, 0, result[graph.slot_of_node])


def _weights(graph: JobGraph, scenario: Scenario) -> Nanoseconds:
    """By edge, what it takes in this scenario."""
    durations = np.concatenate((scenario.duration_ns, [0]))  # NONE meets the last
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
    """Column by column: numpy adds up short rows slowly."""
    total = table[:, 0].copy()
    for column in range(1, table.shape[1]):
        total += table[:, column]
    return total


def step_times(graph: JobGraph, times: Nanoseconds, duration_ns: Nanoseconds) -> dict[int, Nanoseconds]:
    """By rank, the lengths of its whole steps; with a single step, from its boundary to its last end."""
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
        steps[rank] = np.array([ends.max() - at[0]])
    return steps


def measured_steps(graph: JobGraph) -> dict[int, Nanoseconds]:
    """By rank, the lengths of its whole steps as measured."""
    steps = {}
    for rank, part in graph.layout.parts.items():
        device, boundaries = part.graph.device, part.graph.boundaries
        at = device.start_ns[boundaries]
        steps[rank] = np.diff(at) if len(at) > 1 else np.array([device.end_ns[part.graph.last].max() - at[0]])
    return steps
