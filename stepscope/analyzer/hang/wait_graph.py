"""Wait-for graph of a hang: collectives that ranks are in, and that wait for each other.

A rank is in its oldest open collective: NCCL runs the collectives of a device in the order of the calls, as torch makes
each wait for the calls before it. That collective waits for each member that has not called it, or that has called it
behind another one that the member is in. gloo runs each group for itself, so there only the former counts.

If all ranks call the collectives of all groups in one order, no cycle can arise, at whatever moments the dumps were
written: whoever is waited for is in a call that comes earlier in that order. So a cycle is a deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.analyzer.hang.culprits import OpenCall
from stepscope.analyzer.hang.progress import JobProgress, RecordedGroup

_CONCURRENT_BACKENDS = frozenset(["gloo"])
"""Backends that run the collectives of several groups at once."""

_Key = tuple[RecordedGroup, int]


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Collectives that wait for each other.

    Attributes:
        waits_for: by rank in one of these collectives: the ranks in others of them that it waits for.
        behind: by rank: a collective that another rank is in, and that this one has called behind its own.
    """

    waits_for: Mapping[int, frozenset[int]]
    behind: Mapping[int, OpenCall]

    @property
    def awaited(self) -> list[int]:
        """Ranks that others wait for: only these can have left the common order."""
        return sorted(frozenset().union(*self.waits_for.values()))

    @property
    def most_awaited(self) -> list[int]:
        """Ranks for which most others wait, first of those that they wait for as well."""
        num_waiting: Counter[int] = Counter()
        num_mutual: Counter[int] = Counter()
        for rank, others in self.waits_for.items():
            for other in others:
                num_waiting[other] += 1
                num_mutual[other] += rank in self.waits_for[other]
        weight = {rank: (num_mutual[rank], num_waiting[rank]) for rank in num_waiting}
        return [rank for rank in self.awaited if weight[rank] == max(weight.values())]


def find_deadlock(progress: JobProgress, calls: Mapping[int, OpenCall]) -> Deadlock | None:
    """All collectives that wait for each other in cycles; None without a cycle.

    Args:
        calls: oldest open collective of each rank that has one.
    """
    of_key: dict[_Key, OpenCall] = {}
    key_of: dict[int, _Key] = {}
    for rank, one in calls.items():
        key_of[rank] = one.group, one.call.sequence
        of_key.setdefault(key_of[rank], one)
    blockers = {key: _blockers(one, progress, calls) for key, one in of_key.items()}
    cycles = _cycles({key: {key_of[rank] for rank in blocking} for key, blocking in blockers.items()})
    if not cycles:
        return None
    waits_for: dict[_Key, frozenset[int]] = {}
    behind: dict[int, OpenCall] = {}
    for cycle in cycles:
        for key in cycle:
            waits_for[key] = frozenset(rank for rank in blockers[key] if key_of[rank] in cycle)
            behind |= {rank: of_key[key] for rank in waits_for[key] if blockers[key][rank]}
    return Deadlock({rank: waits_for[key] for rank, key in key_of.items() if key in waits_for}, behind)


def _blockers(one: OpenCall, progress: JobProgress, calls: Mapping[int, OpenCall]) -> dict[int, bool]:
    """Ranks in other collectives that this one waits for, and whether they have called it behind theirs."""
    found = {rank: False for rank in one.waits_for if rank in calls}
    if one.call.backend in _CONCURRENT_BACKENDS:
        return found
    for rank, member in progress[one.group].items():
        own, call = calls.get(rank), member.calls.get(one.call.sequence)
        if own is None or call is None or call.is_done or call.started_ns is not None:
            continue
        if own.call.record < call.record:
            found[rank] = True
    return found


def _cycles(next_keys: Mapping[_Key, set[_Key]]) -> list[frozenset[_Key]]:
    """Strongly connected sets of more than one key."""
    position: dict[_Key, int] = {}
    lowest: dict[_Key, int] = {}
    stack: list[_Key] = []
    on_stack: set[_Key] = set()
    found = []
    for root in next_keys:
        if root in position:
            continue
        path = [(root, iter(next_keys[root]))]
        position[root] = lowest[root] = len(position)
        stack.append(root)
        on_stack.add(root)
        while path:
            key, following = path[-1]
            for other in following:
                if other not in position:
                    position[other] = lowest[other] = len(position)
                    stack.append(other)
                    on_stack.add(other)
                    path.append((other, iter(next_keys[other])))
                    break
                if other in on_stack:
                    lowest[key] = min(lowest[key], position[other])
            else:
                path.pop()
                if path:
                    before = path[-1][0]
                    lowest[before] = min(lowest[before], lowest[key])
                if lowest[key] == position[key]:
                    at = stack.index(key)
                    members = stack[at:]
                    del stack[at:]
                    on_stack.difference_update(members)
                    if len(members) > 1:
                        found.append(frozenset(members))
    return found
