"""Replay model of a job: its graph, the expected transfers, and the steps that predictions are measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyzer.collectives.calls import P2P_KINDS, Matches
from stepscope.analyzer.collectives.costs import expected_link
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.what_if.device_graph import MAX_ACTIVITIES
from stepscope.analyzer.what_if.host_graph import MAX_PIECES, host_graph
from stepscope.analyzer.what_if.job_graph import JobGraph, Nodes, join_ranks
from stepscope.analyzer.what_if.rank_graph import Mask, RankGraph
from stepscope.analyzer.what_if.replay import Scenario, as_measured, measured_steps, replay, step_times
from stepscope.core.hardware.links import expected_seconds
from stepscope.trace.columns import NONE


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
        return self.median_ms(step_times(self.graph, replay(self.graph, scenario), scenario.duration_ns))

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
    """Join the ranks' graphs; None if a rank has none (see `why_not_replayable`).

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
    for number in np.unique(like[is_bound]).tolist():
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
