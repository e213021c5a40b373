"""Which ranks stand at the same place, and what does each such group wait for?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.analyzer.hang.waits import OpenCall
from stepscope.core.flight_recorder import FlightDump, Operation, stack_lines
from stepscope.core.hang import WaitingGroup

_OF_TORCH = "torch/distributed/"


def waiting_groups(dumps: Sequence[FlightDump], open_calls: Mapping[int, OpenCall]) -> list[WaitingGroup]:
    """Ranks by their oldest open call and its stack; those with nothing open by their last call's. Largest first."""
    made: dict[tuple[object, ...], WaitingGroup] = {}
    for dump in dumps:
        group = _group_of(dump, open_calls.get(dump.rank))
        key = (group.operation, group.process_group, group.sequence, *group.waits_for, None, *group.stack)
        if made.setdefault(key, group) is not group:
            made[key].ranks.append(dump.rank)
    return sorted(made.values(), key=lambda group: (-len(group.ranks), group.ranks))


def _group_of(dump: FlightDump, open_call: OpenCall | None) -> WaitingGroup:
    last = dump.operations[-1] if dump.operations else None
    if open_call is None:
        return WaitingGroup([dump.rank], None, None, None, None, [], _stack(last))
    call, group = open_call.call, open_call.group
    waits_for = list(open_call.waits_for)
    return WaitingGroup([dump.rank], call.name, group.name, group.description, call.sequence, waits_for, _stack(call))


def _stack(call: Operation | None) -> list[str]:
    """The frames from the user's call outwards: torch's own wrappers tell nothing."""
    frames = list(call.frames) if call is not None else []
    while frames and _OF_TORCH in frames[0].file:
        frames.pop(0)
    return stack_lines(frames)
