"""Culprits of a hang: ranks that call other collectives than the rest (desync), and ranks that hold up others.

Mismatches: after ranks call different collectives once, all later sequence numbers differ too, so the first mismatch
counts. The ranks that differ from the majority are named; torch's own script takes the first rank as correct. Where a
group is split evenly, other groups with the same description decide which call is usual. Sizes are compared where all
members must agree; those of all-to-all, gather and scatter may differ between ranks.

Transitions: a transition is a call and its predecessor (names, descriptions of their groups, sizes). A rank whose
transition no rank made before has left the common sequence, as groups with one description do the same.

Waits: in each group with an open call, a rank is behind if it has called or finished less than another. A rank that is
behind is not a culprit while its own oldest call waits for a rank that has not called it. Of the others:

- Ranks that called what their peers have finished are stuck on the device.
- Ranks without an open call do not get to the call: stuck on the host; on the device, where the host waits for it.
- Where NCCL records starts (TORCH_NCCL_ENABLE_TIMING), ranks whose open calls have not started while a peer runs one
  of them are stuck on the device as well: something else occupies their GPU.

Messages between two ranks only excuse a rank: they follow the pipeline schedule and point to neighbours of the culprit.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from stepscope.analyzer.hang.progress import JobProgress, RankProgress, RecordedGroup
from stepscope.core.documents.hang import FlightDump, HangKind, Operation, WaitingGroup, stack_lines

_SAME_SIZE = frozenset(
    ["all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base", "all_gather_into_tensor",
     "reduce_scatter_tensor"]
)  # fmt: skip

_COALESCED = "coalesced"
"""Several calls at once, whose parts the recorder no longer has."""

_Call = tuple[str, int | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Desync of a process group: a sequence number under which ranks called different collectives.

    Attributes:
        calls: ranks by description of their call: "all_reduce of 4,194,304 Float".
        others: ranks that differ from the majority; all of them without a majority.
    """

    group: RecordedGroup
    sequence: int
    calls: Mapping[str, tuple[int, ...]]
    others: tuple[int, ...]

    @property
    def has_majority(self) -> bool:
        """Whether a majority made the same call."""
        return len(self.others) < sum(map(len, self.calls.values()))


def first_mismatches(progress: JobProgress) -> list[Mismatch]:
    """First desync of each process group that has one."""
    return [found for group in progress if (found := _first_mismatch(group, progress)) is not None]


def _first_mismatch(group: RecordedGroup, progress: JobProgress) -> Mismatch | None:
    for sequence in sorted({number for member in progress[group].values() for number in member.calls}):
        callers = _callers(progress[group], sequence)
        if len(callers) > 1:
            usual = _majority(callers) or _majority(_callers_of_similar(group, progress, sequence))
            others = sorted(rank for call, ranks in callers.items() if call != usual for rank in ranks)
            calls = {}
            for (name, size, dtypes), ranks in callers.items():
                of_what = "" if size is None else f" of {size:,} {', '.join(dict.fromkeys(dtypes))}".rstrip()
                calls[name + of_what] = tuple(ranks)
            return Mismatch(group, sequence, calls, tuple(others))
    return None


def _callers(ranks: Mapping[int, RankProgress], sequence: int) -> dict[_Call, list[int]]:
    callers: dict[_Call, list[int]] = defaultdict(list)
    for rank, member in sorted(ranks.items()):
        call = member.calls.get(sequence)
        if call is not None and call.name != _COALESCED:
            callers[_key(call)].append(rank)
    return callers


def _callers_of_similar(group: RecordedGroup, progress: JobProgress, sequence: int) -> dict[_Call, list[int]]:
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


_Transition = tuple[object, ...]


def diverged_ranks(
    dumps: Sequence[FlightDump], calls: Mapping[int, Operation], ranks: Iterable[int], *, num_before: int = 1
) -> list[int]:
    """Ranks of a desync whose call made a transition that no rank had made before.

    Args:
        num_before: calls before it that belong to the transition.
    """
    seen: Counter[_Transition] = Counter()
    last: dict[int, _Transition] = {}
    for dump in dumps:
        collectives = [call for call in dump.operations if not call.is_p2p]
        judged = calls.get(dump.rank)
        for place in range(num_before, len(collectives)):
            call = collectives[place]
            transition = tuple(_kind(one) for one in collectives[place - num_before : place + 1])
            if judged is not None and call.record == judged.record:
                last[dump.rank] = transition
                break
            seen[transition] += 1
    return sorted(rank for rank in ranks if rank in last and not seen[last[rank]])


def _kind(call: Operation) -> _Transition:
    return call.description, call.name, call.input_sizes


_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)\Z")
_OTHER_END = {"send": "recv", "recv": "send"}


@dataclass(frozen=True, slots=True)
class OpenCall:
    """Oldest collective of a hanging rank that has not ended.

    Attributes:
        waits_for: ranks that have not called it yet, including those without a dump.
        runs: whether one of the rank's open calls runs on its device, or may: starts are not always recorded.
    """

    call: Operation
    group: RecordedGroup
    waits_for: tuple[int, ...]
    runs: bool = True

    @property
    def words(self) -> str:
        return f"{self.call.name} {self.call.sequence} of {self.group.words}"


def open_calls(dumps: Sequence[FlightDump], progress: JobProgress) -> dict[int, OpenCall]:
    """Oldest open collective of each rank that has one, by the flight recorders."""
    groups = _groups_of(progress)
    missing: dict[tuple[RecordedGroup, int], tuple[int, ...]] = {}
    found = {}
    for dump in dumps:
        call = next((one for one in dump.operations if not one.is_done and not one.is_p2p), None)
        if call is not None:
            group = groups[dump.rank, call.group]
            if (group, call.sequence) not in missing:
                own = progress[group]
                missing[group, call.sequence] = tuple(
                    rank for rank in group.members if rank not in own or own[rank].enqueued < call.sequence
                )
            found[dump.rank] = OpenCall(call, group, missing[group, call.sequence], bool(_running(dump)))
    return found


