"""Of the time in which only communication ran: what was waiting for others, and what the transfer itself?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.alignment.arrivals import Arrival
from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.matching import CallId
from stepscope.analyzer.intervals import Intervals, Nanoseconds, owned, pieces, subtract, union
from stepscope.analyzer.ledger.segments import CHARGE, TO_BLAME, Paint, Segments, assemble
from stepscope.core.causes import Cause
from stepscope.core.headings import Heading
from stepscope.core.timeline import HEADING_CODE
from stepscope.trace.columns import IntColumn


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
    host's. Waiting in which the host was late anyway keeps the host's charge, a transfer does not.
    """
    transfer, unknown, waiting = _by_state(rank, calls, arrivals)
    alone = segments.heading == HEADING_CODE[Heading.COMMUNICATION_UNSPLIT]
    kept = Segments(*(column[~alone] for column in _columns(segments)))
    time = segments.intervals_of(Heading.COMMUNICATION_UNSPLIT)
    charge = segments.charge[alone]
    paints = [Paint(Intervals(kept.start_ns, kept.end_ns), kept.heading, kept.charge)]
    undecided = subtract(unknown, transfer)
    waiting = subtract(subtract(waiting, transfer), undecided)
    for cover, heading in (
        (transfer, Heading.COMMUNICATION),
        (undecided, Heading.COMMUNICATION_UNSPLIT),
        (waiting, Heading.WAIT),
    ):
        index, start, end = pieces(time.start, time.end, cover)
        late = charge[index] != CHARGE[Cause.COMMUNICATION]
        if heading is Heading.COMMUNICATION:
            late[:] = False  # bytes on the wire: see docs/how-numbers-are-made.md, "Exposed is not blocking"
        own = TO_BLAME if heading is Heading.WAIT else CHARGE[Cause.COMMUNICATION]
        codes = np.where(late, charge[index], own).astype(np.int8)
        paints.append(Paint(Intervals(start, end), heading, codes))
    for done in (transfer, undecided, waiting):
        time = subtract(time, done)
    return assemble([*paints, Paint(time, Heading.HOST_BOUND)])


def waits_to_blame(segments: Segments, rank: int, calls: list[Call], arrivals: Mapping[CallId, Arrival]) -> WaitPieces:
    """The waiting that still has to be charged to someone; overlapping waits belong to the call that began first."""
    places = [place for place in range(len(calls)) if CallId(rank, place) in arrivals]
    start = np.array([calls[place].exposed_from_ns for place in places], np.int64)
    end = np.array([min(calls[place].end_ns, arrivals[CallId(rank, place)].at_ns) for place in places], np.int64)
    start, end = owned(start, np.maximum(start, end), tie=np.arange(len(start)))
    open_ = segments.charge == TO_BLAME
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
    return segments.start_ns, segments.end_ns, segments.heading, segments.charge
