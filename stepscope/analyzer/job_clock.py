"""What does a rank look like on the job's clock, and how much of its waiting hangs on how well that clock is known?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepscope.analyzer.alignment.arrivals import Arrival
from stepscope.analyzer.alignment.clocks import Clocks
from stepscope.analyzer.alignment.exposure import CallColumns
from stepscope.analyzer.alignment.matching import CallId
from stepscope.analyzer.ledger.segments import Segments
from stepscope.analyzer.rank_view import RankView


def on_job_clock(view: RankView, clocks: Clocks) -> RankView:
    """The view with all its times moved."""
    rank = view.rank
    if not clocks.moves(rank):
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
            segments.heading,
            segments.charge,
        ),
        calls=[
            replace(call, start_ns=s, end_ns=e, awaited_ns=a)
            for call, s, e, a in zip(calls, start, end, awaited, strict=True)
        ],
        micro_batches=[replace(batch, start_ns=s, end_ns=e) for batch, s, e in zip(batches, begun, done, strict=True)],
    )


def movable_wait(columns: CallColumns, arrivals: Mapping[CallId, Arrival], clocks: Clocks) -> dict[int, int]:
    """By rank, how many nanoseconds of exposed communication change between waiting and transfer when the clocks are
    off by their residual; ranks of which nothing does are absent."""
    moved: dict[int, int] = {}
    if not clocks.residual_ns:
        return moved
    exposed = columns.exposed_wait + columns.exposed_transfer
    for call, arrival in arrivals.items():
        spread = clocks.uncertainty_ns(call.rank, arrival.rank)
        if spread and clocks.island[call.rank] == clocks.island[arrival.rank]:
            time = min(int(np.ceil(spread)), int(exposed[columns.first[call.rank] + call.place]))
            moved[call.rank] = moved.get(call.rank, 0) + time
    return moved
