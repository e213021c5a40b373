"""Who met in the calls that do not tell their group? (torch before 2.4, engines' own kernels)

Nobody leaves a synchronising collective before everybody has come, so its members' ends coincide. Ranks that make the
same calls in the same order on a stream are told apart into groups by whether their ends coincide. The rivals match
such calls by their order in the stream over all ranks, which takes the four tensor-parallel pairs of a job for one
group of eight; here that is refused, because their ends do not meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.call_words import P2P_KINDS, SYNCHRONIZING_KINDS
from stepscope.analyzer.alignment.clocks import SAME_CLOCK_NS
from stepscope.analyzer.alignment.matching import word_of

ENOUGH_MEETINGS = 8
"""Ranks of different hosts belong together only if this many ends stand equally far apart."""

_Sequence = tuple[tuple[int, tuple[tuple[str, int | None], ...]], ...]
"""By step: what a rank called, in order."""


def with_groups(
    calls_of_rank: Mapping[int, list[Call]], world_size: int, host_of_rank: Mapping[int, str | None]
) -> dict[int, list[Call]]:
    """The calls, with the group filled in where the ends tell it.

    Nothing is filled in when a rank's trace is missing: it could be a member.

    Args:
        calls_of_rank: each rank's calls in issue order, on its own clock.
        world_size: ranks of the job.
        host_of_rank: ranks of one named host share a clock.
    """
    result = {rank: list(calls) for rank, calls in calls_of_rank.items()}
    if len(calls_of_rank) < max(world_size, 2):
        return result
    for places_of_rank in _by_stream(calls_of_rank):
        for ranks in _alike(places_of_rank, calls_of_rank):
            for group in _meeting(ranks, places_of_rank, calls_of_rank, host_of_rank):
                for rank in group:
                    for place in places_of_rank[rank]:
                        result[rank][place] = replace(result[rank][place], group=group)
    return result


def _by_stream(calls_of_rank: Mapping[int, list[Call]]) -> list[dict[int, list[int]]]:
    """The places of groupless calls by rank, one entry a stream. Streams have the same number on all ranks, or else
    the same place among a rank's streams."""
    streams: dict[int, dict[int, list[int]]] = {}
    for rank, calls in calls_of_rank.items():
        own: dict[int, list[int]] = defaultdict(list)
        for place, call in enumerate(calls):
            if call.group is None and call.kind not in P2P_KINDS:
                own[-1 if call.stream is None else call.stream].append(place)
        if own:
            streams[rank] = own
    numbers = {tuple(sorted(own)) for own in streams.values()}
    result: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for rank, own in streams.items():
        for ordinal, number in enumerate(sorted(own)):
            result[number if len(numbers) == 1 else ordinal][rank] = own[number]
    return list(result.values())


def _alike(places_of_rank: Mapping[int, list[int]], calls_of_rank: Mapping[int, list[Call]]) -> list[list[int]]:
    """Ranks that called the same things in the same order in every step."""
    alike: dict[_Sequence, list[int]] = defaultdict(list)
    for rank, places in places_of_rank.items():
        by_step: dict[int, list[tuple[str, int | None]]] = defaultdict(list)
        for place in places:
            call = calls_of_rank[rank][place]
            if call.step >= 0:
                by_step[call.step].append(word_of(call))
        if by_step:
            alike[tuple((step, tuple(words)) for step, words in sorted(by_step.items()))].append(rank)
    return [ranks for ranks in alike.values() if len(ranks) > 1]


def _meeting(
    ranks: Sequence[int],
    places_of_rank: Mapping[int, list[int]],
    calls_of_rank: Mapping[int, list[Call]],
    host_of_rank: Mapping[int, str | None],
) -> list[tuple[int, ...]]:
    """The groups of at least two ranks whose ends coincide."""
    ends = {
        rank: np.array(
            [
                call.end_ns
                for call in (calls_of_rank[rank][place] for place in places_of_rank[rank])
                if call.step >= 0 and call.kind in SYNCHRONIZING_KINDS
            ],
            np.int64,
        )
        for rank in ranks
    }
    groups: list[list[int]] = []
    leaders = np.empty((len(ranks), len(ends[ranks[0]])), np.int64)  # the ends of each group's first rank
    for rank in ranks:
        host = host_of_rank.get(rank)
        same_host = np.array([host is not None and host == host_of_rank.get(group[0]) for group in groups], np.bool_)
        fits = np.flatnonzero(_coincide(ends[rank] - leaders[: len(groups)], same_host))
        if len(fits):
            groups[fits[0]].append(rank)
        else:
            leaders[len(groups)] = ends[rank]
            groups.append([rank])
    return [tuple(sorted(group)) for group in groups if len(group) > 1]


def _coincide(apart: npt.NDArray[np.int64], same_host: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether two ranks leave together: at the same time on one clock, at a steady distance on two.

    Args:
        apart: how much later a rank left than the others, shape (others, calls).
        same_host: whether they share a clock for sure, shape (others,).
    """
    num_calls = apart.shape[1]
    if not num_calls:
        return np.zeros(len(apart), np.bool_)
    middle = np.median(apart, axis=1)
    near = np.abs(middle) <= SAME_CLOCK_NS
    may = near | (~same_host & (num_calls >= ENOUGH_MEETINGS))
    rest = np.abs(apart[may] - np.where(near, 0.0, middle)[may, None])
    # nine in ten: an unlucky end (a preempted rank, a lost record) must not tear a group apart
    place = int(np.ceil(0.9 * (num_calls - 1)))
    together = np.zeros(len(apart), np.bool_)
    together[may] = np.partition(rest, place, axis=1)[:, place] <= SAME_CLOCK_NS
    return together