def _running(dump: FlightDump) -> list[Operation]:
    """Open calls that have started, or may have: nothing is known of groups without any recorded start (gloo, or NCCL
    without timing)."""
    tells_starts = {call.group_id for call in dump.operations if call.is_done and call.started_ns is not None}
    still_open = (call for call in dump.operations if not call.is_done)
    return [call for call in still_open if call.started_ns is not None or call.group_id not in tells_starts]


def message_waits(dumps: Sequence[FlightDump], progress: JobProgress) -> dict[int, int]:
    """Peer of each hanging rank whose oldest open call is a message that does not run at the peer."""
    groups = _groups_of(progress)
    running = {dump.rank: [call for call in _running(dump) if call.is_p2p] for dump in dumps}
    open_messages = {
        (rank, *ends)
        for rank, calls in running.items()
        for call in calls
        if (ends := _ends(call, groups.get((rank, call.group))))
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


def _ends(call: Operation, group: RecordedGroup | None) -> tuple[str, int, int] | None:
    """Kind of a message (send or recv), the rank that recorded it, and its peer; both as ranks of the job."""
    match = _MESSAGE.match(call.name)
    if match is None or group is None:
        return None
    here, there = int(match[2]), int(match[3])
    if max(here, there) >= len(group.members):
        return None
    return match[1], group.members[here], group.members[there]


def _groups_of(progress: JobProgress) -> Mapping[tuple[int, str], RecordedGroup]:
    return {(rank, group.name): group for group, ranks in progress.items() for rank in ranks}


class Lag(StrEnum):
    """What a culprit of a hang has done less of."""

    CALLED = "called"
    STARTED = "started"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class LaggingRank:
    """Rank that is behind in a hanging group: in what, by how many calls, and behind which ranks.

    Attributes:
        device_wait: the call in which its host waits for its device, which runs no recorded call; empty if none is
            known.
    """

    rank: int
    lag: Lag
    group: RecordedGroup
    behind: int
    ahead: tuple[int, ...]
    device_wait: str = ""

    @property
    def kind(self) -> HangKind:
        """Where the rank is stuck."""
        return HangKind.HOST if self.lag is Lag.CALLED and not self.device_wait else HangKind.DEVICE

    @property
    def weight(self) -> tuple[bool, int]:
        """Orders what is known of one rank: a lag on the device counts more than any on the host."""
        return self.kind is HangKind.DEVICE, self.behind


def idle_device_waits(dumps: Sequence[FlightDump], device_waits: Mapping[int, str]) -> dict[int, str]:
    """Waits of hosts for a device that runs neither a collective nor a message of the rank's recorder."""
    return {
        dump.rank: device_waits[dump.rank]
        for dump in dumps
        if dump.rank in device_waits and all(call.is_done for call in dump.operations)
    }


def lagging_ranks(
    progress: JobProgress,
    open_calls: Mapping[int, OpenCall],
    message_waits: Mapping[int, int],
    device_waits: Mapping[int, str],
) -> list[LaggingRank]:
    """Ranks of a hang that are behind and wait for nobody, by rank.

    Args:
        device_waits: from `idle_device_waits`.
    """
    behind: dict[int, LaggingRank] = {}
    for group, ranks in progress.items():
        if not any(member.is_open for member in ranks.values()):
            continue
        for one in _behind(group, ranks, open_calls, device_waits):
            known = behind.get(one.rank)
            if known is None or one.weight > known.weight:
                behind[one.rank] = one
    found = [one for _, one in sorted(behind.items())]
    unexcused = [one for one in found if one.kind is HangKind.DEVICE or one.rank not in message_waits]
    return unexcused or found


def _behind(
    group: RecordedGroup,
    ranks: Mapping[int, RankProgress],
    open_calls: Mapping[int, OpenCall],
    device_waits: Mapping[int, str],
) -> Iterator[LaggingRank]:
    most_called = max(member.enqueued for member in ranks.values())
    most_done = max(member.completed for member in ranks.values())
    for rank, here in ranks.items():
        own = open_calls.get(rank)
        if own is not None and own.waits_for:
            continue
        if here.completed < min(most_done, here.enqueued):
            ahead = tuple(other for other, one in ranks.items() if one.completed > here.completed)
            yield LaggingRank(rank, Lag.FINISHED, group, most_done - here.completed, ahead)
        elif own is None and here.enqueued < most_called:
            ahead = tuple(other for other, one in ranks.items() if one.enqueued > here.enqueued)
            yield LaggingRank(rank, Lag.CALLED, group, most_called - here.enqueued, ahead, device_waits.get(rank, ""))
        elif own is not None and not own.runs and here.is_open:
            ahead = tuple(other for other, one in ranks.items() if one.has_started(here.first_open))
            if ahead:
                yield LaggingRank(rank, Lag.STARTED, group, 1, ahead)


_TORCH_FRAMES = "torch/distributed/"


def waiting_groups(dumps: Sequence[FlightDump], open_calls: Mapping[int, OpenCall]) -> list[WaitingGroup]:
    """Ranks of a hang by their oldest open call and its stack (without one, their last call's), largest first."""
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
    """Frames from the user's call outwards, without torch's own wrappers."""
    frames = list(call.frames) if call is not None else []
    while frames and _TORCH_FRAMES in frames[0].file:
        frames.pop(0)
    return stack_lines(frames)
