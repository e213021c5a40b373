"""Communication calls: their kinds, and which calls on different ranks are the same operation.

Idea: collectives match by the group's sequence number where recorded, else by position among the collectives of their
communicator within a step (within a graph launch of the step), with equal kinds and sizes; where members differ, by
the longest common subsequence. Positions are never counted from the start of the file, as profilers start at different
times. Point-to-point calls match by position among the calls from source to destination in the step.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

_NAMES_OF_KIND = {
    "all_reduce": "allreduce all_reduce allreduce_coalesced all_reduce_coalesced multimem_all_reduce",
    "all_gather": "allgather all_gather _allgather_base _all_gather_base _allgather_base_coalesced "
    "all_gather_into_tensor all_gather_into_tensor_coalesced allgather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter _reduce_scatter_base reduce_scatter_tensor reduce_scatter_tensor_coalesced "
    "_reduce_scatter_base_coalesced",
    "all_to_all": "all_to_all all_to_allv all_to_all_single alltoall alltoall_base",
    "barrier": "barrier all_reduce_barrier",
    "broadcast": "broadcast _broadcast_oop",
    "scatter": "scatter",
    "reduce": "reduce _reduce_oop",
    "gather": "gather",
    "send": "send",
    "recv": "recv",
}
_KIND_OF_NAME = {name: kind for kind, names in _NAMES_OF_KIND.items() for name in names.split()}
_KIND_IN_NAME = (
    (re.compile(r"send_?recv|sendrecv", re.IGNORECASE), "p2p"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
)
_NAMESPACE = re.compile(r"^(?:nccl|rccl|gloo|c10d|_c10d_functional|vllm|sglang|symm_mem):{1,2}")
"""Prefixes of the spans of communication operators and backends."""

NO_TRANSFER = frozenset({"wait", "init", "init_ranks", "comms_init"})
"""Recorded like collectives, but without a transfer."""
P2P_KINDS = frozenset({"send", "recv", "p2p"})
SYNCHRONIZING_KINDS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""No member leaves before all have arrived."""
FROM_ROOT_KINDS = frozenset({"broadcast", "scatter"})
"""All members wait for the root, the root for nobody."""
TO_ROOT_KINDS = frozenset({"reduce", "gather"})
"""The root waits for all members, the others for nobody."""


def collective_kind(word: str) -> str:
    """Kind (all_reduce, ...) of a recorded `Collective name`; unknown names stay as they are."""
    return _KIND_OF_NAME.get(word.lower(), word.lower())


def collective_kind_of_kernel(kernel_name: str) -> str:
    """Kind of collective by a communication kernel's name, or `unknown` (RCCL calls all of them Generic)."""
    return next((kind for pattern, kind in _KIND_IN_NAME if pattern.search(kernel_name)), "unknown")


@lru_cache(maxsize=4096)
def collective_kind_of_span(name: str) -> str | None:
    """Kind of a collective operator's or backend's span (`nccl:all_to_all`, `c10d::allreduce_`), else None."""
    namespace = _NAMESPACE.match(name)
    if namespace is None:
        return None
    word = name[namespace.end() :].split(" ")[0]
    return _KIND_OF_NAME.get(word) or _KIND_OF_NAME.get(word.rstrip("_"))


BEFORE_STEPS = -1
"""Step of a call that was launched before the first profiled step."""

AFTER_STEPS = -2
"""Step of a call that was launched after the last one, or in a trace without steps."""


class PeerCall(NamedTuple):
    """One direction of a point-to-point call; `ordinal` counts the calls from source to destination in the step."""

    source: int
    destination: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Call:
    """One communication call (collective, send or receive) of one rank, as it ran on the device or else on the host.

    Attributes:
        start_ns, end_ns: on the rank's clock.
        step: the step number it was launched in, or BEFORE_STEPS, or AFTER_STEPS.
        group: member ranks, or None where unknown.
        kind: all_reduce, all_gather, ..., send, recv, p2p (several directions at once), unknown.
        num_bytes: the larger of input and output on this rank, summed over a coalesced group; or None.
        peers: the directions of a point-to-point call; empty for the others.
        served_ns: without a device, how long the backend worked on it and waited for other ranks, without its own
            queue; None where unknown.
        dtype: its elements' type, in lower case (float, bfloat16, int), or None where unknown or mixed.
        described: whether the trace records the call's arguments.
        sequence: the group's sequence number (torch >= 2.12), or None.
        communicator: id of its communicator among those with these members (torch >= 2.12), or None.
        root: the root of a rooted kind, or None.
        stream: device stream, or None without a device.
        graph_launch: index of its CUDA or HIP graph launch in the step, or None.
        dimension: parallel dimension: tp, pp, dp, ep, cp, or None.
        awaited_ns: without a device, from when the thread waits for nothing but this call; None: from the start.
        asked_ns: without a device, when the thread asked for its completion; None: when it ended.
    """

    rank: int
    start_ns: int
    end_ns: int
    step: int
    group: tuple[int, ...] | None
    kind: str
    num_bytes: int | None
    peers: tuple[PeerCall, ...]
    described: bool
    sequence: int | None = None
    communicator: int | None = None
    root: int | None = None
    stream: int | None = None
    graph_launch: int | None = None
    dimension: str | None = None
    awaited_ns: int | None = None
    asked_ns: int | None = None
    dtype: str | None = None
    served_ns: int | None = None

    @property
    def exposed_from_ns(self) -> int:
        """Start of the exposed part; before, the thread had issued the call and went on with something else."""
        return self.start_ns if self.awaited_ns is None else min(max(self.start_ns, self.awaited_ns), self.end_ns)


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


class CallId(NamedTuple):
    """One collective, send or receive: the rank and its index in that rank's list of calls."""

    rank: int
    place: int


@dataclass(frozen=True, slots=True)
class Matches:
    """Communication calls of different ranks that are one collective or message.

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
    """Match the collectives, sends and receives of all loaded ranks. Each list is in issue order."""
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
    signatures = {
        rank: [collective_signature(calls_of_rank[rank][c.place]) for c in calls] for rank, calls in by_rank.items()
    }
    reference = max(signatures.values(), key=len)
    place_of = {rank: _places(reference, own) for rank, own in signatures.items()}
    whole = [i for i in range(len(reference)) if all(i in places for places in place_of.values())]
    return [{rank: by_rank[rank][places[i]] for rank, places in place_of.items()} for i in whole]


def collective_signature(call: Call) -> _Signature:
    """Kind and size, which are equal on all members of a collective."""
    return call.kind, (0 if call.kind in _UNEVEN_KINDS else call.num_bytes)


def _places(reference: list[_Signature], own: list[_Signature]) -> dict[int, int]:
    """Index in the reference -> index of its counterpart: equal heads and tails, and common subsequences between."""
    pairs = zip(reference, own, strict=False)
    if len(reference) == len(own) and all(x[0] == y[0] and (x[1] == y[1] or None in (x[1], y[1])) for x, y in pairs):
        return {i: i for i in range(len(reference))}  # an unknown size equals any
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
