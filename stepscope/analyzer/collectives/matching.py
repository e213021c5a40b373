"""Matching of calls: which calls on different ranks are the same operation.

Idea: collectives match by the group's sequence number where recorded, else by position among the collectives of their
communicator within a step (within a graph launch of the step), with equal kinds and sizes; where members differ, by
the longest common subsequence. Positions are never counted from the start of the file, as profilers start at different
times. Point-to-point calls match by position among the calls from source to destination in the step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from stepscope.analyzer.collectives.calls import BEFORE_STEPS, P2P_KINDS, Call, PeerCall

_Signature = tuple[str, int | None]
"""What is equal on all members: kind and size."""

_Key = tuple[tuple[int, ...], int, int | None, int]
"""Group, step, graph launch within the step, communicator."""

_End = tuple[int, int, int, int, bool]
"""One end of a point-to-point call: step, source, destination, ordinal, whether it sends."""

_UNEVEN_KINDS = frozenset({"all_to_all", "gather", "scatter"})
"""Sizes may differ between members: experts, a root."""

_MAX_COMPARISONS = 2_000 * 2_000
"""Longer differing sequences stay unmatched: comparing them takes quadratic time."""


@dataclass(frozen=True, slots=True)
class CallId:
    """One call: the rank and its index in that rank's list."""

    rank: int
    place: int


@dataclass(frozen=True, slots=True)
class Matches:
    """Calls of different ranks that are one operation.

    Attributes:
        collectives: for each matched collective its members' calls, by rank.
        peers: for each point-to-point call the counterpart calls it needs.
        unmatched: calls of groups with all traces without a counterpart.
        incomplete: calls whose group is unknown or has a member without a trace.
        partial: for collectives of groups with such a member, the calls of the others (at least two), by rank.
    """

    collectives: list[dict[int, CallId]]
    peers: dict[CallId, list[CallId]]
    unmatched: list[CallId]
    incomplete: list[CallId]
    partial: list[dict[int, CallId]] = field(default_factory=list)


def match_calls(calls_of_rank: Mapping[int, list[Call]]) -> Matches:
    """Match the calls of all loaded ranks. Each list is in issue order."""
    unmatched: list[CallId] = []
    incomplete: list[CallId] = []
    series: dict[_Key, dict[int, list[CallId]]] = defaultdict(lambda: defaultdict(list))
    place_of = _communicators(calls_of_rank)
    for rank, calls in calls_of_rank.items():
        for place, call in enumerate(calls):
            if call.kind in P2P_KINDS:
                continue
            if call.group is None or len(call.group) < 2:
                incomplete.append(CallId(rank, place))
                continue
            communicator = place_of.get((call.group, rank, call.communicator), 0)
            series[call.group, call.step, call.graph_launch, communicator][rank].append(CallId(rank, place))
    collectives: list[dict[int, CallId]] = []
    partial: list[dict[int, CallId]] = []
    is_complete: dict[tuple[int, ...], bool] = {}
    for (group, step, *_), by_rank in series.items():
        if group not in is_complete:
            is_complete[group] = set(group) <= calls_of_rank.keys()
        members = group if is_complete[group] else tuple(by_rank)
        found, left = _align(members, by_rank, calls_of_rank, from_end=step == BEFORE_STEPS)
        if is_complete[group]:
            collectives += found
            unmatched += left
        else:
            partial += found if len(members) > 1 else []
            incomplete += [call for calls in by_rank.values() for call in calls]
    peers = _match_peers(calls_of_rank, unmatched, incomplete)
    return Matches(collectives, peers, unmatched, incomplete, partial)


def _communicators(calls_of_rank: Mapping[int, list[Call]]) -> dict[tuple[tuple[int, ...], int, int | None], int]:
    """Number of each communicator among those with the same members: by id where all ranks have the same ids, else by
    order of first use."""
    ids: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, calls in calls_of_rank.items():
        for call in calls:
            if call.group is not None and call.communicator is not None:
                own = ids[call.group][rank]
                if call.communicator not in own:
                    own.append(call.communicator)
    numbers: dict[tuple[tuple[int, ...], int, int | None], int] = {}
    for group, by_rank in ids.items():
        shared = len({frozenset(own) for own in by_rank.values()}) == 1
        for rank, own in by_rank.items():
            for number, identity in enumerate(sorted(own) if shared else own):
                numbers[group, rank, identity] = number
    return numbers


def _align(
    group: tuple[int, ...],
    by_rank: Mapping[int, list[CallId]],
    calls_of_rank: Mapping[int, list[Call]],
    *,
    from_end: bool,
) -> tuple[list[dict[int, CallId]], list[CallId]]:
    """Matches of the members' calls of one step, and the calls left: by sequence number, else by order."""
    if by_rank.keys() != set(group):
        return [], [call for calls in by_rank.values() for call in calls]
    found = _by_sequence_number(by_rank, calls_of_rank)
    if found is None:
        if from_end:
            shortest = min(map(len, by_rank.values()))
            by_rank = {rank: calls[len(calls) - shortest :] for rank, calls in by_rank.items()}
        found = _by_order(by_rank, calls_of_rank)
    used = {call for match in found for call in match.values()}
    return found, [call for calls in by_rank.values() for call in calls if call not in used]


