"""Progress of each rank in each process group, from its flight-recorder dump.

Groups: a group is its name and its members, as groups made by splitting reuse names; of several groups that a job made
under one name, the newest counts. Progress follows from the recorded calls: torch's own count of a group includes
messages, and is used only for groups without recorded calls. A rank numbers its groups by itself, and the dump maps
only groups with a recorded call to these numbers; the others are matched by order of creation, else by the number that
most other members use.

Timeouts: gloo and NCCL record a call that timed out as completed. But no rank can complete a collective that a member
has not called: such calls beyond the slowest member's last call are open, as is what another member still has open.
It is unknown what a member without a dump called; there the last call that all others share is open. The root of a
broadcast may end before the others come, so such calls are exempt.

Older dumps: if a dump shows a completed collective that a member's dump has not called, that member's dump is older,
and the two cannot be compared. Calls that are open for an instant occur in a healthy job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from stepscope.core.documents.hang import MAX_RANKS, OF_ALL, FlightDump, Operation, group_words


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """Process group of a flight recorder; its members are ranks of the whole job, in the group's own order.

    Attributes:
        is_listed: whether a recorder lists the members; else they are the ranks whose dumps have calls of it.
    """

    name: str
    members: tuple[int, ...]
    description: str
    is_listed: bool

    @property
    def words(self) -> str:
        return group_words(self.name, self.description)

    def __hash__(self) -> int:
        # not of all members, which may be thousands
        return hash((self.name, len(self.members), self.members[:1]))


@dataclass(frozen=True, slots=True)
class RankProgress:
    """Progress of one rank in one process group, by its flight recorder.

    Attributes:
        enqueued, completed: sequence numbers of the newest collective that was called and that ended; 0 if none was.
        calls: recorded collectives by sequence number.
    """

    enqueued: int
    completed: int
    calls: Mapping[int, Operation]

    @property
    def is_open(self) -> bool:
        """Whether a call has not ended."""
        return self.first_open <= self.enqueued

    def has_started(self, sequence: int) -> bool:
        """Whether this collective runs on the device; False also if starts are not recorded."""
        call = self.calls.get(sequence)
        return call is not None and not call.is_done and call.started_ns is not None

    @property
    def first_open(self) -> int:
        """Sequence number of the first open call; the next number if none is open."""
        return min((number for number, call in self.calls.items() if not call.is_done), default=self.enqueued + 1)


JobProgress = dict[RecordedGroup, dict[int, RankProgress]]
"""Progress of the members with dumps, by group."""


def job_progress(dumps: Sequence[FlightDump], world_size: int = 0) -> JobProgress:
    """Progress of each rank in each process group that a flight recorder or its list of groups names.

    `dumps` has at most one dump per rank; `world_size` (0 if unknown) gives the members of groups that are not listed.
    """
    groups = _groups(dumps, world_size)
    ids = _ids(dumps, groups)
    found: JobProgress = defaultdict(dict)
    for dump in dumps:
        newest = _newest_ids(dump)
        calls: dict[str, list[Operation]] = defaultdict(list)  # of several groups with one name, those of the newest
        for operation in dump.operations:
            if operation.group_id == newest[operation.group]:
                calls[operation.group].append(operation)
        for name, group in groups[dump.rank].items():
            calls_of_group = calls.get(name, [])
            found[group][dump.rank] = _rank_progress(dump, ids[dump.rank].get(name), calls_of_group)
    return dict(found)


def _newest_ids(dump: FlightDump) -> dict[str, int]:
    """By name of a group, the rank's own number of the newest group with that name."""
    newest: dict[str, int] = {}
    for operation in dump.operations:
        newest[operation.group] = max(newest.get(operation.group, operation.group_id), operation.group_id)
    return newest


def _rank_progress(dump: FlightDump, group_id: int | None, calls_of_group: Sequence[Operation]) -> RankProgress:
    if not calls_of_group:
        counts = dump.progress.get(group_id) if group_id is not None else None
        enqueued = 0 if counts is None else counts.enqueued or 0
        completed = 0 if counts is None else counts.completed or 0
        return RankProgress(enqueued, min(completed, enqueued), {})
    calls = {call.sequence: call for call in calls_of_group if not call.is_p2p}  # the newest of each number
    enqueued = max(call.sequence for call in calls_of_group)  # a message has the number of the collective before it
    progress = RankProgress(enqueued, enqueued, calls)
    return replace(progress, completed=progress.first_open - 1)  # open calls are always recorded


def _groups(dumps: Sequence[FlightDump], world_size: int) -> dict[int, dict[str, RecordedGroup]]:
    """Groups of each rank by name."""
    callers: dict[str, set[int]] = defaultdict(set)
    descriptions: dict[str, str] = {}
    for dump in dumps:
        descriptions.update(dump.descriptions)
        for operation in dump.operations:
            callers[operation.group].add(dump.rank)
            descriptions.setdefault(operation.group, operation.description)
    made: dict[RecordedGroup, RecordedGroup] = {}
    everybody = tuple(range(min(max(_min_world_size(descriptions, callers), world_size), MAX_RANKS)))

    def group(name: str, listed: tuple[int, ...] | None) -> RecordedGroup:
        description = descriptions.get(name, "")
        unlisted = everybody if description == OF_ALL else tuple(sorted(callers[name]))
        new = RecordedGroup(name, listed or unlisted, description, is_listed=listed is not None)
        return made.setdefault(new, new)  # one object for all ranks: identity is compared first

    of_rank = {}
    for dump in dumps:
        names = dict.fromkeys([*dump.groups, *(operation.group for operation in dump.operations)])
        of_rank[dump.rank] = {name: group(name, dump.groups.get(name)) for name in names}
    return of_rank


