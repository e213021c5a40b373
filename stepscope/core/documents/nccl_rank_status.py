"""State of ranks as NCCL's RAS service and xpu_timer report it, and which ranks are behind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stepscope.core.documents.hang import MAX_RANKS


@dataclass(frozen=True, slots=True)
class RasRank:
    """State of a rank in RAS; counts of collectives by kind, empty where the rank does not answer.

    Attributes:
        error: NCCL's name of the error that the rank reports, else empty.
    """

    rank: int
    host: str
    process: int
    counts: dict[str, int] = field(default_factory=dict)
    is_unresponsive: bool = False
    is_dead: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class RasGroup:
    """Ranks of a communicator that RAS's text reports together.

    Attributes:
        num_ranks: all of them.
        what: "launched up to operation 6649".
        collective: the kind whose calls `operation` counts: "AllGather"; empty where RAS counts all kinds together.
        operation: number of the last call; 0 before the first; None where `what` is no count.
        ranks: those that are named; none of a majority.
    """

    num_ranks: int
    what: str
    collective: str = ""
    operation: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """State of a communicator in RAS.

    Attributes:
        ranks: those that RAS lists individually; in its JSON all.
        groups: of its text form, where ranks differ.
    """

    id: str
    size: int | None
    ranks: tuple[RasRank, ...] = ()
    missing: tuple[RasRank, ...] = ()
    groups: tuple[RasGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class RasRow:
    """Communicators of one size and state, as RAS's table sums them up: "RUNNING", "MISMATCH"."""

    communicators: int
    num_nodes: int
    num_ranks: int
    status: str
    errors: str


@dataclass(frozen=True, slots=True)
class RasStatus:
    """One answer of the RAS service.

    Attributes:
        dead: lines on processes that are considered dead or missing.
        line: where the answer begins in its file; 0 is the whole file.
        version: NCCL's, of the process that answered.
        num_nodes, num_gpus: of the job.
    """

    file: str
    communicators: tuple[RasCommunicator, ...]
    dead: tuple[str, ...] = ()
    rows: tuple[RasRow, ...] = ()
    line: int = 0
    version: str = ""
    num_nodes: int | None = None
    num_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class HangFlags:
    """Hang flags of xpu_timer by rank."""

    file: str
    flagged: tuple[int, ...]
    clear: tuple[int, ...]


def launch_groups(communicator: RasCommunicator) -> dict[str, list[RasGroup]]:
    """Ranks by the number of their last call, fewest calls first; one entry per kind of call in which ranks differ."""
    groups: dict[str, list[RasGroup]] = {}
    for group in communicator.groups:
        if group.operation is not None:
            groups.setdefault(group.collective, []).append(group)
    if not groups:
        groups = _groups_of_counts(communicator.ranks)
    return {
        kind: sorted(_with_remaining(members), key=lambda group: group.operation or 0)
        for kind, members in groups.items()
        if len({group.operation for group in members}) > 1
    }


def _with_remaining(groups: list[RasGroup]) -> list[RasGroup]:
    """The groups; where RAS names the ranks of all but one, that one has the remaining ranks."""
    unnamed = [group for group in groups if len(group.ranks) != group.num_ranks]
    size = sum(group.num_ranks for group in groups)
    if len(unnamed) != 1 or unnamed[0].ranks or size > MAX_RANKS:
        return groups
    remaining = set(range(size)).difference(*(group.ranks for group in groups))
    if len(remaining) != unnamed[0].num_ranks:
        return groups
    return [replace(one, ranks=tuple(sorted(remaining))) if one is unnamed[0] else one for one in groups]


def _groups_of_counts(ranks: tuple[RasRank, ...]) -> dict[str, list[RasGroup]]:
    """The same from the counts of the JSON form."""
    counted = [rank for rank in ranks if rank.counts]
    groups: dict[str, list[RasGroup]] = {}
    for kind in dict.fromkeys(kind for rank in counted for kind in rank.counts):
        by_count: dict[int, list[int]] = {}
        for rank in counted:
            by_count.setdefault(rank.counts.get(kind, 0), []).append(rank.rank)
        groups[kind] = [
            RasGroup(len(members), f"launched up to operation {count}", kind, count, tuple(sorted(members)))
            for count, members in by_count.items()
        ]
    return groups


def ranks_behind(communicator: RasCommunicator) -> list[int]:
    """Document of NCCL's rank status (RAS): field of a communicator: its ranks that are behind.

    Ranks that launched fewer calls than the foremost, as far as they are named; those that are dead or do not
    answer; those in another state than most.
    """
    behind = {rank.rank for rank in communicator.missing}
    behind |= {rank for group in communicator.groups if group.operation is None for rank in group.ranks}
    behind |= {rank for groups in launch_groups(communicator).values() for group in groups[:-1] for rank in group.ranks}
    return sorted(behind)
