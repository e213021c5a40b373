"""Which call on one rank is the same collective as which call on another?

Key: the i-th collective of a group within a step, kinds and sizes agreeing; never counted from the file's start
(profilers start apart) and never by record ids. Point-to-point: the i-th call from source to destination in the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from stepscope.analyzer.alignment.device_calls import BEFORE_STEPS, P2P_KINDS, Call


@dataclass(frozen=True, slots=True)
class CallId:
    """One call: the rank and its place in that rank's list."""

    rank: int
    place: int


@dataclass(frozen=True, slots=True)
class Matches:
    """What belongs together.

    Attributes:
        collectives: for each matched collective its members' calls, by rank.
        peers: for each point-to-point call the counterpart calls it needs.
        unmatched: calls of loaded groups without their counterpart.
        incomplete: calls whose group is unknown or has a member without a trace.
    """

    collectives: list[dict[int, CallId]]
    peers: dict[CallId, list[CallId]]
    unmatched: list[CallId]
    incomplete: list[CallId]


def match_calls(calls_of_rank: Mapping[int, list[Call]]) -> Matches:
    """Match the calls of all loaded ranks. Each list is in issue order."""
    collectives: list[dict[int, CallId]] = []
    unmatched: list[CallId] = []
    incomplete: list[CallId] = []
    series: dict[tuple[tuple[int, ...], int], dict[int, list[CallId]]] = defaultdict(lambda: defaultdict(list))
    for rank, calls in calls_of_rank.items():
        for place, call in enumerate(calls):
            if call.kind in P2P_KINDS:
                continue
            if call.group is None or len(call.group) < 2 or not set(call.group) <= calls_of_rank.keys():
                incomplete.append(CallId(rank, place))
                continue
            series[call.group, call.step][rank].append(CallId(rank, place))
    for (group, step), by_rank in series.items():
        found, left = _align(group, by_rank, calls_of_rank, from_end=step == BEFORE_STEPS)
        collectives += found
        unmatched += left
    peers = _match_peers(calls_of_rank, unmatched, incomplete)
    return Matches(collectives, peers, unmatched, incomplete)


def _align(
    group: tuple[int, ...],
    by_rank: Mapping[int, list[CallId]],
    calls_of_rank: Mapping[int, list[Call]],
    *,
    from_end: bool,
) -> tuple[list[dict[int, CallId]], list[CallId]]:
    """Line the members' calls of one step up: by ordinal where all agree, else by the longest common sequences."""
    if by_rank.keys() != set(group):
        return [], [call for calls in by_rank.values() for call in calls]
    words = {rank: [_word(calls_of_rank[rank][c.place]) for c in calls] for rank, calls in by_rank.items()}
    if from_end:
        shortest = min(map(len, words.values()))
        words = {rank: w[len(w) - shortest :] for rank, w in words.items()}
        by_rank = {rank: calls[len(calls) - shortest :] for rank, calls in by_rank.items()}
    reference = max(group, key=lambda rank: len(words[rank]))
    place_of: dict[int, dict[int, int]] = {}
    for rank in group:
        if _agree(words[rank], words[reference]):
            place_of[rank] = {i: i for i in range(len(words[reference]))}
            continue
        blocks = SequenceMatcher(None, words[reference], words[rank], autojunk=False).get_matching_blocks()
        place_of[rank] = {b.a + i: b.b + i for b in blocks for i in range(b.size)}
    whole = [i for i in range(len(words[reference])) if all(i in place_of[rank] for rank in group)]
    found = [{rank: by_rank[rank][place_of[rank][i]] for rank in group} for i in whole]
    used = {call for match in found for call in match.values()}
    return found, [call for calls in by_rank.values() for call in calls if call not in used]


def _word(call: Call) -> tuple[str, int | None]:
    return call.kind, call.num_bytes


def _agree(a: list[tuple[str, int | None]], b: list[tuple[str, int | None]]) -> bool:
    """Same kinds and sizes in the same order; a size that one side does not know agrees with any."""
    return len(a) == len(b) and all(
        x[0] == y[0] and (x[1] == y[1] or None in (x[1], y[1])) for x, y in zip(a, b, strict=True)
    )


def _match_peers(
    calls_of_rank: Mapping[int, list[Call]], unmatched: list[CallId], incomplete: list[CallId]
) -> dict[CallId, list[CallId]]:
    """Each send with its receive: same step, same source, same destination, same ordinal."""
    ends: dict[tuple[int, int, int, int, bool], CallId] = {}
    directed = list(_point_to_point(calls_of_rank))
    for identity, call in directed:
        for peer in call.peers:
            is_send = peer.source == call.rank
            ends[call.step, peer.source, peer.destination, peer.ordinal, is_send] = identity
    peers: dict[CallId, list[CallId]] = {}
    for identity, call in directed:
        others = []
        for peer in call.peers:
            is_send = peer.source == call.rank
            others.append(ends.get((call.step, peer.source, peer.destination, peer.ordinal, not is_send)))
        partners = {peer.destination if peer.source == call.rank else peer.source for peer in call.peers}
        if not call.peers or not partners <= calls_of_rank.keys():
            incomplete.append(identity)
        elif any(other is None for other in others):
            unmatched.append(identity)
        else:
            peers[identity] = [other for other in others if other is not None]
    return peers


def _point_to_point(calls_of_rank: Mapping[int, list[Call]]) -> Iterable[tuple[CallId, Call]]:
    for rank, calls in calls_of_rank.items():
        for place, call in enumerate(calls):
            if call.kind in P2P_KINDS:
                yield CallId(rank, place), call
