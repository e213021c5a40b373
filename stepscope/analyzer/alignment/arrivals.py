"""Of each communication call: who came last, how long was it waited for, and how long did the transfer take?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.analyzer.alignment.clocks import SAME_CLOCK_NS
from stepscope.analyzer.alignment.device_calls import SYNCHRONIZING_KINDS, Call
from stepscope.analyzer.alignment.matching import CallId, Matches


@dataclass(frozen=True, slots=True)
class Arrival:
    """The last arrival that a call needs. Times on the job's clock.

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

    None is between ranks of different islands (their clocks cannot be compared), nor where the calls cannot have met.

    All members are needed for the kinds that synchronise. A receive needs the start of its send; a send needs its
    receive. Rooted kinds need their root, which traces do not name reliably: they stay unknown.
    """
    arrivals: dict[CallId, Arrival] = {}
    for number, match in enumerate(matches.collectives):
        calls = {rank: calls_of_rank[rank][call.place] for rank, call in match.items()}
        if len({island[rank] for rank in calls}) > 1 or any(
            call.kind not in SYNCHRONIZING_KINDS for call in calls.values()
        ):
            continue
        last = max(calls, key=lambda rank: (calls[rank].start_ns, rank))
        if calls[last].start_ns - min(call.end_ns for call in calls.values()) > SAME_CLOCK_NS:
            continue  # somebody left before the last came: these calls were matched wrongly
        for call in match.values():
            arrivals[call] = Arrival(last, match[last], calls[last].start_ns, number)
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
