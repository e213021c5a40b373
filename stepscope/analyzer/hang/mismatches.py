"""Mismatches (desync): members of a group that call different collectives, and ranks that left the common sequence.

After ranks call different collectives once, all later sequence numbers differ too, so the first mismatch counts. The
ranks that differ from the majority are named; torch's own script takes the first rank as correct. Where a group is
split evenly, other groups with the same description decide which call is usual. Sizes are compared where all members
must agree; those of all-to-all, gather and scatter may differ between ranks.

Transitions: a transition is a call and its predecessor (names, descriptions of their groups, sizes). A rank whose
transition no rank made before has left the common sequence, as groups with one description do the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from stepscope.analyzer.hang.progress import Group, JobProgress, RankProgress
from stepscope.core.documents.hang import FlightDump, Operation

_SAME_SIZE = frozenset(
    ["all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base", "all_gather_into_tensor",
     "reduce_scatter_tensor"]
)  # fmt: skip

_COALESCED = "coalesced"
"""Several calls at once, whose parts the recorder no longer has."""

_Call = tuple[str, int | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A sequence number of a group under which ranks called different collectives.

    Attributes:
        calls: ranks by description of their call: "all_reduce of 4,194,304 Float".
        others: ranks that differ from the majority; all of them without a majority.
    """

    group: Group
    sequence: int
    calls: Mapping[str, tuple[int, ...]]
    others: tuple[int, ...]

    @property
    def has_majority(self) -> bool:
        """Whether a majority made the same call."""
        return len(self.others) < sum(map(len, self.calls.values()))


def first_mismatches(progress: JobProgress) -> list[Mismatch]:
    """First mismatch of each group that has one."""
    return [found for group in progress if (found := _first(group, progress)) is not None]


def _first(group: Group, progress: JobProgress) -> Mismatch | None:
    for sequence in sorted({number for member in progress[group].values() for number in member.calls}):
        callers = _callers(progress[group], sequence)
        if len(callers) > 1:
            usual = _majority(callers) or _majority(_callers_of_similar(group, progress, sequence))
            others = sorted(rank for call, ranks in callers.items() if call != usual for rank in ranks)
            calls = {_describe(call): tuple(ranks) for call, ranks in callers.items()}
            return Mismatch(group, sequence, calls, tuple(others))
    return None


def _callers(ranks: Mapping[int, RankProgress], sequence: int) -> dict[_Call, list[int]]:
    callers: dict[_Call, list[int]] = defaultdict(list)
    for rank, member in sorted(ranks.items()):
        call = member.calls.get(sequence)
        if call is not None and call.name != _COALESCED:
            callers[_key(call)].append(rank)
    return callers


def _callers_of_similar(group: Group, progress: JobProgress, sequence: int) -> dict[_Call, list[int]]:
    """Callers in all groups of the same description and size; tensor-parallel groups do the same at the same time."""
    callers: dict[_Call, list[int]] = defaultdict(list)
    for other, ranks in progress.items():
        if (other.description, len(other.members)) == (group.description, len(group.members)):
            for call, own in _callers(ranks, sequence).items():
                callers[call] += own
    return callers


def _majority(callers: Mapping[_Call, list[int]]) -> _Call | None:
    """The call of more ranks than any other; None in a tie."""
    ordered = sorted(callers, key=lambda call: len(callers[call]), reverse=True)
    return None if len(ordered) > 1 and len(callers[ordered[0]]) == len(callers[ordered[1]]) else ordered[0]


def _key(call: Operation) -> _Call:
    if call.name not in _SAME_SIZE:
        return call.name, None, ()
    return call.name, sum(prod(shape) for shape in call.input_sizes), call.dtypes


def _describe(call: _Call) -> str:
    name, size, dtypes = call
    return name if size is None else f"{name} of {size:,} {', '.join(dict.fromkeys(dtypes))}".rstrip()


_Transition = tuple[object, ...]


def diverged_ranks(dumps: Sequence[FlightDump], calls: Mapping[int, Operation], ranks: Iterable[int]) -> list[int]:
    """Those of the ranks whose call made a transition that no rank had made before."""
    seen: Counter[_Transition] = Counter()
    last: dict[int, _Transition] = {}
    for dump in dumps:
        collectives = [call for call in dump.operations if not call.is_p2p]
        judged = calls.get(dump.rank)
        for before, call in pairwise(collectives):
            transition = (*_kind(before), *_kind(call))
            if judged is not None and call.record == judged.record:
                last[dump.rank] = transition
                break
            seen[transition] += 1
    return sorted(rank for rank in ranks if rank in last and not seen[last[rank]])


def _kind(call: Operation) -> _Transition:
    return call.description, call.name, call.input_sizes
