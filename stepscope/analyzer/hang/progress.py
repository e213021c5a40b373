"""Progress of each rank in each process group, from its flight-recorder dump.

Standings: A group is its name and its members: groups made by splitting reuse names; of those that a job made anew
under their old names, the newest counts. The recorded calls tell how far a rank is: torch's own count of a group has
messages in it as well, and is asked only of groups of which no call is left. A rank numbers its groups for itself,
and says only for groups of which the recorder still has a call which number is which; the others are found by their
order, in which they were made, else by what most of the other members call them.

Given up: gloo says of a call that timed out what it says of one that completed, and NCCL that it did. But none can
complete a collective that a member has not called: what is given up beyond the slowest member's last call is still
open. Of a member without a dump it is not known what it called: there the last call that all others share is open.
What one member still has open no other has completed. A root's part in a broadcast is an exception: it may end before
anybody comes.

Moments: No rank completes a collective that a member has not called. Where a dump says so, the member's own is an
older one, and nothing can be told from both. A call that is open for an instant is a healthy job's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from stepscope.core.documents.hang import MOST_RANKS, OF_ALL, FlightDump, Operation


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its members are ranks of the whole job, in the group's own order.

    Attributes:
        is_listed: a recorder says who the members are; else they are those whose dumps have calls of it.
    """

    name: str
    members: tuple[int, ...]
    description: str
    is_listed: bool

    def __hash__(self) -> int:
        return hash(
            (self.name, len(self.members), self.members[:1])
        )  # not of all members, of whom there may be thousands


@dataclass(frozen=True, slots=True)
class RankProgress:
    """One rank in one group.

    Attributes:
        enqueued, completed: sequence numbers of the newest collective that was called, and that ended; 0: none was.
        calls: what the recorder still has of its collectives, by sequence number.
    """

    enqueued: int
    completed: int
    calls: Mapping[int, Operation]

    @property
    def is_open(self) -> bool:
        """Whether a call has not ended."""
        return self.first_open <= self.enqueued

    def has_started(self, sequence: int) -> bool:
        """Whether this collective has begun on the device and runs; False also where that is not told."""
        call = self.calls.get(sequence)
        return call is not None and not call.is_done and call.started_ns is not None

    @property
    def first_open(self) -> int:
        """Number of the first call that has not ended; the next one where all have."""
        return min((number for number, call in self.calls.items() if not call.is_done), default=self.enqueued + 1)


GroupProgress = dict[Group, dict[int, RankProgress]]
"""Of each group, the members whose dumps are there."""


def group_progress(dumps: Sequence[FlightDump], world_size: int = 0) -> GroupProgress:
    """How far each rank is in each group that any recorder or its list of groups names.

    Args:
        dumps: at most one of each rank.
        world_size: of the job, where it is known; for the members of groups that no recorder lists.
    """
    groups = _groups(dumps, world_size)
    ids = _ids(dumps, groups)
    found: GroupProgress = defaultdict(dict)
    for dump in dumps:
        calls = _newest_calls(dump)
        for name, group in groups[dump.rank].items():
            of_group = calls.get(name, [])
            found[group][dump.rank] = _rank_progress(dump, ids[dump.rank].get(name), of_group)
    return dict(found)


def newest_ids(dump: FlightDump) -> dict[str, int]:
    """By name of a group, the rank's own number of the one of this name that was made last."""
    newest: dict[str, int] = {}
    for operation in dump.operations:
        newest[operation.group] = max(newest.get(operation.group, operation.group_id), operation.group_id)
    return newest


def _newest_calls(dump: FlightDump) -> dict[str, list[Operation]]:
    """By name of the group; of groups of one name those of the group made last."""
    newest = newest_ids(dump)
    calls: dict[str, list[Operation]] = defaultdict(list)
    for operation in dump.operations:
        if operation.group_id == newest[operation.group]:
            calls[operation.group].append(operation)
    return calls


def _rank_progress(dump: FlightDump, group_id: int | None, of_group: Sequence[Operation]) -> RankProgress:
    if not of_group:
        told = dump.progress.get(group_id) if group_id is not None else None
        enqueued = (told.enqueued or 0) if told is not None else 0
        return RankProgress(enqueued, min((told.completed or 0) if told is not None else 0, enqueued), {})
    calls = {call.sequence: call for call in of_group if not call.is_p2p}  # the newest of one number
    enqueued = max(call.sequence for call in of_group)  # a message has that of the collective before it
    standing = RankProgress(enqueued, enqueued, calls)
    return replace(standing, completed=standing.first_open - 1)  # what is open is always recorded


def _groups(dumps: Sequence[FlightDump], world_size: int) -> dict[int, dict[str, Group]]:
    """Of each rank, its groups by their name."""
    callers: dict[str, set[int]] = defaultdict(set)
    descriptions: dict[str, str] = {}
    for dump in dumps:
        descriptions.update(dump.descriptions)
        for operation in dump.operations:
            callers[operation.group].add(dump.rank)
            descriptions.setdefault(operation.group, operation.description)
    made: dict[Group, Group] = {}
    everybody = tuple(range(min(max(_least_world(descriptions, callers), world_size), MOST_RANKS)))

    def group(name: str, listed: tuple[int, ...] | None) -> Group:
        description = descriptions.get(name, "")
        unlisted = everybody if description == OF_ALL else tuple(sorted(callers[name]))
        one = Group(name, listed or unlisted, description, is_listed=listed is not None)
        return made.setdefault(one, one)  # the same for all, which is found faster than an equal one

    of_rank = {}
    for dump in dumps:
        names = dict.fromkeys([*dump.groups, *(operation.group for operation in dump.operations)])
        of_rank[dump.rank] = {name: group(name, dump.groups.get(name)) for name in names}
    return of_rank


