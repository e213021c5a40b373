"""Flight recorder dumps of PyTorch: finds the files and reads each into a `FlightDump`.

Reads pickle and JSON of any version, of NCCL, gloo and XCCL. Peculiarities of the recorder are resolved here: gloo
leaves finished operations "scheduled" and marks them retired; JSON writes 0 for an unknown time and lists the members
of a group as text; `nccl:send 0->3` numbers ranks within the group; -1 is an unknown sequence number. Coalesced NCCL
calls are recorded one by one and stay "scheduled" for ever: a last entry "nccl:coalesced" has their state, also for
point-to-point messages, where that entry is itself not marked as one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.collectors.inputs import malformed_as_data_error, open_input
from stepscope.collectors.safe_pickle.loading import load_plain
from stepscope.core.documents.hang import MAX_RANKS, FlightDump, GroupProgress, Operation, StackFrame
from stepscope.core.errors import DataError, none_usable
from stepscope.core.vocabulary import Notice
from stepscope.trace.formats.foreign_files import Kind, kind_of_file, kind_of_object

MAX_BYTES = 1 << 28
_RANK = re.compile(r"(\d+)(?:\.(?:pkl|pickle|json|bin|dump))?\Z")
_EXPLICIT_RANK = re.compile(r"(?<![a-z])rank[_-]?(\d+)", re.IGNORECASE)
"""A name with "rank3" in it may end with a process id or a date."""
_OTHER_SUFFIXES = (".txt", ".state", ".stuck.json")
"""Of other files in a run directory's folder of dumps."""
_KEY_OF_ALL = b"entries"
_HEAD_BYTES = 1 << 20
_MAX_DIGITS = 9
_PICKLED_DICT = (b"\x80", b"(", b"}")
"""First byte of a pickled dict, from protocol 2 on and before."""
_FIRST_BYTES = (*_PICKLED_DICT, b"{")


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file that holds a flight recorder dump, and the rank by its name."""

    path: Path
    rank: int


def find_flight_dumps(paths: Iterable[Path]) -> tuple[list[DumpFile], list[Notice]]:
    """Collectors: flight recorder dumps at these files and folders.

    Of two of one rank the pickle, which also has the stacks.

    Raises:
        DataError: a path does not exist.
    """
    found: dict[int, list[Path]] = {}
    notices = []
    for path in paths:
        if not path.exists():
            raise DataError("does not exist", where=str(path), what_next="check the path")
        files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        for file in files:
            rank = _rank_of_name(file.name)
            if path.is_dir() and (rank is None or file.name.endswith(_OTHER_SUFFIXES) or not _looks_like_dump(file)):
                continue
            if rank is None:
                if (kind := _other_kind(file)) is not None:
                    what_next = kind.what_next.replace("FILE", str(file))
                    raise DataError(f"is {kind.what}, not a flight-recorder dump", where=str(file), what_next=what_next)
                raise DataError(
                    "its name does not end with a rank",
                    where=str(file),
                    what_next="name it like flight_3 or rank3.json",
                )
            found.setdefault(rank, []).append(file)
    for rank, files in found.items():
        files.sort(key=lambda file: (file.suffix == ".json", file.name))
        notices += [
            Notice("second_dump", f"{other}: rank {rank} has {files[0].name} already; left out")
            for other in files[1:]
            if other.suffix != ".json" or files[0].suffix == ".json"
        ]
    return [DumpFile(files[0], rank) for rank, files in sorted(found.items())], notices


def read_flight_dumps(files: Sequence[DumpFile]) -> tuple[list[FlightDump], list[Notice]]:
    """Collectors: parse all flight recorder dumps that can be read, and a notice of each that cannot.

    Raises:
        DataError: none can be read.
    """
    dumps, errors = [], []
    for file in files:
        try:
            content, written_ns = _read_file(file.path)
            dump = read_flight_dump(content, rank=file.rank, where=str(file.path))
            dumps.append(replace(dump, written_ns=written_ns))
        except DataError as error:
            errors.append(error)
    if not dumps and errors:
        raise none_usable(errors, "flight recorder dumps", what_next="give the files that torch wrote")
    return dumps, [Notice("unusable_file", str(error)) for error in errors]


def _rank_of_name(name: str) -> int | None:
    """Rank in a file's name; None where there is no number, or one larger than any job has ranks, such as a date."""
    match = _EXPLICIT_RANK.search(name) or _RANK.search(name)
    return int(match[1]) if match is not None and len(match[1]) <= _MAX_DIGITS and int(match[1]) < MAX_RANKS else None


