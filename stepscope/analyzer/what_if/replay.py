"""Replay of a job's dependency graph under a scenario: the times of all nodes, and from them the steps.

Every node starts when the last of its predecessors allows it, so its time is the longest path from the origin. The
graph is acyclic and sorted once (`job_graph`), therefore one pass in that order computes all times: the forward pass
of the critical path method (Kelley and Walker, 1959). Each slot takes the later of two predecessors, which makes the
pass a loop of a few instructions, in C (`native/longest.c`) where that is built, else in Python, ten times slower.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import P2P_KINDS, Matches
from stepscope.analyzer.collectives.costs import expected_link
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.what_if.device_graph import MAX_ACTIVITIES
from stepscope.analyzer.what_if.graph_layout import EdgeKind, Nodes, RankPart
from stepscope.analyzer.what_if.host_graph import MAX_PIECES, host_graph
from stepscope.analyzer.what_if.job_graph import NEVER, JobGraph, end_of_steps, join_ranks
from stepscope.analyzer.what_if.rank_graph import Mask, RankGraph
from stepscope.core.hardware.gpu_catalogue import expected_seconds
from stepscope.core.process import may_accelerate
from stepscope.trace.columns import NONE
from stepscope.trace.rows import distinct


def _import_accelerator() -> ModuleType | None:
    try:
        from stepscope.analyzer.what_if import _longest
    except ImportError:  # no compiler
        return None
    return _longest


ACCELERATOR = _import_accelerator()
Slots = npt.NDArray[np.int64]


def is_accelerated() -> bool:
    """Replay: whether times are computed in C."""
    return ACCELERATOR is not None and may_accelerate()


def longest_times(source: Slots, weight: Nanoseconds, other: Slots, more: Nanoseconds) -> Nanoseconds:
    """Times of all slots of a replay, ns; slot 0 is at 0, every other slot waits for two earlier ones.

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
    """Scenario of a replay: durations of everything in a job; a fix is a changed copy.

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
    """Replay scenario of the measured job."""
    return Scenario(
        graph.host_ns,
        graph.duration_ns,
        graph.transfer_ns,
        np.zeros(graph.layout.num_activities, np.bool_),
        np.ones(graph.layout.num_calls, np.bool_),
    )


def replay_times(graph: JobGraph, scenario: Scenario) -> Nanoseconds:
    """Replayed times of all nodes, ns from the origin; 0 for those after the last boundary."""
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
    """Replayed durations of each rank's whole steps, ns; a single step lasts from its begin to its last end."""
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


def _begin_of_step(graph: JobGraph, part: RankPart, boundary: int, times: Nanoseconds) -> int:
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
    """Measured durations of each rank's whole steps, ns, to compare a replay with."""
    steps = {}
    for rank, part in graph.layout.parts.items():
        device, begins_ns = part.graph.device, part.graph.begins_ns
        at = device.start_ns[part.graph.boundaries]
        begin = at[0] if begins_ns is None else begins_ns
        steps[rank] = np.diff(at) if len(at) > 1 else np.array([device.end_ns[part.graph.last].max() - begin])
    return steps


def _expected_transfers(views: Mapping[int, RankView]) -> Nanoseconds:
    """Expected transfer of each communication, ns, rank by rank; NONE without a size or a known link."""
    known: dict[tuple[tuple[int, ...], str, int | None], int] = {}
    expected = []
    for view in views.values():
        for call in view.calls:
            members = {peer for p in call.peers for peer in (p.source, p.destination)} or set(call.group or ())
            kind = "p2p" if call.kind in P2P_KINDS else call.kind
            key = tuple(sorted(members)), kind, call.num_bytes
            if key not in known:
                known[key] = NONE
                link = expected_link(views, key[0]) if len(members) > 1 and views.keys() >= members else None
                if call.num_bytes is not None and link is not None:
                    known[key] = round(expected_seconds(link, kind, len(members), call.num_bytes) * 1e9)
            expected.append(known[key])
    return np.array(expected, np.int64)


MAX_BEFORE_WINDOW_SHARE = 0.10
"""Largest share of a step lost to what began before the traces; no fix in the replay can recover more."""


@dataclass(frozen=True, slots=True)
class ReplayModel:
    """A job that can be replayed.

    Attributes:
        graph: its dependency graph.
        base: its measured scenario.
        role: by rank, its pipeline stage.
        expected_transfer_ns: by communication, the transfer at its link's expected bandwidth, or NONE if unknown.
        alike: by communication, a number shared by calls of the same group, kind and size.
        reduces: by communication, whether it sums gradients over data-parallel ranks.
        on_device: whether activities ran on a device, or else are operators of the main thread.
        kept, skipped: indices of the whole steps that count, and of the others.
    """

    graph: JobGraph
    base: Scenario
    role: Mapping[int, int]
    expected_transfer_ns: Nanoseconds
    alike: Nodes
    reduces: Mask
    on_device: bool
    kept: Nodes
    skipped: Nodes
    step_numbers: list[int]

    def step_ms(self, scenario: Scenario) -> float:
        """Mean whole step of a scenario, median over ranks, ms."""
        return self.median_ms(step_times(self.graph, replay_times(self.graph, scenario), scenario.duration_ns))

    def measured_ms(self) -> float:
        return self.median_ms(measured_steps(self.graph))

    def median_ms(self, steps_of_rank: Mapping[int, Nanoseconds]) -> float:
        return float(np.median([steps[self.kept].mean() for steps in steps_of_rank.values()])) / 1e6