def _least_world(descriptions: Mapping[str, str], callers: Mapping[str, set[int]]) -> int:
    """How many ranks there are at least: groups of one meaning are equally large, whoever of them left a dump."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for name, ranks in callers.items():
        if descriptions.get(name) not in ("", OF_ALL):
            sizes[descriptions[name]].append(len(ranks))
    highest = 1 + max((rank for ranks in callers.values() for rank in ranks), default=-1)
    return max([highest, *(len(of) * max(of) for of in sizes.values())])


def _ids(dumps: Sequence[FlightDump], groups: Mapping[int, Mapping[str, Group]]) -> dict[int, dict[str, int]]:
    """Of each rank, its own numbers of its groups."""
    own = {dump.rank: _by_order(dump, {call.group: call.group_id for call in dump.operations}) for dump in dumps}
    told: dict[Group, Counter[int]] = defaultdict(Counter)
    for rank, ids in own.items():
        for name, number in ids.items():
            if name in groups[rank]:
                told[groups[rank][name]][number] += 1
    for rank, ids in own.items():
        taken = set(ids.values())
        for name, group in groups[rank].items():
            if name not in ids and told[group]:
                number = told[group].most_common(1)[0][0]
                if number not in taken:
                    ids[name] = number
    return own


def _by_order(dump: FlightDump, ids: dict[str, int]) -> dict[str, int]:
    """All numbers, where each group has made a call: both count up in the order of their making."""
    names = dump.groups
    if len(names) == len(dump.progress) and all(name.isdecimal() for name in names):
        ordered = dict(zip(sorted(names, key=int), sorted(dump.progress), strict=True))
        if all(ordered.get(name) == number for name, number in ids.items()):
            return ordered
    return ids


_ENDS_ALONE = frozenset(["broadcast", "scatter", "gather", "reduce"])


def with_timeouts_open(dumps: Sequence[FlightDump], world_size: int) -> list[FlightDump]:
    """The dumps, in which calls are open again that cannot have completed."""
    if not any(call.is_given_up for dump in dumps for call in dump.operations):
        return list(dumps)
    first_open: dict[tuple[int, str], int] = {}
    for group, ranks in group_progress(dumps, world_size).items():
        called_by_all = min(standing.enqueued for standing in ranks.values()) - (len(ranks) < len(group.members))
        still_open = min((standing.first_open for standing in ranks.values()), default=called_by_all)
        for rank in ranks:
            first_open[rank, group.name] = min(called_by_all + 1, still_open)

    def reopened(dump: FlightDump) -> FlightDump:
        newest = newest_ids(dump)  # an older group of the same name counts its calls for itself

        def is_open(call: Operation) -> bool:
            needs_all = not call.is_p2p and call.name not in _ENDS_ALONE
            is_false = call.is_given_up and needs_all and call.group_id == newest[call.group]
            return is_false and call.sequence >= first_open[dump.rank, call.group]

        calls = (replace(call, is_done=False) if is_open(call) else call for call in dump.operations)
        return replace(dump, operations=tuple(calls))

    return [reopened(dump) for dump in dumps]


LEAST_WAIT_SECONDS = 1.0
_NS = 1e9
_ALL_WAIT = ("all_reduce", "all_gather", "_all_gather", "reduce_scatter", "_reduce_scatter", "all_to_all", "barrier")
"""How the names of collectives begin that nobody completes before all have called."""


@dataclass(frozen=True, slots=True)
class OlderDump:
    """A rank whose dump is older than another's, which completed a call that this one had not made by then."""

    rank: int
    than: int
    call: Operation
    group: Group


def older_dumps(standings: GroupProgress) -> list[OlderDump]:
    """Each rank once."""
    found: dict[int, OlderDump] = {}
    for group, ranks in standings.items():
        for than, standing in ranks.items():
            completed = [call for call in standing.calls.values() if _was_common(call)]
            if not completed:
                continue
            last = max(completed, key=lambda call: call.sequence)
            for rank, other in ranks.items():
                if other.enqueued < last.sequence:
                    found.setdefault(rank, OlderDump(rank, than, last, group))
    return [older for _, older in sorted(found.items())]


def longest_wait_seconds(dumps: Sequence[FlightDump]) -> float | None:
    """Of the calls that were open when a dump was written; None where it is not known of any."""
    return max(_waits(dumps), default=None)


def _waits(dumps: Iterable[FlightDump]) -> Iterator[float]:
    for dump in dumps:
        for call in dump.operations:
            if not call.is_done and call.created_ns is not None and dump.written_ns is not None:
                yield (dump.written_ns - call.created_ns) / _NS


def _was_common(call: Operation) -> bool:
    """Whether it is sure that it ended, and that all members had a part in it; none has in what is empty."""
    sizes = call.input_sizes or call.output_sizes
    has_part = not sizes or any(prod(shape) for shape in sizes)
    return call.is_done and not call.is_given_up and has_part and call.name.startswith(_ALL_WAIT)
