"""Normalization of all ranks' views: common step numbers, one name per machine, one clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepscope.analyzer.collectives.calls import Call, Matches
from stepscope.analyzer.collectives.clocks import Clocks, machine_of_rank
from stepscope.analyzer.ledger.segments import Segments
from stepscope.analyzer.rank_view import RankView
from stepscope.core.vocabulary import Notice
from stepscope.trace.columns import IntColumn


def on_job_clock(view: RankView, clocks: Clocks) -> RankView:
    """Collectives: a rank's view with all its times on the job's clock, which collectives align."""
    rank = view.rank
    if not clocks.offset_ns[rank] and not clocks.drift.get(rank):
        return view
    segments, window, calls = view.segments, view.window, view.calls
    edges = clocks.to_job(rank, [window.start_ns, window.end_ns])
    start = clocks.to_job(rank, [call.start_ns for call in calls]).tolist()
    end = clocks.to_job(rank, [call.end_ns for call in calls]).tolist()
    awaited = [None if c.awaited_ns is None else int(clocks.to_job(rank, c.awaited_ns)) for c in calls]
    batches = view.micro_batches
    begun = clocks.to_job(rank, [batch.start_ns for batch in batches]).tolist()
    done = clocks.to_job(rank, [batch.end_ns for batch in batches]).tolist()
    return replace(
        view,
        window=replace(
            window,
            start_ns=int(edges[0]),
            end_ns=int(edges[1]),
            boundary_ns=clocks.to_job(rank, window.boundary_ns),
        ),
        segments=Segments(
            clocks.to_job(rank, segments.start_ns),
            clocks.to_job(rank, segments.end_ns),
            segments.category,
            segments.cause,
        ),
        calls=[
            replace(call, start_ns=s, end_ns=e, awaited_ns=a)
            for call, s, e, a in zip(calls, start, end, awaited, strict=True)
        ],
        micro_batches=[replace(batch, start_ns=s, end_ns=e) for batch, s, e in zip(batches, begun, done, strict=True)],
    )


def on_machines(
    views: Mapping[int, RankView], calls_of_rank: Mapping[int, list[Call]], matches: Matches
) -> dict[int, RankView]:
    """Collectives: views with one host name per machine, as the ends of calls show; a warning where it differs.

    CPU jobs are left as they are, as the ends of their collectives spread too much, and so are traces without steps:
    calls counted from the start of the file may all be matched one call too early, which looks like another clock.
    """
    if not all(view.on_device and view.facts.step_indices for view in views.values()):
        return dict(views)
    hosts = {rank: view.header.host_name for rank, view in views.items()}
    half_a_step = min(float(np.median(view.window.whole_step_ns)) for view in views.values()) / 2
    machines = machine_of_rank(calls_of_rank, matches, hosts, half_a_step)
    named = dict(views)
    for rank, view in views.items():
        if machines[rank] != hosts[rank]:
            apart = f"ranks of host {hosts[rank]!r} have different clocks: taken for several machines"
            notices = [*view.notices, Notice("shared_host_name", apart)]
            named[rank] = replace(view, header=replace(view.header, host_name=machines[rank]), notices=notices)
    return named


def with_common_steps(views: Mapping[int, RankView]) -> dict[int, RankView]:
    """Collectives: renumber ranks' steps as most ranks number them, so that calls can be matched.

    Calls are matched within steps, so a rank with other numbers would match nothing. It is renumbered only where it
    marks as many steps and ran mostly at the same time; otherwise it recorded another part of the run.
    """
    numbers = {rank: frozenset(view.facts.step_indices) for rank, view in views.items()}
    if len(set(numbers.values())) == 1:
        return dict(views)
    common = max(views, key=lambda rank: (sum(not numbers[rank].isdisjoint(n) for n in numbers.values()), -rank))
    renumbered = dict(views)
    for rank, view in views.items():
        own, other = view.facts.step_indices, views[common].facts.step_indices
        start, end = zip(*((one.window.start_ns, one.window.end_ns) for one in (view, views[common])), strict=True)
        is_same_time = 2 * (min(end) - max(start)) > min(view.window_ns, views[common].window_ns)
        if own and len(own) == len(other) and set(own).isdisjoint(other) and is_same_time:
            renumbered[rank] = _renumbered(view, views[common])
    return renumbered


def _renumbered(view: RankView, common: RankView) -> RankView:
    number = dict(zip(view.facts.step_indices, common.facts.step_indices, strict=True))

    def of(steps: IntColumn) -> IntColumn:
        return np.array([number.get(step, step) for step in steps.tolist()], np.int64)

    graph = view.graph
    if graph is not None:
        graph = replace(graph, device=replace(graph.device, step=of(graph.device.step)))
    sums, by_name = view.kernel_sums, view.kernel_sums.steps_by_name
    first = (view.facts.step_indices[0], common.facts.step_indices[0])
    by_order = f"rank {view.rank} numbers its steps from {first[0]}, others from {first[1]}: matched by their order"
    return replace(
        view,
        window=replace(view.window, index=of(view.window.index)),
        calls=[replace(call, step=number.get(call.step, call.step)) for call in view.calls],
        micro_batches=[replace(batch, step=number.get(batch.step, batch.step)) for batch in view.micro_batches],
        facts=replace(
            view.facts,
            step_indices=common.facts.step_indices,
            empty_steps=tuple(number.get(step, step) for step in view.facts.empty_steps),
        ),
        kernel_sums=replace(
            sums, steps_by_name=replace(by_name, index=[number.get(step, step) for step in by_name.index])
        ),
        graph=graph,
        notices=[*view.notices, Notice("steps_by_order", by_order)],
    )
