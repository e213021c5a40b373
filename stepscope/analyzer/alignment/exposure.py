"""Of each communication call: how much of its waiting and of its transfer was exposed, how much hidden by compute?

An exposed instant belongs to one call: of those that are in the state which the instant is booked under, to the one
that began it first. So the calls' exposed times add up to the ledger's communication headings exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.arrivals import Arrival
from stepscope.analyzer.alignment.matching import CallId
from stepscope.analyzer.intervals import Intervals, Nanoseconds, covered_time, owned
from stepscope.analyzer.rank_view import RankView
from stepscope.core.headings import COMPUTE_HEADINGS, Heading


@dataclass(frozen=True, slots=True)
class CallColumns:
    """All ranks' calls as columns, one entry a call; nanoseconds.

    Attributes:
        first: by rank, where its calls begin.
        known: whether the last needed arrival is known.
        start, end: on the job's clock.
        wait, transfer: from the start to the last needed arrival, and from there to the end; 0 where not known.
        unsplit: the whole call where not known, else 0.
        surely_waited: of `exposed_unsplit`, what lies before the last arrival of the members whose traces are there.
        exposed_wait, exposed_transfer, exposed_unsplit: what of it the ledger books under communication headings
            (`exposed_wait` includes what the pipeline's schedule explains).
        hidden_wait, hidden_transfer, hidden_unsplit: what of it lies under compute; calls at once each count in full.
    """

    first: dict[int, int]
    known: npt.NDArray[np.bool_]
    start: Nanoseconds
    end: Nanoseconds
    wait: Nanoseconds
    transfer: Nanoseconds
    unsplit: Nanoseconds
    exposed_wait: Nanoseconds
    exposed_transfer: Nanoseconds
    exposed_unsplit: Nanoseconds
    hidden_wait: Nanoseconds
    hidden_transfer: Nanoseconds
    hidden_unsplit: Nanoseconds
    surely_waited: Nanoseconds

    def places(self, calls: Iterable[CallId]) -> npt.NDArray[np.intp]:
        """Where the calls are in the columns."""
        first = self.first
        return np.array([first[call.rank] + call.place for call in calls], np.intp)


def call_columns(
    views: Mapping[int, RankView],
    arrivals: Mapping[CallId, Arrival],
    seen_ns: Mapping[CallId, int],
) -> CallColumns:
    """Collect the columns.

    Args:
        views: on the job's clock, with their final headings.
        seen_ns: of calls without a known arrival, the last arrival among the members whose traces are there.
    """
    first: dict[int, int] = {}
    parts = []
    count = 0
    for rank, view in views.items():
        first[rank] = count
        count += len(view.calls)
        parts.append(_columns_of(view, arrivals, seen_ns))
    known, *times = (np.concatenate(column) for column in zip(*parts, strict=True))
    return CallColumns(first, known.astype(np.bool_), *times)


def _columns_of(
    view: RankView, arrivals: Mapping[CallId, Arrival], seen_ns: Mapping[CallId, int]
) -> tuple[Nanoseconds, ...]:
    calls, segments = view.calls, view.segments
    start = np.array([call.start_ns for call in calls], np.int64)
    end = np.array([call.end_ns for call in calls], np.int64)
    found = [arrivals.get(CallId(view.rank, place)) for place in range(len(calls))]
    known = np.array([arrival is not None for arrival in found], np.int64)
    at = np.array([0 if arrival is None else arrival.at_ns for arrival in found], np.int64)
    at = np.clip(at, start, end)
    waited_until = np.where(known, at, start)
    transferred_from = np.where(known, at, end)
    unknown_until = np.where(known, start, end)
    # the thread does not wait for a call that it issued and left (gloo's sends) before it asks for it
    begin = np.array([call.exposed_from_ns for call in calls], np.int64)
    booked_from = np.where(known, np.clip(at, begin, end), end)
    seen = np.array([seen_ns.get(CallId(view.rank, place), 0) for place in range(len(calls))], np.int64)
    compute = segments.intervals_of(*COMPUTE_HEADINGS)
    unsplit = segments.intervals_of(Heading.COMMUNICATION_UNSPLIT)
    return (
        known,
        start,
        end,
        waited_until - start,
        end - transferred_from,
        unknown_until - start,
        _owned_time(begin, np.where(known, booked_from, begin), segments.intervals_of(Heading.WAIT, Heading.BUBBLE)),
        _owned_time(booked_from, end, segments.intervals_of(Heading.COMMUNICATION)),
        _owned_time(begin, np.where(known, begin, end), unsplit),
        covered_time(start, waited_until, compute),
        covered_time(transferred_from, end, compute),
        covered_time(start, unknown_until, compute),
        _owned_time(begin, np.where(known, begin, np.clip(seen, begin, end)), unsplit),
    )


def _owned_time(start: Nanoseconds, end: Nanoseconds, cover: Intervals) -> Nanoseconds:
    own_start, own_end = owned(start, end, tie=np.arange(len(start)))
    return covered_time(own_start, own_end, cover)
