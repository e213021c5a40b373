"""Arrivals at each call: the last needed arriver, and how long each member waited, transferred, and was hidden."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import (
    FROM_ROOT_KINDS,
    SYNCHRONIZING_KINDS,
    TO_ROOT_KINDS,
    Call,
    CallId,
    Matches,
)
from stepscope.analyzer.collectives.clocks import SAME_CLOCK_NS, Clocks
from stepscope.analyzer.intervals import Intervals, Nanoseconds, covered_time, owned, pieces, subtract, union
from stepscope.analyzer.ledger.segments import CAUSE_CODE, TO_ATTRIBUTE, CategorySpans, assemble
from stepscope.analyzer.rank_view import RankView
from stepscope.core.vocabulary import CATEGORY_CODE, COMPUTE_CATEGORIES, Cause, TimeCategory
from stepscope.trace.columns import IntColumn


class Arrival(NamedTuple):
    """Last rank to arrive at a collective call, for which the others wait.

    Attributes:
        rank, call: the last needed arriver and its call.
        at_ns: when it arrived, on the job's clock (without common clock, on the waiting rank's own).
        match: number of the collective, shared by its calls, or None for point-to-point.
    """

    rank: int
    call: CallId
    at_ns: int
    match: int | None


def needed_arrivals(
    calls_of_rank: Mapping[int, list[Call]], matches: Matches, island: Mapping[int, int]
) -> dict[CallId, Arrival]:
    """Last needed arrival of every collective call for which it is known; calls on the job's clock.

    Idea: a call waits until the last member that it needs has arrived, and transfers from then on. Synchronizing kinds
    need all members; broadcast and scatter need the root; in reduce and gather only the root needs the others. A
    receive needs the start of its send, a send needs its receive.

    Between ranks without a common clock (different islands) only synchronizing kinds are known: all members leave
    together, so what one stays longer than the shortest is waiting. Unknown are calls whose times contradict the match,
    and rooted kinds without a recorded root.
    """
    arrivals: dict[CallId, Arrival] = {}
    for number, match in enumerate(matches.collectives):
        calls = {rank: calls_of_rank[rank][call.place] for rank, call in match.items()}
        if len({island[rank] for rank in match}) > 1:
            if all(call.kind in SYNCHRONIZING_KINDS for call in calls.values()):
                # on each member's own clock: the last to arrive stays shortest, and all leave after the transfer
                transfer, last = min((call.end_ns - call.start_ns, rank) for rank, call in calls.items())
                for rank, own in calls.items():
                    arrivals[match[rank]] = Arrival(last, match[last], own.end_ns - transfer, number)
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
            continue  # received before it was sent: a wrong match
        if own.start_ns >= at:
            last_call, at = call, own.start_ns
        arrivals[call] = Arrival(last_call.rank, last_call, at, None)
    return arrivals


def _last_needed(calls: Mapping[int, Call]) -> dict[int, int]:
    """For each member of a collective, the last member that it needs (perhaps itself); empty where unknown.

    A member that left before the last one that it needs arrived shows a wrong match.
    """
    kinds = {call.kind for call in calls.values()}
    last = max(calls, key=lambda rank: (calls[rank].start_ns, rank))
    if kinds <= SYNCHRONIZING_KINDS:
        first_end = min(call.end_ns for call in calls.values())
        return dict.fromkeys(calls, last) if calls[last].start_ns - first_end <= SAME_CLOCK_NS else {}
    roots = {call.root for call in calls.values() if call.root is not None}
    root = next(iter(roots), None)
    if root is None or len(roots) > 1 or root not in calls:
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


def _seen_arrivals(views: Mapping[int, RankView], matches: Matches, clocks: Clocks) -> dict[CallId, int]:
    """For calls with a member whose trace is missing, the last arrival of the others.

    Until then they waited, whatever the missing member did; what followed is unknown.
    """
    seen: dict[CallId, int] = {}
    for match in matches.partial:
        calls = [views[rank].calls[call.place] for rank, call in match.items()]
        if len({clocks.island[rank] for rank in match}) == 1 and all(
            call.kind in SYNCHRONIZING_KINDS for call in calls
        ):
            seen |= dict.fromkeys(match.values(), max(call.start_ns for call in calls))
    return seen


@dataclass(frozen=True, slots=True)
class WaitPieces:
    """Exposed waiting in collectives, in pieces of one call each. `call` is the call's index in the rank's list."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    call: IntColumn

    def __len__(self) -> int:
        return len(self.start_ns)


def split_communication(view: RankView, arrivals: Mapping[CallId, Arrival]) -> RankView:
    """Split a rank's time in collectives into transfer and waiting for late ranks where arrivals are known.

    Of concurrent calls: `wait` only while every running one lacks a participant; transfer wins over unknown. Time
    without a call (a host entering or leaving one, or not yet waiting for a send that is done) is host-bound. Waiting
    in which the host was late anyway keeps the host's cause, transfer does not.
    """
    segments = view.segments
    alone = segments.category == CATEGORY_CODE[TimeCategory.COMMUNICATION_UNSPLIT]
    if not alone.any():
        return view
    transfer, unknown, waiting = _by_state(view, arrivals)
    others = Intervals(segments.start_ns[~alone], segments.end_ns[~alone])
    parts = [CategorySpans(others, segments.category[~alone], segments.cause[~alone])]
    time = segments.intervals_of(TimeCategory.COMMUNICATION_UNSPLIT)
    cause = segments.cause[alone]
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
        parts.append(CategorySpans(Intervals(start, end), category, codes))
    for done in (transfer, undecided, waiting):
        time = subtract(time, done)
    return replace(view, segments=assemble([*parts, CategorySpans(time, TimeCategory.HOST_BOUND)]))


