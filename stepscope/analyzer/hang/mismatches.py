"""Mismatches (desync): members of a group that call different collectives, ranks that left the loop.

Mismatches: Where they did not, all later numbers differ too: the first one counts. Who differs from most is named;
torch's own script takes the first rank for right. Where a group's two halves disagree, groups of the same meaning
tell which is usual. Sizes are compared where all must agree; those of all-to-all, gather and scatter may differ from
rank to rank.

Ways: A way is a call and the one before it: what they are, of groups of which meaning and how large. What any rank
did before counts, as groups of one meaning do the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from stepscope.analyzer.hang.progress import Group, GroupProgress, RankProgress
from stepscope.core.documents.hang import FlightDump, Operation

_SAME_SIZE = frozenset(
    ["all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base", "all_gather_into_tensor",
     "reduce_scatter_tensor"]
)  # fmt: skip

_UNKNOWN = "coalesced"
"""Several calls at once, of which the recorder no longer has the parts."""

_Call = tuple[str, int | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One number of a group under which ranks called different things.

    Attributes:
        calls: what was called by whom: "all_reduce of 4,194,304 Float".
        others: ranks that differ from most; all of them where no call has most.
    """

    group: Group
    sequence: int
    calls: Mapping[str, tuple[int, ...]]
    others: tuple[int, ...]

    @property
    def has_majority(self) -> bool:
        """Whether most agree."""
        return len(self.others) < sum(map(len, self.calls.values()))


def first_mismatches(standings: GroupProgress) -> list[Mismatch]:
    """Of each group that has one, its first."""
    return [found for group in standings if (found := _first(group, standings)) is not None]


def _first(group: Group, standings: GroupProgress) -> Mismatch | None:
    for sequence in sorted({number for standing in standings[group].values() for number in standing.calls}):
        callers = _callers(standings[group], sequence)
        if len(callers) > 1:
            usual = _most(callers) or _most(_callers_of_alike(group, standings, sequence))
            others = sorted(rank for call, ranks in callers.items() if call != usual for rank in ranks)
            calls = {_words(call): tuple(ranks) for call, ranks in callers.items()}
            return Mismatch(group, sequence, calls, tuple(others))
    return None


def _callers(ranks: Mapping[int, RankProgress], sequence: int) -> dict[_Call, list[int]]:
    callers: dict[_Call, list[int]] = defaultdict(list)
    for rank, standing in sorted(ranks.items()):
        call = standing.calls.get(sequence)
        if call is not None and call.name != _UNKNOWN:
            callers[_key(call)].append(rank)
    return callers


def _callers_of_alike(group: Group, standings: GroupProgress, sequence: int) -> dict[_Call, list[int]]:
    """The callers of all groups of the same meaning and size: tensor-parallel groups do the same at the same time."""
    callers: dict[_Call, list[int]] = defaultdict(list)
    for other, ranks in standings.items():
        if (other.description, len(other.members)) == (group.description, len(group.members)):
            for call, of in _callers(ranks, sequence).items():
                callers[call] += of
    return callers


def _most(callers: Mapping[_Call, list[int]]) -> _Call | None:
    """What more ranks call than anything else; None where two calls are level."""
    ordered = sorted(callers, key=lambda call: len(callers[call]), reverse=True)
    return None if len(ordered) > 1 and len(callers[ordered[0]]) == len(callers[ordered[1]]) else ordered[0]


def _key(call: Operation) -> _Call:
    if call.name not in _SAME_SIZE:
        return call.name, None, ()
    return call.name, sum(prod(shape) for shape in call.input_sizes), call.dtypes


def _words(call: _Call) -> str:
    name, size, dtypes = call
    return name if size is None else f"{name} of {size:,} {', '.join(dict.fromkeys(dtypes))}".rstrip()


_Transition = tuple[object, ...]


def diverged_ranks(dumps: Sequence[FlightDump], calls: Mapping[int, Operation], ranks: Iterable[int]) -> list[int]:
    """Those of the ranks whose call followed the one before it for the first time."""
    gone: Counter[_Transition] = Counter()
    last: dict[int, _Transition] = {}
    for dump in dumps:
        collectives = [call for call in dump.operations if not call.is_p2p]
        judged = calls.get(dump.rank)
        for before, call in pairwise(collectives):
            way = (*_kind(before), *_kind(call))
            if judged is not None and call.record == judged.record:
                last[dump.rank] = way
                break
            gone[way] += 1
    return sorted(rank for rank in ranks if rank in last and not gone[last[rank]])


def _kind(call: Operation) -> _Transition:
    return call.description, call.name, call.input_sizes
