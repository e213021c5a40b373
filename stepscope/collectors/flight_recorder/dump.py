"""What does one flight recorder's dump say? torch's pickle or JSON of any version, of NCCL, gloo or XCCL.

What the recorder's own form hides is settled here: gloo leaves finished operations "scheduled" and marks them retired,
JSON writes 0 for a time that is not known and lists a group's members as text, `nccl:send 0->3` numbers ranks within
the group, and -1 is a sequence number that is not known.
"""

from __future__ import annotations

import json
import re
from typing import Any

from stepscope.collectors.plain_pickle import load_plain
from stepscope.core.errors import DataError
from stepscope.core.flight_recorder import FlightDump, GroupProgress, Operation, StackFrame

_DONE = "completed"
_PICKLED_DICT = (b"\x80", b"(", b"}")
"""How one begins, from protocol 2 on and before."""
_MOST_MEMBERS_TEXT = 1 << 20
_MEMBERS = re.compile(r"[\[(] *(?:[0-9]{1,9} *, *)*(?:[0-9]{1,9} *)?[\])]\Z")
_NUMBER = re.compile("[0-9]+")
_MOST_FRAMES = 64
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
    try:
        groups = _groups(told.get("pg_config"))
        return FlightDump(
            rank,
            where,
            str(told.get("version", "")),
            {name: members for name, (members, _) in groups.items()},
            {name: description for name, (_, description) in groups.items()},
            _progress(told.get("pg_status")),
            tuple(sorted((_operation(entry) for entry in entries), key=lambda one: one.record)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        said = " ".join(f"{type(error).__name__} {error}".split())[:120]
        raise DataError(f"is no flight recorder dump ({said})", where=where, what_next=_WHAT_NEXT) from None


def _load(content: bytes, where: str) -> Any:
    if not content:
        raise DataError("is empty: the rank ended before it could write", where=where, what_next=_WHAT_NEXT)
    if content[:1] in _PICKLED_DICT:
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
    for name, one in (told or {}).items():
        if name:
            groups[str(name)] = _members(one.get("ranks")), str(one.get("desc", ""))
    return groups


def _members(told: Any) -> tuple[int, ...] | None:
    """A list of ranks, or "[0, 1]", its text: read as numbers, never as Python."""
    if isinstance(told, str):
        text = told.strip()
        if len(text) > _MOST_MEMBERS_TEXT or not _MEMBERS.match(text):
            return None
        told = [int(number) for number in _NUMBER.findall(text)]
    if not isinstance(told, list | tuple) or not all(type(rank) is int and rank >= 0 for rank in told):
        return None
    return tuple(told) or None


def _progress(told: Any) -> dict[int, GroupProgress]:
    return {
        int(number): GroupProgress(
            _sequence(one.get("last_enqueued_collective")), _sequence(one.get("last_completed_collective"))
        )
        for number, one in (told or {}).items()
    }


def _sequence(told: Any) -> int | None:
    return told if type(told) is int and told >= 0 else None


def _operation(entry: dict[str, Any]) -> Operation:
    group, description = entry.get("process_group") or ("", "")
    backend, _, name = str(entry["profiling_name"]).rpartition(":")
    if backend.endswith(":") or name == "coalesced":  # "nccl:all_reduce:coalesced"
        backend, _, name = str(entry["profiling_name"]).partition(":")
    return Operation(
        record=int(entry["record_id"]),
        group=str(group),
        description=str(description),
        group_id=int(entry["pg_id"]),
        sequence=int(entry["collective_seq_id"]),
        name=name,
        backend=backend,
        is_p2p=bool(entry.get("is_p2p")),
        is_done=entry.get("state") == _DONE or bool(entry.get("retired")),
        is_given_up=entry.get("state") != _DONE and bool(entry.get("retired")),
        created_ns=_time(entry.get("time_created_ns")),
        started_ns=_time(entry.get("time_discovered_started_ns")),
        completed_ns=_time(entry.get("time_discovered_completed_ns")),
        input_sizes=_sizes(entry.get("input_sizes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        dtypes=tuple(map(str, entry.get("input_dtypes") or ())),
        frames=tuple(
            StackFrame(str(frame.get("name", "")), str(frame.get("filename", "")), int(frame.get("line") or 0))
            for frame in (entry.get("frames") or ())[:_MOST_FRAMES]
        ),
    )


def _time(told: Any) -> int | None:
    return int(told) if told else None


def _sizes(told: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(size) for size in shape) for shape in told or ())
