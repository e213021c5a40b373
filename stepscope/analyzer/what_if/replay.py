"""When would everything have happened? One pass over the graph in its order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.what_if.edge_blocks import EdgeKind
from stepscope.analyzer.what_if.job_graph import NEVER, JobGraph, end_of_steps
from stepscope.analyzer.what_if.longest import longest_times
from stepscope.trace.columns import NONE

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
