"""Arrivals at each call: who came last, and how long others waited, transferred, and hid behind compute.

Exposure: An exposed instant belongs to one call: of those that are in the state which the instant is attributed to,
to the one that began it first. So the calls' exposed times add up to the ledger's communication categories exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.calls import FROM_ROOT_KINDS, SYNCHRONIZING_KINDS, TO_ROOT_KINDS, Call
from stepscope.analyzer.alignment.clocks import SAME_CLOCK_NS
from stepscope.analyzer.alignment.matching import CallId, Matches
from stepscope.analyzer.intervals import Intervals, Nanoseconds, covered_time, owned, pieces, subtract, union
from stepscope.analyzer.ledger.segments import CAUSE_CODE, TO_ATTRIBUTE, CategorySpans, Segments, assemble
from stepscope.analyzer.rank_view import RankView
from stepscope.core.vocabulary.categories import CATEGORY_CODE, COMPUTE_CATEGORIES, TimeCategory
from stepscope.core.vocabulary.causes import Cause
from stepscope.trace.columns import IntColumn


@dataclass(frozen=True, slots=True)
class Arrival:
    """The last arrival that a call needs. Times on the job's clock (without clocks: on the waiting rank's own).

    Attributes:
        rank: the last needed arriver.
        call: its call.
        at_ns: when it arrived.
        match: number of the collective (calls of one collective share it), or None for point-to-point.
    """

    rank: int
    call: CallId
    at_ns: int
    match: int | None


def needed_arrivals(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, island: Mapping[int, int]
) -> dict[CallId, Arrival]:
    """The last needed arrival of every call for which it is known; calls on the job's clock.

    Between ranks whose clocks nothing ties together (different islands) only the kinds that synchronise are known: all
    leave together, so what a member stays longer than the shortest is waiting. Never known are calls that cannot have
    met, and rooted kinds whose root the trace does not tell.

    All members are needed for the kinds that synchronise. Broadcast and scatter need the root; in reduce and gather
    only the root needs the others. A receive needs the start of its send; a send needs its receive.
    """
    arrivals: dict[CallId, Arrival] = {}
    for number, match in enumerate(matches.collectives):
        calls = {rank: calls_of_rank[rank][call.place] for rank, call in match.items()}
        if len({island[rank] for rank in match}) > 1:
            arrivals |= _without_clocks(match, calls, number)
            continue
        for rank, last in _last_needed(calls).items():
            arrivals[match[rank]] = Arrival(last, match[last], calls[last].start_ns, number)
    for call, needed in matches.peers.items():
        if any(island[other.rank] != island[call.rank] for other in needed):
            continue
        last_call = max(needed, key=lambda other: calls_of_rank[other.rank][other.place].start_ns)
        at = calls_of_rank[last_call.rank][last_call.place].start_ns
        own = calls_of_rank[call.rank][call.place]
        if own.kind == "recv" and at - own.end_ns > SAME_CLOCK_NS:
            continue  # received before it was sent: matched wrongly
        if own.start_ns >= at:
            last_call, at = call, own.start_ns
        arrivals[call] = Arrival(last_call.rank, last_call, at, None)
    return arrivals


def _without_clocks(match: Mapping[int, CallId], calls: Mapping[int, Call], number: int) -> dict[CallId, Arrival]:
    """On each member's own clock: the last to come stays shortest, and all leave when the transfer is done."""
    if any(call.kind not in SYNCHRONIZING_KINDS for call in calls.values()):
        return {}
    last = min(calls, key=lambda rank: (calls[rank].end_ns - calls[rank].start_ns, rank))
    transfer = calls[last].end_ns - calls[last].start_ns
    return {match[rank]: Arrival(last, match[last], call.end_ns - transfer, number) for rank, call in calls.items()}


def _last_needed(calls: Mapping[int, Call]) -> dict[int, int]:
    """For each member of one collective, the last member that it needs (perhaps itself); empty where nobody can tell.

    Somebody who left before the last that he needs came was matched wrongly.
    """
    kinds = {call.kind for call in calls.values()}
    last = max(calls, key=lambda rank: (calls[rank].start_ns, rank))
    if kinds <= SYNCHRONIZING_KINDS:
        first_end = min(call.end_ns for call in calls.values())
        return dict.fromkeys(calls, last) if calls[last].start_ns - first_end <= SAME_CLOCK_NS else {}
    root = _root_of(calls)
    if root is None:
        return {}
    if kinds <= TO_ROOT_KINDS:
        met = calls[last].start_ns - calls[root].end_ns <= SAME_CLOCK_NS
        return {rank: last if rank == root else rank for rank in calls} if met else {}
    if kinds <= FROM_ROOT_KINDS:
        begin = calls[root].start_ns
        if any(begin - call.end_ns > SAME_CLOCK_NS for call in calls.values()):
            return {}
        return {rank: root if call.start_ns < begin else rank for rank, call in calls.items()}
    return {}


def _root_of(calls: Mapping[int, Call]) -> int | None:
    """The root that the members agree on (those that tell one), or None."""
    told = {call.root for call in calls.values() if call.root is not None}
    root = told.pop() if len(told) == 1 else None
    return root if root in calls else None


def seen_arrivals(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, island: Mapping[int, int]
) -> dict[CallId, int]:
    """Of the calls of which some member's trace is missing: when the last of the others arrived. Until then they
    waited, whatever the missing one did; nothing is known of what came after."""
    seen: dict[CallId, int] = {}
    for match in matches.partial:
        calls = [calls_of_rank[rank][call.place] for rank, call in match.items()]
        if len({island[rank] for rank in match}) == 1 and all(call.kind in SYNCHRONIZING_KINDS for call in calls):
            seen |= dict.fromkeys(match.values(), max(call.start_ns for call in calls))
    return seen


