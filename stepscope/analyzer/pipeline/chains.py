"""Which ranks make up one pipeline, and in which order do activations travel?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.analyzer.alignment.call import AFTER_STEPS, BEFORE_STEPS, Call
from stepscope.analyzer.alignment.call_words import P2P_KINDS


@dataclass(frozen=True, slots=True)
class Chain:
    """The ranks of one pipeline in the order in which activations travel."""

    ranks: tuple[int, ...]


def find_chains(calls_of_rank: Mapping[int, list[Call]]) -> list[Chain]:
    """Follow the first send of a step from rank to rank: that is the way forward through the pipeline.

    The first stage is the one whose first point-to-point call of a step sends and does not receive.
    """
    first_sent_to: dict[int, int] = {}
    firsts: dict[int, bool] = {}
    for rank, calls in calls_of_rank.items():
        directed = [call for call in calls if call.kind in P2P_KINDS and call.peers]
        directed = [call for call in directed if call.step not in (BEFORE_STEPS, AFTER_STEPS)] or directed
        if not directed:
            continue
        step = directed[0].step
        of_step = [call for call in directed if call.step == step]
        firsts[rank] = all(peer.source == rank for peer in of_step[0].peers)
        sent = [peer.destination for call in of_step for peer in call.peers if peer.source == rank]
        if sent:
            first_sent_to[rank] = sent[0]
    chains = []
    for rank, is_first in firsts.items():
        if not is_first:
            continue
        ranks = [rank]
        while (following := first_sent_to.get(ranks[-1])) is not None and following not in ranks:
            if following not in calls_of_rank or not _sends(calls_of_rank[following], following, ranks[-1]):
                break  # no gradient comes back: not a pipeline
            ranks.append(following)
        if len(ranks) > 1:
            chains.append(Chain(tuple(ranks)))
    return chains


def _sends(calls: list[Call], rank: int, destination: int) -> bool:
    return any(peer.source == rank and peer.destination == destination for call in calls for peer in call.peers)