def _min_world_size(descriptions: Mapping[str, str], callers: Mapping[str, set[int]]) -> int:
    """Lower bound of the world size: groups with one description are equally large, even if a member has no dump."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for name, ranks in callers.items():
        if descriptions.get(name) not in ("", OF_ALL):
            sizes[descriptions[name]].append(len(ranks))
    highest = 1 + max((rank for ranks in callers.values() for rank in ranks), default=-1)
    return max([highest, *(len(own) * max(own) for own in sizes.values())])


def _ids(dumps: Sequence[FlightDump], groups: Mapping[int, Mapping[str, RecordedGroup]]) -> dict[int, dict[str, int]]:
    """The rank's own numbers of its groups, by rank and name."""
    own = {dump.rank: _by_order(dump, {call.group: call.group_id for call in dump.operations}) for dump in dumps}
    used: dict[RecordedGroup, Counter[int]] = defaultdict(Counter)
    for rank, ids in own.items():
        for name, number in ids.items():
            if name in groups[rank]:
                used[groups[rank][name]][number] += 1
    for rank, ids in own.items():
        taken = set(ids.values())
        for name, group in groups[rank].items():
            if name not in ids and used[group]:
                number = used[group].most_common(1)[0][0]
                if number not in taken:
                    ids[name] = number
    return own


def _by_order(dump: FlightDump, ids: dict[str, int]) -> dict[str, int]:
    """All numbers if names and numbers agree: both count up in order of creation."""
    names = dump.groups
    if len(names) == len(dump.progress) and all(name.isdecimal() for name in names):
        ordered = dict(zip(sorted(names, key=int), sorted(dump.progress), strict=True))
        if all(ordered.get(name) == number for name, number in ids.items()):
            return ordered
    return ids


_MAY_END_ALONE = frozenset(["broadcast", "scatter", "gather", "reduce"])


def with_timeouts_open(dumps: Sequence[FlightDump], world_size: int) -> list[FlightDump]:
    """Flight recorder dumps with calls open again that timed out and cannot have completed."""
    if not any(call.is_given_up for dump in dumps for call in dump.operations):
        return list(dumps)
    first_open: dict[tuple[int, str], int] = {}
    for group, ranks in job_progress(dumps, world_size).items():
        called_by_all = min(member.enqueued for member in ranks.values()) - (len(ranks) < len(group.members))
        still_open = min((member.first_open for member in ranks.values()), default=called_by_all)
        for rank in ranks:
            first_open[rank, group.name] = min(called_by_all + 1, still_open)

    def reopened(dump: FlightDump) -> FlightDump:
        newest = _newest_ids(dump)  # an older group of the same name has its own sequence numbers

        def is_open(call: Operation) -> bool:
            needs_all = not call.is_p2p and call.name not in _MAY_END_ALONE
            is_uncertain = call.is_given_up and needs_all and call.group_id == newest[call.group]
            return is_uncertain and call.sequence >= first_open[dump.rank, call.group]

        calls = (replace(call, is_done=False) if is_open(call) else call for call in dump.operations)
        return replace(dump, operations=tuple(calls))

    return [reopened(dump) for dump in dumps]


MIN_WAIT_SECONDS = 1.0
_SYNCHRONIZING = (
    "all_reduce",
    "all_gather",
    "_all_gather",
    "reduce_scatter",
    "_reduce_scatter",
    "all_to_all",
    "barrier",
)
"""Name prefixes of collectives that no member completes before all have called them."""


@dataclass(frozen=True, slots=True)
class OlderDump:
    """Flight recorder dump older than that of rank `than`, which completed a call that this rank had not made."""

    rank: int
    than: int
    call: Operation
    group: RecordedGroup


def older_dumps(progress: JobProgress) -> list[OlderDump]:
    """Ranks with an older flight recorder dump, each once."""
    found: dict[int, OlderDump] = {}
    for group, ranks in progress.items():
        for than, member in ranks.items():
            completed = [call for call in member.calls.values() if _ended_for_all(call)]
            if not completed:
                continue
            last = max(completed, key=lambda call: call.sequence)
            for rank, other in ranks.items():
                if other.enqueued < last.sequence:
                    found.setdefault(rank, OlderDump(rank, than, last, group))
    return [older for _, older in sorted(found.items())]


def longest_wait_seconds(dumps: Sequence[FlightDump]) -> float | None:
    """Longest time that a call was open when its flight recorder was dumped; None if unknown."""
    waits = (
        (dump.written_ns - call.created_ns) / 1e9
        for dump in dumps
        for call in dump.operations
        if not call.is_done and call.created_ns is not None and dump.written_ns is not None
    )
    return max(waits, default=None)


def _ended_for_all(call: Operation) -> bool:
    """Whether the call certainly ended and had a part of every member; an empty call has none."""
    sizes = call.input_sizes or call.output_sizes
    has_part = not sizes or any(prod(shape) for shape in sizes)
    return call.is_done and not call.is_given_up and has_part and call.name.startswith(_SYNCHRONIZING)
