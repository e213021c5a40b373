"""Of each communication call: who came last, how long was it waited for, and how long did the transfer take?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.call_words import FROM_ROOT_KINDS, SYNCHRONIZING_KINDS, TO_ROOT_KINDS
from stepscope.analyzer.alignment.clocks import SAME_CLOCK_NS
from stepscope.analyzer.alignment.matching import CallId, Matches


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