def _looks_like_dump(file: Path) -> bool:
    """Whether the file begins as a pickle or JSON and has the key that every dump has."""
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
            size = file.stat().st_size
            if size > _HEAD_BYTES:  # pg_config and pg_status may come after the entries
                stream.seek(-_HEAD_BYTES, 2)
                head += stream.read()
    except OSError:
        return False
    return not head or (head.lstrip()[:1] in _FIRST_BYTES and _KEY_OF_ALL in head)


def _other_kind(file: Path) -> Kind | None:
    """What a file is whose content shows that it is no dump; None where it may be one."""
    if not file.is_file() or _looks_like_dump(file):
        return None
    with file.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if head.lstrip()[:1] == b"{":
        trace = Kind("a trace of torch.profiler", "run: stepscope analyze FILE")
        return trace if b'"traceEvents"' in head else kind_of_object(head)
    return kind_of_file(head, file.name)


def _read_file(path: Path) -> tuple[bytes, int]:
    """Content of a file, and when it was written."""
    with open_input(path, what_next=_WHAT_NEXT) as stream:
        content = stream.read(MAX_BYTES + 1)  # it may grow while it is read
        written_ns = os.fstat(stream.fileno()).st_mtime_ns
    if len(content) > MAX_BYTES:
        raise DataError(f"is larger than {MAX_BYTES:,} bytes", where=str(path), what_next=_WHAT_NEXT)
    return content, written_ns


_DONE, _SCHEDULED = "completed", "scheduled"
_MAX_MEMBERS, _MAX_MEMBERS_TEXT = 1 << 24, 1 << 23
"""Of all groups of a rank; characters of one."""
_MEMBERS = re.compile(r"[\[(] *(?:[0-9]{1,9} *, *)*(?:[0-9]{1,9} *)?[\])]\Z")
_NUMBER = re.compile("[0-9]+")
_MAX_ENTRIES = 1 << 18
"""Of one recorder: torch keeps 2,000 by default."""
_MAX_FRAMES = 64
_MAX_INT = 1 << 63
_NS_OF_MS = 1_000_000
_MAX_PARTS = 1 << 14
_COALESCED = "coalesced"
_WHAT_NEXT = "give the files that TORCH_FR_DUMP_TEMP_FILE or torch's watchdog wrote"


def read_flight_dump(content: bytes, *, rank: int, where: str) -> FlightDump:
    """Collectors: parse the flight recorder dump of a rank, counted in the whole job.

    Raises:
        UnsafePickleError: it would do more than hold data.
        DataError: it is not a flight recorder dump.
    """
    document = _unpickle_or_parse(content, where)
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise DataError("is not a flight recorder dump: it has no entries", where=where, what_next=_WHAT_NEXT)
    if len(entries) > _MAX_ENTRIES:
        raise DataError(f"has more than {_MAX_ENTRIES:,} entries", where=where, what_next=_WHAT_NEXT)
    with malformed_as_data_error("is not a flight recorder dump", where=where, what_next=_WHAT_NEXT):
        groups = _groups(document.get("pg_config"))
        return FlightDump(
            rank,
            where,
            str(document.get("version", "")),
            {name: members for name, (members, _) in groups.items()},
            {name: description for name, (_, description) in groups.items()},
            _progress(document.get("pg_status")),
            _operations(entries),
        )


def _unpickle_or_parse(content: bytes, where: str) -> Any:
    if not content:
        raise DataError("is empty: the rank ended before it could write", where=where, what_next=_WHAT_NEXT)
    if content[:1] in _PICKLED_DICT:
        return load_plain(content, where=where)
    if content.lstrip()[:1] != b"{":
        raise DataError("is neither a pickle nor JSON", where=where, what_next=_WHAT_NEXT)
    with malformed_as_data_error("is not complete JSON", where=where, what_next=_WHAT_NEXT):
        return json.loads(content)


def _groups(config: Any) -> dict[str, tuple[tuple[int, ...] | None, str]]:
    """Members and description of each group by its name; gloo's recorder lists one without a name, which is skipped."""
    groups = {}
    members = _Memoized(_members)
    num_members = 0
    for name, one in (config or {}).items():
        if name:
            groups[str(name)] = members(one.get("ranks")), str(one.get("desc", ""))
            num_members += len(groups[str(name)][0] or ())
            if num_members > _MAX_MEMBERS:
                raise ValueError("its groups have too many members")
    return groups


