"""Which ranks stand at the same place, and what does each such group wait for?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from stepscope.analyzer.hang.waits import OpenCall
from stepscope.core.flight_recorder import FlightDump, Operation, StackFrame
from stepscope.core.hang import WaitingGroup

_MOST_FRAMES = 8
_OF_TORCH = "torch/distributed/"


def waiting_groups(dumps: Sequence[FlightDump], open_calls: Mapping[int, OpenCall]) -> list[WaitingGroup]:
    """Ranks by their oldest open call and its stack; those with nothing open by their last call's. Largest first."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    made: dict[tuple[object, ...], WaitingGroup] = {}
    for dump in dumps:
        group = _group_of(dump, open_calls.get(dump.rank))
        key = (group.operation, group.process_group, group.sequence, *group.waits_for, None, *group.stack)
        alike[key].append(dump.rank)
        made[key] = group
    groups = [
        WaitingGroup(ranks, one.operation, one.process_group, one.description, one.sequence, one.waits_for, one.stack)
        for key, ranks in alike.items()
        for one in (made[key],)
    ]
    return sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))


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
    return [_line(frame) for frame in frames[:_MOST_FRAMES]]


def _line(frame: StackFrame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"
