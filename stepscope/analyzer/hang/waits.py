"""Who waits for whom? By each rank's oldest call that has not ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.analyzer.hang.standings import Group, Standing, Standings
from stepscope.core.flight_recorder import FlightDump, Operation

_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)\Z")
_OTHER_END = {"send": "recv", "recv": "send"}


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A rank's oldest call that has not ended.

    Attributes:
        waits_for: ranks that have not called it yet; a dump that is missing counts as not called.
        runs: whether one of the rank's open calls has begun on its device, or may have: starts are not always told.
    """

    call: Operation
    group: Group
    waits_for: tuple[int, ...]
    runs: bool = True


def open_calls(dumps: Sequence[FlightDump], standings: Standings) -> dict[int, OpenCall]:
    """Of each rank that has one, its oldest collective that has not ended."""
    groups = _groups_of(standings)
    late: dict[tuple[Group, int], tuple[int, ...]] = {}
    found = {}
    for dump in dumps:
        call = next((one for one in dump.operations if not one.is_done and not one.is_p2p), None)
        if call is not None:
            group = groups[dump.rank, call.group]
            if (group, call.sequence) not in late:
                late[group, call.sequence] = _late(group, standings[group], call.sequence)
            found[dump.rank] = OpenCall(call, group, late[group, call.sequence], bool(_running(dump)))
    return found


def _running(dump: FlightDump) -> list[Operation]:
    """Open calls that have begun, or may have: of a group that has told no start so far (gloo's never do, NCCL's with
    timing on) nothing is known."""
    tells_starts = {call.group_id for call in dump.operations if call.is_done and call.started_ns is not None}
    still_open = (call for call in dump.operations if not call.is_done)
    return [call for call in still_open if call.started_ns is not None or call.group_id not in tells_starts]


def message_waits(dumps: Sequence[FlightDump], standings: Standings) -> dict[int, int]:
    """Of each rank whose oldest open call is a message that runs: the rank at its other end, where none runs to meet
    it."""
    groups = _groups_of(standings)
    running = {dump.rank: [call for call in _running(dump) if call.is_p2p] for dump in dumps}
    open_messages = {
        (rank, *told)
        for rank, calls in running.items()
        for call in calls
        if (told := _ends(call, groups.get((rank, call.group))))
    }
    found = {}
    for dump in dumps:
        call = next((one for one in dump.operations if not one.is_done), None)
        is_running = call is not None and call in running[dump.rank]
        ends = _ends(call, groups.get((dump.rank, call.group))) if call is not None and is_running else None
        if ends is not None:
            way, here, there = ends
            if (there, _OTHER_END[way], there, here) not in open_messages:
                found[dump.rank] = there
    return found


def _ends(call: Operation, group: Group | None) -> tuple[str, int, int] | None:
    """Of a message: send or recv, the rank that says so, the other one; both of the whole job."""
    match = _MESSAGE.match(call.name)
    if match is None or group is None:
        return None
    here, there = int(match[2]), int(match[3])
    if max(here, there) >= len(group.members):
        return None
    return match[1], group.members[here], group.members[there]


def _late(group: Group, ranks: Mapping[int, Standing], sequence: int) -> tuple[int, ...]:
    """Members that have not called it, as far as their dumps are there."""
    return tuple(rank for rank in group.members if rank not in ranks or ranks[rank].enqueued < sequence)


def _groups_of(standings: Standings) -> Mapping[tuple[int, str], Group]:
    return {(rank, group.name): group for group, ranks in standings.items() for rank in ranks}