def _members(ranks: Any) -> tuple[int, ...] | None:
    """A list of ranks, or "[0, 1]", its text: read as numbers, never as Python."""
    if isinstance(ranks, str):
        text = ranks.strip()
        if len(text) > _MAX_MEMBERS_TEXT or not _MEMBERS.match(text):
            return None
        ranks = [int(number) for number in _NUMBER.findall(text)]
    if not isinstance(ranks, list | tuple) or not all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in ranks):
        return None
    return tuple(ranks) or None


class _Memoized:
    """Converts each object once: many entries of a pickle may refer to the same one."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert
        self._converted: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        known = self._converted.get(id(value))
        if known is None:
            known = self._converted[id(value)] = value, self._convert(value)  # kept alive, so that its id stays its own
        return known[1]


def _progress(status: Any) -> dict[int, GroupProgress]:
    return {
        int(number): GroupProgress(
            _sequence(one.get("last_enqueued_collective")), _sequence(one.get("last_completed_collective"))
        )
        for number, one in (status or {}).items()
    }


def _sequence(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_INT else None


def _operations(entries: list[Any]) -> tuple[Operation, ...]:
    """In the order of the calls."""
    once = _Memoized(_frames), _Memoized(_sizes), _Memoized(_dtypes)
    ordered = sorted(entries, key=lambda entry: _whole(entry["record_id"]))
    made = [_operation(entry, *once) for entry in ordered]
    kept: list[Operation | None] = list(made)
    for place, (entry, last) in enumerate(zip(ordered, made, strict=True)):
        if last.name == _COALESCED:
            parts = _parts_of(entry, ordered[:place] if place < _MAX_PARTS else ordered[place - _MAX_PARTS : place])
            for part in range(place - parts, place):
                kept[part] = replace(
                    made[part], is_done=last.is_done, is_given_up=last.is_given_up, started_ns=last.started_ns
                )
            if parts:
                kept[place] = None
    return tuple(_with_aborted([one for one in kept if one is not None]))


def _with_aborted(calls: list[Operation]) -> Iterator[Operation]:
    """Mark calls that were aborted with one before them: a timeout ends all calls queued behind it in the group."""
    ended_ns: dict[int, int] = {}
    for call in calls:
        if call.is_given_up and call.completed_ns is not None and not call.is_p2p:
            ended_ns[call.group_id] = max(call.completed_ns, ended_ns.get(call.group_id, 0))
        was_queued = call.created_ns is not None and call.created_ns < ended_ns.get(call.group_id, 0)
        was_ended = was_queued and call.completed_ns is not None and call.is_done and not call.is_p2p
        yield replace(call, is_given_up=True) if was_ended else call


def _parts_of(last: dict[str, Any], before: Sequence[dict[str, Any]]) -> int:
    """Number of the entries before a "coalesced" one that are parts of it."""
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


def _operation(entry: dict[str, Any], frames: _Memoized, sizes: _Memoized, dtypes: _Memoized) -> Operation:
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
    """Whether a call ended only at its timeout: NCCL marks calls that were aborted as completed."""
    created, completed = _time(entry.get("time_created_ns")), _time(entry.get("time_discovered_completed_ns"))
    timeout = _sequence(entry.get("timeout_ms"))
    if created is None or completed is None or not timeout:
        return False
    return completed - created >= timeout * _NS_OF_MS


def _whole(value: Any) -> int:
    number = int(value)
    if not -_MAX_INT <= number < _MAX_INT:
        raise ValueError("a number has more than 64 bits")
    return number


def _frames(frames: Any) -> tuple[StackFrame, ...]:
    return tuple(
        StackFrame(str(frame.get("name", "")), str(frame.get("filename", "")), _whole(frame.get("line") or 0))
        for frame in (frames or ())[:_MAX_FRAMES]
    )


def _dtypes(dtypes: Any) -> tuple[str, ...]:
    return tuple(map(str, dtypes or ()))


def _time(value: Any) -> int | None:
    return _whole(value) if value else None


def _sizes(shapes: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(_whole(size) for size in shape) for shape in shapes or ())
