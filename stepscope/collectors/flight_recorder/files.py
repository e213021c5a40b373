"""Which files are flight recorder dumps, and whose? Any name will do that says the rank, or ends with it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.collectors.flight_recorder.dump import PICKLED_DICT, read_dump
from stepscope.core.analysis import Notice
from stepscope.core.errors import DataError, from_os_error, none_usable
from stepscope.core.flight_recorder import MOST_RANKS, FlightDump

LARGEST_BYTES = 1 << 28
_RANK = re.compile(r"(\d+)(?:\.(?:pkl|pickle|json|bin|dump))?\Z")
_SAID_RANK = re.compile(r"(?<![a-z])rank[_-]?(\d+)", re.IGNORECASE)
"""Where the name says so, what is at its end may be a process or a date."""
_OTHERS = (".txt", ".state", ".stuck.json")
"""What a run directory has beside its dumps."""
_KEY_OF_ALL = b"entries"
_HEAD_BYTES = 1 << 20
_MOST_DIGITS = 9
_BEGINNINGS = (*PICKLED_DICT, b"{")


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file that holds a dump, and the rank by its name."""

    path: Path
    rank: int


def find_dumps(paths: Iterable[Path]) -> tuple[list[DumpFile], list[Notice]]:
    """The dumps at these paths, each a file or a folder; of two of one rank the pickle, which also has the stacks.

    Raises:
        DataError: a path is not there.
    """
    found: dict[int, list[Path]] = {}
    notices = []
    for path in paths:
        if not path.exists():
            raise DataError("does not exist", where=str(path), what_next="check the path")
        files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        for file in files:
            rank = _rank(file.name)
            if path.is_dir() and (rank is None or file.name.endswith(_OTHERS) or not _looks_like_dump(file)):
                continue
            if rank is None:
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


def read_dumps(files: Sequence[DumpFile]) -> tuple[list[FlightDump], list[Notice]]:
    """All that can be read, and what cannot.

    Raises:
        DataError: none can be read.
    """
    dumps, errors = [], []
    for file in files:
        try:
            content, written_ns = _content(file.path)
            dump = read_dump(content, rank=file.rank, where=str(file.path))
            dumps.append(replace(dump, written_ns=written_ns))
        except DataError as error:
            errors.append(error)
    if not dumps and errors:
        raise none_usable(errors, "flight recorder dumps", what_next="give the files that torch wrote")
    return dumps, [Notice("unusable_file", str(error)) for error in errors]


def _rank(name: str) -> int | None:
    """By the name; None where there is no number, or one that no job has ranks for: a date, say."""
    match = _SAID_RANK.search(name) or _RANK.search(name)
    return int(match[1]) if match is not None and len(match[1]) <= _MOST_DIGITS and int(match[1]) < MOST_RANKS else None


def _looks_like_dump(file: Path) -> bool:
    """Whether its beginning is a pickle's or JSON's, and names what every dump has."""
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
            size = file.stat().st_size
            if size > _HEAD_BYTES:  # pg_config and pg_status may come after the entries
                stream.seek(-_HEAD_BYTES, 2)
                head += stream.read()
    except OSError:
        return False
    return not head or (head.lstrip()[:1] in _BEGINNINGS and _KEY_OF_ALL in head)


def _content(path: Path) -> tuple[bytes, int]:
    """What is in a file, and when it was written."""
    try:
        if not path.is_file():  # a pipe or a device may never end
            raise DataError("is no file", where=str(path), what_next="give a dump of torch's")
        with path.open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)  # it may grow while it is read
            written_ns = os.fstat(stream.fileno()).st_mtime_ns
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(path)) from None
    if len(content) > LARGEST_BYTES:
        raise DataError(f"is larger than {LARGEST_BYTES:,} bytes", where=str(path), what_next="give a dump of torch's")
    return content, written_ns