def waits_to_attribute(view: RankView, arrivals: Mapping[CallId, Arrival]) -> WaitPieces:
    """Collectives: waits for late ranks without a cause yet; overlapping ones belong to the call that began first."""
    segments, calls = view.segments, view.calls
    places = [place for place in range(len(calls)) if CallId(view.rank, place) in arrivals]
    start = np.array([calls[place].exposed_from_ns for place in places], np.int64)
    end = np.array([min(calls[place].end_ns, arrivals[CallId(view.rank, place)].at_ns) for place in places], np.int64)
    start, end = owned(start, np.maximum(start, end), tie=np.arange(len(start)))
    open_ = segments.cause == TO_ATTRIBUTE
    cover = union(segments.start_ns[open_], segments.end_ns[open_])
    index, piece_start, piece_end = pieces(start, end, cover)
    order = np.argsort(piece_start, kind="stable")
    return WaitPieces(piece_start[order], piece_end[order], np.array(places, np.int64)[index][order])


def _by_state(view: RankView, arrivals: Mapping[CallId, Arrival]) -> tuple[Intervals, Intervals, Intervals]:
    """Time in which some call transferred, in which one with unknown arrivals ran, and in which one waited."""
    spans: tuple[list[tuple[int, int]], ...] = ([], [], [])
    for place, call in enumerate(view.calls):
        arrival = arrivals.get(CallId(view.rank, place))
        if arrival is None:
            spans[1].append((call.exposed_from_ns, call.end_ns))
            continue
        arrived = min(max(call.exposed_from_ns, arrival.at_ns), call.end_ns)
        spans[0].append((arrived, call.end_ns))
        spans[2].append((call.exposed_from_ns, arrived))
    transfer, unknown, waiting = (union([s for s, _ in part], [e for _, e in part]) for part in spans)
    return transfer, unknown, waiting


def transfer_time(view: RankView, arrivals: Mapping[CallId, Arrival]) -> Intervals:
    """Collectives: the time in which some call of a rank transferred, hidden or not."""
    return _by_state(view, arrivals)[0]


class CallColumns(NamedTuple):
    """Collective calls of all ranks as columns, one entry a call; nanoseconds.

    Each exposed instant belongs to one call: of those in the state to which the instant is attributed, the one that
    began it first. So the exposed times add up exactly to the time breakdown's communication categories.

    Attributes:
        first: by rank, index of its first call.
        known: whether the last needed arrival is known.
        start, end: on the job's clock.
        wait, transfer: from the start to the last needed arrival, and from there to the end; 0 where unknown.
        unsplit: the whole call where unknown, else 0.
        surely_waited: the part of `exposed_unsplit` before the last arrival of the members with traces.
        exposed_wait, exposed_transfer, exposed_unsplit: the part in communication categories (`exposed_wait` includes
            the pipeline's bubble).
        hidden_wait, hidden_transfer, hidden_unsplit: the part under compute; concurrent calls each count in full.
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
        """Indices of the calls in the columns."""
        first = self.first
        return np.array([first[call.rank] + call.place for call in calls], np.intp)


def call_columns(
    views: Mapping[int, RankView], matches: Matches, clocks: Clocks, arrivals: Mapping[CallId, Arrival]
) -> CallColumns:
    """Collective calls of all ranks as columns; `views` are on the job's clock, with their final categories."""
    seen_ns = _seen_arrivals(views, matches, clocks)
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
    last = [arrivals.get(CallId(view.rank, place)) for place in range(len(calls))]
    known = np.array([arrival is not None for arrival in last], np.int64)
    at = np.array([0 if arrival is None else arrival.at_ns for arrival in last], np.int64)
    at = np.clip(at, start, end)
    waited_until = np.where(known, at, start)
    transferred_from = np.where(known, at, end)
    unknown_until = np.where(known, start, end)
    # a thread does not wait for a call that it issued and left (gloo's sends) until it asks for its completion
    begin = np.array([call.exposed_from_ns for call in calls], np.int64)
    exposed_transfer_from = np.where(known, np.clip(at, begin, end), end)
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
            begin,
            np.where(known, exposed_transfer_from, begin),
            segments.intervals_of(TimeCategory.WAIT, TimeCategory.BUBBLE),
        ),
        _owned_time(exposed_transfer_from, end, segments.intervals_of(TimeCategory.COMMUNICATION)),
        _owned_time(begin, np.where(known, begin, end), unsplit),
        covered_time(start, waited_until, compute),
        covered_time(transferred_from, end, compute),
        covered_time(start, unknown_until, compute),
        _owned_time(begin, np.where(known, begin, np.clip(seen, begin, end)), unsplit),
    )


def _owned_time(start: Nanoseconds, end: Nanoseconds, cover: Intervals) -> Nanoseconds:
    own_start, own_end = owned(start, end, tie=np.arange(len(start)))
    return covered_time(own_start, own_end, cover)


def movable_wait_share(
    views: Mapping[int, RankView], columns: CallColumns, arrivals: Mapping[CallId, Arrival], clocks: Clocks
) -> float:
    """Share of all windows that a clock error moves between waiting and transfer of collectives."""
    moved = 0
    exposed = columns.exposed_wait + columns.exposed_transfer
    for call, arrival in arrivals.items():
        error = clocks.uncertainty_ns(call.rank, arrival.rank)
        if error and clocks.island[call.rank] == clocks.island[arrival.rank]:
            moved += min(int(np.ceil(error)), int(exposed[columns.first[call.rank] + call.place]))
    return moved / sum(view.window_ns for view in views.values())
