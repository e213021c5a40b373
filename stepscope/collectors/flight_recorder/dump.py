"""What does one flight recorder's dump say? torch's pickle or JSON of any version, of NCCL, gloo or XCCL.

What the recorder's own form hides is settled here: gloo leaves finished operations "scheduled" and marks them retired,
JSON writes 0 for a time that is not known and lists a group's members as text, `nccl:send 0->3` numbers ranks within
the group, and -1 is a sequence number that is not known. What NCCL is told at once ("coalesced") is recorded call by
call, and these stay "scheduled" for ever: how far they are, a last entry "nccl:coalesced" tells, which of messages says
that it is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from stepscope.collectors.plain_pickle import load_plain
from stepscope.core.errors import DataError
from stepscope.core.flight_recorder import MOST_RANKS, FlightDump, GroupProgress, Operation, StackFrame

_DONE, _SCHEDULED = "completed", "scheduled"
PICKLED_DICT = (b"\x80", b"(", b"}")
"""How one begins, from protocol 2 on and before."""
_MOST_MEMBERS, _MOST_MEMBERS_TEXT = 1 << 24, 1 << 23
"""Of all groups of a rank; characters of one."""
_MEMBERS = re.compile(r"[\[(] *(?:[0-9]{1,9} *, *)*(?:[0-9]{1,9} *)?[\])]\Z")
_NUMBER = re.compile("[0-9]+")
_MOST_ENTRIES = 1 << 18
"""Of one recorder: torch keeps 2,000 unless told otherwise."""
_MOST_FRAMES = 64
_MOST_WHOLE = 1 << 63
_NS_OF_MS = 1_000_000
_MOST_PARTS = 1 << 14
_COALESCED = "coalesced"
_WHAT_NEXT = "give the files that TORCH_FR_DUMP_TEMP_FILE or torch's watchdog wrote"


def read_dump(content: bytes, *, rank: int, where: str) -> FlightDump:
    """One rank's dump.

    Args:
        content: the file.
        rank: whose it is, of the whole job.
        where: the file's name, for errors.

    Raises:
        UnsafePickleError: it would do more than hold data.
        DataError: it is no flight recorder's dump.
    """
    told = _load(content, where)
    entries = told.get("entries") if isinstance(told, dict) else None
    if not isinstance(entries, list):
        raise DataError("is no flight recorder dump: it has no entries", where=where, what_next=_WHAT_NEXT)
    if len(entries) > _MOST_ENTRIES:
        raise DataError(f"has more than {_MOST_ENTRIES:,} entries", where=where, what_next=_WHAT_NEXT)
    try:
        groups = _groups(told.get("pg_config"))
        return FlightDump(
            rank,
            where,
            str(told.get("version", "")),
            {name: members for name, (members, _) in groups.items()},
            {name: description for name, (_, description) in groups.items()},
            _progress(told.get("pg_status")),
            _operations(entries),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        said = " ".join(f"{type(error).__name__} {error}".split())[:120]
        raise DataError(f"is no flight recorder dump ({said})", where=where, what_next=_WHAT_NEXT) from None


def _load(content: bytes, where: str) -> Any:
    if not content:
        raise DataError("is empty: the rank ended before it could write", where=where, what_next=_WHAT_NEXT)
    if content[:1] in PICKLED_DICT:
        return load_plain(content, where=where)
    if content.lstrip()[:1] != b"{":
        raise DataError("is neither a pickle nor JSON", where=where, what_next=_WHAT_NEXT)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"is no whole JSON ({error})", where=where, what_next=_WHAT_NEXT) from None


def _groups(told: Any) -> dict[str, tuple[tuple[int, ...] | None, str]]:
    """Members and meaning of each group by its name; gloo's recorder lists one without a name, which tells nothing."""
    groups = {}
    members = _Once(_members)
    num_members = 0
    for name, one in (told or {}).items():
        if name:
            groups[str(name)] = members(one.get("ranks")), str(one.get("desc", ""))
            num_members += len(groups[str(name)][0] or ())
            if num_members > _MOST_MEMBERS:
                raise ValueError("its groups have too many members")
    return groups


def _members(told: Any) -> tuple[int, ...] | None:
    """A list of ranks, or "[0, 1]", its text: read as numbers, never as Python."""
    if isinstance(told, str):
        text = told.strip()
        if len(text) > _MOST_MEMBERS_TEXT or not _MEMBERS.match(text):
            return None
        told = [int(number) for number in _NUMBER.findall(text)]
    if not isinstance(told, list | tuple) or not all(type(rank) is int and 0 <= rank < MOST_RANKS for rank in told):
        return None
    return tuple(told) or None