def build_model(
    views: Mapping[int, RankView],
    matches: Matches,
    offsets_ns: Mapping[int, int],
    role: Mapping[int, int],
    before_window: Sequence[float],
) -> ReplayModel | None:
    """Join the ranks' graphs into a model to replay; None if a rank has none (see `why_not_replayable`).

    Args:
        views: by rank, on the job's clock; their graphs are on each rank's own clock.
        offsets_ns: by rank, its clock minus the job's.
        role: by rank, its pipeline stage.
        before_window: by step, the share of its time attributed to what began before the traces.
    """
    on_device = any(view.on_device for view in views.values())
    graphs = {rank: own for rank, view in views.items() if (own := _graph_of(view, offsets_ns)) is not None}
    if not graphs or len(graphs) < len(views) or any(view.on_device != on_device for view in views.values()):
        return None
    calls = {rank: view.calls for rank, view in views.items()}
    rank_by_rank = [call for own in calls.values() for call in own]
    numbers: dict[tuple[object, ...], int] = {}
    keys = [(call.group, call.kind, call.num_bytes) for call in rank_by_rank]
    like = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    reduces = [call.dimension == "dp" and call.kind in ("all_reduce", "reduce_scatter") for call in rank_by_rank]
    graph = _with_likely_transfers(join_ranks(graphs, calls, matches, offsets_ns), like)
    num_whole = min(len(view.window.whole_step_ns) for view in views.values())
    late = np.array([*before_window, *[0.0] * num_whole])[:num_whole] > MAX_BEFORE_WINDOW_SHARE
    kept = np.flatnonzero(~late) if not late.all() else np.arange(num_whole)
    return ReplayModel(
        graph=graph,
        base=as_measured(graph),
        role=role,
        expected_transfer_ns=_expected_transfers(views),
        alike=like,
        reduces=np.array(reduces, np.bool_),
        on_device=on_device,
        kept=kept,
        skipped=np.delete(np.arange(num_whole), kept),
        step_numbers=next(iter(views.values())).window.index.tolist(),
    )


def _with_likely_transfers(graph: JobGraph, like: Nodes) -> JobGraph:
    """Replace transfers that are only known to be at most so long by those of like calls, or else by the shortest."""
    asked = [p.first_activity + p.graph.ends_when_asked for p in graph.layout.parts.values()]
    is_bound = np.isin(graph.layout.activity_of_communication, np.concatenate(asked))
    transfer = graph.transfer_ns.copy()
    for number in distinct(like[is_bound]).tolist():
        same, known = like == number, (like == number) & ~is_bound
        usual = np.median(transfer[known]) if known.any() else transfer[same].min()
        transfer[same & is_bound] = np.minimum(transfer[same & is_bound], int(usual))
    return replace(graph, transfer_ns=transfer)


def _graph_of(view: RankView, offsets_ns: Mapping[int, int]) -> RankGraph | None:
    """Graph of a rank, on the rank's own clock."""
    if view.timeline is None:
        return view.graph
    offset = offsets_ns.get(view.rank, 0)
    window = replace(
        view.window,
        start_ns=view.window.start_ns + offset,
        end_ns=view.window.end_ns + offset,
        boundary_ns=view.window.boundary_ns + offset,
    )
    calls = [
        replace(
            call,
            start_ns=call.start_ns + offset,
            end_ns=call.end_ns + offset,
            asked_ns=None if call.asked_ns is None else call.asked_ns + offset,
        )
        for call in view.calls
    ]
    return host_graph(view.timeline, window, calls)


def why_not_replayable(views: Mapping[int, RankView]) -> str:
    """The first reason why `build_model` cannot replay these ranks."""
    for rank, view in views.items():
        if view.on_device != next(iter(views.values())).on_device:
            return f"rank {rank} is traced {'on' if view.on_device else 'without'} a device, others are not"
        if view.graph is not None or view.timeline is not None:
            continue
        if not view.facts.step_indices:
            return f"rank {rank} has no profiled steps"
        if view.on_device:
            return f"rank {rank} has device activities without their launches, or more than {MAX_ACTIVITIES:,}"
        return f"rank {rank} has more than {MAX_PIECES:,} operators"
    return "no rank can be replayed"