@dataclass(frozen=True, slots=True)
class WaitPieces:
    """Exposed waiting, cut by the call that waits. `call` is the call's place in the rank's list."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    call: IntColumn

    def __len__(self) -> int:
        return len(self.start_ns)


def split_communication(
    segments: Segments, rank: int, calls: list[Call], arrivals: Mapping[CallId, Arrival]
) -> Segments:
    """Replace `communication_unsplit` by communication and wait where arrivals are known.

    Several calls at once: `wait` only while every running one lacks a participant; a transfer wins over an unknown.
    What no call covers (a host entering or leaving a call, or not yet asking for a send that is long done) is the
    host's. Waiting in which the host was late anyway keeps the host's cause, a transfer does not.
    """
    transfer, unknown, waiting = _by_state(rank, calls, arrivals)
    alone = segments.category == CATEGORY_CODE[TimeCategory.COMMUNICATION_UNSPLIT]
    kept = Segments(*(column[~alone] for column in _columns(segments)))
    time = segments.intervals_of(TimeCategory.COMMUNICATION_UNSPLIT)
    cause = segments.cause[alone]
    paints = [CategorySpans(Intervals(kept.start_ns, kept.end_ns), kept.category, kept.cause)]
    undecided = subtract(unknown, transfer)
    waiting = subtract(subtract(waiting, transfer), undecided)
    for cover, category in (
        (transfer, TimeCategory.COMMUNICATION),
        (undecided, TimeCategory.COMMUNICATION_UNSPLIT),
        (waiting, TimeCategory.WAIT),
    ):
        index, start, end = pieces(time.start, time.end, cover)
        late = cause[index] != CAUSE_CODE[Cause.COMMUNICATION]
        if category is TimeCategory.COMMUNICATION:
            late[:] = False  # bytes on the wire: docs/explanation/how-numbers-are-made.md, "Exposed is not blocking"
        own = TO_ATTRIBUTE if category is TimeCategory.WAIT else CAUSE_CODE[Cause.COMMUNICATION]
        codes = np.where(late, cause[index], own).astype(np.int8)
        paints.append(CategorySpans(Intervals(start, end), category, codes))
    for done in (transfer, undecided, waiting):
        time = subtract(time, done)
    return assemble([*paints, CategorySpans(time, TimeCategory.HOST_BOUND)])


def waits_to_attribute(
    segments: Segments, rank: int, calls: list[Call], arrivals: Mapping[CallId, Arrival]
) -> WaitPieces:
    """The waiting that still has to be attributed to someone; overlapping waits belong to the call that began first."""
    places = [place for place in range(len(calls)) if CallId(rank, place) in arrivals]
    start = np.array([calls[place].exposed_from_ns for place in places], np.int64)
    end = np.array([min(calls[place].end_ns, arrivals[CallId(rank, place)].at_ns) for place in places], np.int64)
    start, end = owned(start, np.maximum(start, end), tie=np.arange(len(start)))
    open_ = segments.cause == TO_ATTRIBUTE
    cover = union(segments.start_ns[open_], segments.end_ns[open_])
    index, piece_start, piece_end = pieces(start, end, cover)
    order = np.argsort(piece_start, kind="stable")
    return WaitPieces(piece_start[order], piece_end[order], np.array(places, np.int64)[index][order])


def _by_state(
    rank: int, calls: list[Call], arrivals: Mapping[CallId, Arrival]
) -> tuple[Intervals, Intervals, Intervals]:
    """When some call transferred, when one ran whose arrivals are unknown, and when one waited."""
    spans: tuple[list[tuple[int, int]], ...] = ([], [], [])
    for place, call in enumerate(calls):
        arrival = arrivals.get(CallId(rank, place))
        if arrival is None:
            spans[1].append((call.exposed_from_ns, call.end_ns))
            continue
        arrived = min(max(call.exposed_from_ns, arrival.at_ns), call.end_ns)
        spans[0].append((arrived, call.end_ns))
        spans[2].append((call.exposed_from_ns, arrived))
    transfer, unknown, waiting = (union([s for s, _ in part], [e for _, e in part]) for part in spans)
    return transfer, unknown, waiting


def _columns(segments: Segments) -> tuple[Nanoseconds, Nanoseconds, IntColumn, IntColumn]:
    return segments.start_ns, segments.end_ns, segments.category, segments.cause


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
        exposed_wait, exposed_transfer, exposed_unsplit: what of it the ledger books under communication categories
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
        views: on the job's clock, with their final categories.
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
    compute = segments.intervals_of(*COMPUTE_CATEGORIES)
    unsplit = segments.intervals_of(TimeCategory.COMMUNICATION_UNSPLIT)
    return (
        known,
        start,
        end,
        waited_until - start,
        end - transferred_from,
        unknown_until - start,
        _owned_time(
            begin, np.where(known, booked_from, begin), segments.intervals_of(TimeCategory.WAIT, TimeCategory.BUBBLE)
        ),
        _owned_time(booked_from, end, segments.intervals_of(TimeCategory.COMMUNICATION)),
        _owned_time(begin, np.where(known, begin, end), unsplit),
        covered_time(start, waited_until, compute),
        covered_time(transferred_from, end, compute),
        covered_time(start, unknown_until, compute),
        _owned_time(begin, np.where(known, begin, np.clip(seen, begin, end)), unsplit),
    )


def _owned_time(start: Nanoseconds, end: Nanoseconds, cover: Intervals) -> Nanoseconds:
    own_start, own_end = owned(start, end, tie=np.arange(len(start)))
    return covered_time(own_start, own_end, cover)