class _Once:
    """Turns each value into its typed form once: a pickle may have many refer to the same."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        """
        Args:
            make: the typed form of a value.
        """
        self._make = make
        self._made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, told: Any) -> Any:
        """The typed form."""
        known = self._made.get(id(told))
        if known is None:
            known = self._made[id(told)] = told, self._make(told)  # kept, so that no other gets its id
        return known[1]


def _progress(told: Any) -> dict[int, GroupProgress]:
    return {
        int(number): GroupProgress(
            _sequence(one.get("last_enqueued_collective")), _sequence(one.get("last_completed_collective"))
        )
        for number, one in (told or {}).items()
    }


def _sequence(told: Any) -> int | None:
    return told if type(told) is int and 0 <= told < _MOST_WHOLE else None


def _operations(entries: list[Any]) -> tuple[Operation, ...]:
    """In the order of the calls."""
    once = _Once(_frames), _Once(_sizes), _Once(_dtypes)
    ordered = sorted(entries, key=lambda entry: _whole(entry["record_id"]))
    made = [_operation(entry, *once) for entry in ordered]
    kept: list[Operation | None] = list(made)
    for place, (entry, last) in enumerate(zip(ordered, made, strict=True)):
        if last.name == _COALESCED:
            parts = _parts_of(entry, ordered[:place] if place < _MOST_PARTS else ordered[place - _MOST_PARTS : place])
            for part in range(place - parts, place):
                kept[part] = replace(
                    made[part], is_done=last.is_done, is_given_up=last.is_given_up, started_ns=last.started_ns
                )
            if parts:
                kept[place] = None
    return tuple(_with_aborted([one for one in kept if one is not None]))


def _with_aborted(calls: list[Operation]) -> Iterator[Operation]:
    """What ends a call that lasts until its timeout ends all that wait behind it in the group, which began later."""
    ended_ns: dict[int, int] = {}
    for call in calls:
        if call.is_given_up and call.completed_ns is not None and not call.is_p2p:
            ended_ns[call.group_id] = max(call.completed_ns, ended_ns.get(call.group_id, 0))
        was_queued = call.created_ns is not None and call.created_ns < ended_ns.get(call.group_id, 0)
        was_ended = was_queued and call.completed_ns is not None and call.is_done and not call.is_p2p
        yield replace(call, is_given_up=True) if was_ended else call


def _parts_of(last: dict[str, Any], before: Sequence[dict[str, Any]]) -> int:
    """How many of the entries before it a "coalesced" one ends."""
    count = 0
    is_p2p = bool(before) and bool(before[-1].get("is_p2p"))
    number = "p2p_seq_id" if is_p2p else "collective_seq_id"
    for entry in reversed(before):
        is_part = entry["pg_id"] == last["pg_id"] and entry.get(number) == last.get(number)
        if (
            not is_part
            or bool(entry.get("is_p2p")) != is_p2p
            or entry.get("state") != _SCHEDULED
            or str(entry["profiling_name"]).endswith(f":{_COALESCED}")
        ):
            break
        count += 1
    return count


def _operation(entry: dict[str, Any], frames: _Once, sizes: _Once, dtypes: _Once) -> Operation:
    group, description = entry.get("process_group") or ("", "")
    backend, _, name = str(entry["profiling_name"]).rpartition(":")
    if backend.endswith(":") or (name == _COALESCED and ":" in backend):  # "nccl:all_reduce:coalesced"
        backend, _, name = str(entry["profiling_name"]).partition(":")
    return Operation(
        record=_whole(entry["record_id"]),
        group=str(group),
        description=str(description),
        group_id=_whole(entry["pg_id"]),
        sequence=_whole(entry["collective_seq_id"]),
        name=name,
        backend=backend,
        is_p2p=bool(entry.get("is_p2p")),
        is_done=entry.get("state") == _DONE or bool(entry.get("retired")),
        is_given_up=bool(entry.get("retired")) if entry.get("state") != _DONE else _took_its_timeout(entry),
        created_ns=_time(entry.get("time_created_ns")),
        started_ns=_time(entry.get("time_discovered_started_ns")),
        completed_ns=_time(entry.get("time_discovered_completed_ns")),
        input_sizes=sizes(entry.get("input_sizes")),
        output_sizes=sizes(entry.get("output_sizes")),
        dtypes=dtypes(entry.get("input_dtypes")),
        frames=frames(entry.get("frames")),
    )


def _took_its_timeout(entry: dict[str, Any]) -> bool:
    """NCCL says of a call that was aborted that it completed."""
    created, completed = _time(entry.get("time_created_ns")), _time(entry.get("time_discovered_completed_ns"))
    timeout = _sequence(entry.get("timeout_ms"))
    if created is None or completed is None or not timeout:
        return False
    return completed - created >= timeout * _NS_OF_MS


def _whole(told: Any) -> int:
    number = int(told)
    if not -_MOST_WHOLE <= number < _MOST_WHOLE:
        raise ValueError("a number has more than 64 bits")
    return number


def _frames(told: Any) -> tuple[StackFrame, ...]:
    return tuple(
        StackFrame(str(frame.get("name", "")), str(frame.get("filename", "")), _whole(frame.get("line") or 0))
        for frame in (told or ())[:_MOST_FRAMES]
    )


def _dtypes(told: Any) -> tuple[str, ...]:
    return tuple(map(str, told or ()))


def _time(told: Any) -> int | None:
    return _whole(told) if told else None


def _sizes(told: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(_whole(size) for size in shape) for shape in told or ())