def _by_sequence_number(
    by_rank: Mapping[int, list[CallId]], calls_of_rank: Mapping[int, list[Call]]
) -> list[dict[int, CallId]] | None:
    """Calls with the same sequence number; None where one is missing, or twice on a rank (several communicators)."""
    numbered: dict[int, dict[int | None, CallId]] = {}
    for rank, calls in by_rank.items():
        numbered[rank] = {calls_of_rank[rank][call.place].sequence: call for call in calls}
        if None in numbered[rank] or len(numbered[rank]) < len(calls):
            return None
    first = next(iter(numbered.values()))
    matches = [
        {rank: calls[number] for rank, calls in numbered.items()}
        for number in first
        if all(number in calls for calls in numbered.values())
    ]
    return [m for m in matches if len({calls_of_rank[rank][call.place].kind for rank, call in m.items()}) == 1]


def _by_order(by_rank: Mapping[int, list[CallId]], calls_of_rank: Mapping[int, list[Call]]) -> list[dict[int, CallId]]:
    """Calls aligned to those of the rank with most calls."""
    signatures = {rank: [signature_of(calls_of_rank[rank][c.place]) for c in calls] for rank, calls in by_rank.items()}
    reference = max(signatures.values(), key=len)
    place_of = {rank: _places(reference, own) for rank, own in signatures.items()}
    whole = [i for i in range(len(reference)) if all(i in places for places in place_of.values())]
    return [{rank: by_rank[rank][places[i]] for rank, places in place_of.items()} for i in whole]


def signature_of(call: Call) -> _Signature:
    """Kind and size, which are equal on all members of a collective."""
    return call.kind, (0 if call.kind in _UNEVEN_KINDS else call.num_bytes)


def _places(reference: list[_Signature], own: list[_Signature]) -> dict[int, int]:
    """Index in the reference -> index of its counterpart: equal heads and tails, and common subsequences between."""
    if _agree(reference, own):
        return {i: i for i in range(len(reference))}
    if any(size is None for signatures in (reference, own) for _, size in signatures):
        reference, own = [(kind, 0) for kind, _ in reference], [(kind, 0) for kind, _ in own]
    shorter = min(len(reference), len(own))
    head = next((i for i in range(shorter) if reference[i] != own[i]), shorter)
    tail = next((i for i in range(shorter - head) if reference[-1 - i] != own[-1 - i]), shorter - head)
    places = {i: i for i in range(head)}
    places |= {len(reference) - 1 - i: len(own) - 1 - i for i in range(tail)}
    middle, own_middle = reference[head : len(reference) - tail], own[head : len(own) - tail]
    if len(middle) * len(own_middle) <= _MAX_COMPARISONS:
        for block in SequenceMatcher(None, middle, own_middle, autojunk=False).get_matching_blocks():
            places |= {head + block.a + i: head + block.b + i for i in range(block.size)}
    return places


def _agree(a: list[_Signature], b: list[_Signature]) -> bool:
    """Same kinds and sizes in the same order; an unknown size equals any."""
    return len(a) == len(b) and all(
        x[0] == y[0] and (x[1] == y[1] or None in (x[1], y[1])) for x, y in zip(a, b, strict=True)
    )


def _match_peers(
    calls_of_rank: Mapping[int, list[Call]], unmatched: list[CallId], incomplete: list[CallId]
) -> dict[CallId, list[CallId]]:
    """Each send with its receive: same step, same source, same destination, same ordinal."""
    ends: dict[_End, CallId] = {}
    directed = [
        (CallId(rank, place), call)
        for rank, calls in calls_of_rank.items()
        for place, call in enumerate(calls)
        if call.kind in P2P_KINDS
    ]
    before = Counter(  # calls of each direction before the first step, where positions are counted from the end
        (peer.source, peer.destination, peer.source == call.rank)
        for _, call in directed
        if call.step == BEFORE_STEPS
        for peer in call.peers
    )

    def end_of(call: Call, peer: PeerCall, *, is_send: bool) -> _End:
        direction = (peer.source, peer.destination, peer.source == call.rank)
        ordinal = peer.ordinal - (before[direction] if call.step == BEFORE_STEPS else 0)
        return call.step, peer.source, peer.destination, ordinal, is_send

    for identity, call in directed:
        for peer in call.peers:
            ends[end_of(call, peer, is_send=peer.source == call.rank)] = identity
    peers: dict[CallId, list[CallId]] = {}
    for identity, call in directed:
        others = [ends.get(end_of(call, peer, is_send=peer.source != call.rank)) for peer in call.peers]
        partners = {peer.destination if peer.source == call.rank else peer.source for peer in call.peers}
        if not call.peers or not partners <= calls_of_rank.keys():
            incomplete.append(identity)
        elif any(other is None for other in others):
            unmatched.append(identity)
        else:
            peers[identity] = [other for other in others if other is not None]
    return peers
