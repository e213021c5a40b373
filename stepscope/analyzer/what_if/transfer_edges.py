"""Edges between ranks in a job's dependency graph: a communication ends one transfer after the last needed arrival.

Each member of a small collective waits for each other. For a large one a node stands for the last arrival, so that the
graph grows with the members and not with their square.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.collectives.calls import (
    FROM_ROOT_KINDS,
    SYNCHRONIZING_KINDS,
    TO_ROOT_KINDS,
    Call,
    CallId,
    Matches,
)
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.what_if.graph_layout import EdgeBlock, EdgeKind, GraphLayout, edge_block

LARGE_COLLECTIVE = 4
"""Members from which on they wait for one node, the last arrival, instead of each for all others."""


class _Meeting(NamedTuple):
    """Arrivals that all members of a collective need: those with a graph, the last, and its node's key."""

    members: list[CallId]
    last_ns: int
    key: int


class TransferEdges(NamedTuple):
    """Dependency edges that let each communication end one transfer after the last arrival that it needs.

    Attributes:
        edges: from arrivals to ends.
        arrivals: from arrivals to the last arrivals of large collectives.
        transfer_ns: of each communication.
        key: by last arrival, which orders the nodes.
        num_unmatched: communications without a partner, whose measured duration counts as transfer.
    """

    edges: EdgeBlock
    arrivals: EdgeBlock
    transfer_ns: Nanoseconds
    key: Nanoseconds
    num_unmatched: int


def transfer_edges(
    layout: GraphLayout,
    calls_of_rank: Mapping[int, Sequence[Call]],
    matches: Matches,
    start_key: Nanoseconds,
    end_key: Nanoseconds,
) -> TransferEdges:
    """The edges between ranks, given the keys that order the starts of activities and the ends of communications."""

    def communication(call: CallId) -> int:
        return layout.parts[call.rank].first_communication + call.place

    needed = _needed(calls_of_rank, matches)
    meetings: dict[int, _Meeting] = {}
    for arrivals in needed.values():
        if id(arrivals) not in meetings and len(arrivals) >= LARGE_COLLECTIVE:
            members = [member for member in arrivals if member.rank in layout.parts]
            last_ns = max((calls_of_rank[member.rank][member.place].start_ns for member in members), default=0)
            activities = layout.activity_of_communication[[communication(member) for member in members]]
            meetings[id(arrivals)] = _Meeting(members, last_ns, int(start_key[activities].max(initial=0)))
    number_of = {identity: number for number, identity in enumerate(meetings)}
    history = layout.joined(lambda graph: graph.device.is_history)
    source: list[int] = []
    target: list[int] = []
    waits_for: list[tuple[int, int]] = []
    transfer: list[int] = []
    unmatched = 0
    for rank, part in layout.parts.items():
        for place, call in enumerate(calls_of_rank[rank]):
            number = part.first_communication + place
            arrivals = needed.get(CallId(rank, place), [])
            meeting = meetings.get(id(arrivals))
            if meeting is not None and meeting.last_ns <= call.end_ns and meeting.key < end_key[number]:
                others = [CallId(rank, place)]
                last_ns = meeting.last_ns
                waits_for.append((number_of[id(arrivals)], number))
            else:
                others = [
                    other
                    for other in arrivals
                    if other.rank in layout.parts and calls_of_rank[other.rank][other.place].start_ns <= call.end_ns
                ]
                last_ns = max((calls_of_rank[o.rank][o.place].start_ns for o in others), default=call.start_ns)
            is_history = history[layout.activity_of_communication[number]]
            unmatched += not others and not is_history and (call.group is None or len(call.group) > 1)
            transfer.append(call.end_ns - max(call.start_ns, last_ns))
            for one in {CallId(rank, place), *others}:
                source.append(communication(one))
                target.append(number)
    starts = layout.start_nodes(layout.activity_of_communication[np.array(source, np.int64)])
    last, waiting = np.array(waits_for, np.int64).reshape(-1, 2).T
    item = np.concatenate((np.array(target, np.int64), waiting))
    block = edge_block(
        EdgeKind.TRANSFER,
        np.concatenate((starts, layout.arrival_nodes(last))),
        layout.end_nodes(item),
        0,
        item=item,
    )
    block = block.only(~history[layout.activity_of_communication[item]])  # history keeps its measured times
    arrived = [communication(member) for meeting in meetings.values() for member in meeting.members]
    own = np.repeat(np.arange(len(meetings)), [len(meeting.members) for meeting in meetings.values()])
    arrive = layout.start_nodes(layout.activity_of_communication[np.array(arrived, np.int64)])
    return TransferEdges(
        block,
        edge_block(EdgeKind.ARRIVAL, arrive, layout.arrival_nodes(own), 0),
        np.array(transfer, np.int64),
        np.array([meeting.key for meeting in meetings.values()], np.int64),
        unmatched,
    )


def _needed(calls_of_rank: Mapping[int, Sequence[Call]], matches: Matches) -> dict[CallId, list[CallId]]:
    """Arrivals that each call needs: of all members where its kind synchronises, else of the root, or at the root of
    all; for a point-to-point call, of its partners. Calls that need the same ones share a list."""
    needed: dict[CallId, list[CallId]] = dict(matches.peers)
    for match in matches.collectives:
        calls = {rank: calls_of_rank[rank][call.place] for rank, call in match.items()}
        kinds = {call.kind for call in calls.values()}
        roots = {call.root for call in calls.values()}
        if kinds <= SYNCHRONIZING_KINDS:
            everyone = list(match.values())
            needed |= dict.fromkeys(everyone, everyone)
        elif kinds <= FROM_ROOT_KINDS and len(roots) == 1 and (root := roots.pop()) in match:
            needed |= {call: [match[root]] for call in match.values()}
        elif kinds <= TO_ROOT_KINDS and len(roots) == 1 and (root := roots.pop()) in match:
            needed |= {call: [call] for call in match.values()} | {match[root]: list(match.values())}
    return needed
