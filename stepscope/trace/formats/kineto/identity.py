"""Identity of a trace by its events: the rank that its communication calls show, its host process, its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.trace.columns import NONE, Category, RankSource, TraceColumns
from stepscope.trace.formats.foreign_traces import accelerator_of
from stepscope.trace.rows import distinct

_ROOTED = ("broadcast", "reduce", "gather", "scatter", "send", "recv", "p2p")
"""Calls whose "Rank" is the root or the peer, not the caller."""


def with_identities(
    traces: Sequence[TraceColumns], categories: Sequence[str | None], accelerator: str | None
) -> list[TraceColumns]:
    """The traces of a file with their processes and devices, and ranks by their calls where the header gives none.

    Args:
        categories: names of the categories in the file.
        accelerator: the device that the file's text names, if any.
    """
    headers = [
        replace(
            trace.header,
            process_id=_process(trace),
            accelerator=accelerator or accelerator_of(categories, _calls(trace), trace.names),
        )
        for trace in traces
    ]
    if not any(header.rank_source is RankSource.HEADER for header in headers):
        ranks = [rank_of_calls(trace) for trace in traces]
        if None not in ranks and len(set(ranks)) == len(ranks):
            headers = [
                replace(header, rank=rank, rank_source=RankSource.COLLECTIVES)
                for header, rank in zip(headers, ranks, strict=True)
            ]
    return [trace.with_header(header) for trace, header in zip(traces, headers, strict=True)]


def _calls(trace: TraceColumns) -> list[str]:
    """Names of the runtime calls."""
    return [trace.names[name] for name in distinct(trace.name[trace.rows_of(Category.RUNTIME)]).tolist()]


def rank_of_calls(trace: TraceColumns) -> int | None:
    """The only rank that is a member of all groups whose calls it makes, and is the caller that the calls name.

    None where they leave several ranks or none.
    """
    calls = trace.communication
    possible: set[int] | None = None
    is_rooted = np.array([kind.lower() in _ROOTED for kind in calls.kinds], np.bool_)
    for group in distinct(calls.group[calls.group != NONE]).tolist():
        members = trace.groups[group].ranks
        if members is None:
            continue
        of_group = calls.group == group
        callers = calls.root_rank[of_group & ~is_rooted[calls.kind]]
        callers = distinct(callers[callers != NONE])
        if len(callers) == 1 and callers[0] < len(members):
            members = (members[callers[0]],)
        possible = set(members) if possible is None else possible & set(members)
    return min(possible) if possible is not None and len(possible) == 1 else None


def _process(trace: TraceColumns) -> int | None:
    """The host process with most operators and calls."""
    rows = trace.rows_of(Category.CPU_OP, Category.RUNTIME)
    if not len(rows):
        return None
    of_lane = np.bincount(trace.lane[rows], minlength=len(trace.lanes))
    processes = np.array([lane.process for lane in trace.lanes], np.int64)
    numbers, place = np.unique(processes, return_inverse=True)
    busiest = int(numbers[np.bincount(place, weights=of_lane).argmax()])
    return busiest if busiest >= 0 else None
