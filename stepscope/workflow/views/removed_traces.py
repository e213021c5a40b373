"""Traces of a run that were removed because their views stand for them: the record of each capture, and who reads it.

`views/step{k}/rank{r}.removed.json` is written before the first trace goes. It has the SHA-256 of each trace, so that
no view of another trace is taken for it. A trace that is there counts, whatever the record says. One that is gone
without a record is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stepscope.core.documents.run_directory import (
    REMOVED_SUFFIX,
    RUN_FILE,
    TRACES_FOLDER,
    VIEWS_FOLDER,
    removed_path,
)
from stepscope.core.errors import DataError
from stepscope.store.documents import decode_manifest
from stepscope.store.files import read_whole, write_whole
from stepscope.workflow.views.view_files import owners_of, read_file
from stepscope.workflow.views.view_format import UnusableViewError

REMOVED_SCHEMA = "stepscope.removed-traces/1"
_NAME = re.compile(r"rank\d+\.json\.gz")
_RECORD = re.compile(rf"rank\d+{re.escape(REMOVED_SUFFIX)}")


@dataclass(frozen=True, slots=True)
class RemovedTrace:
    """A trace that was removed.

    Attributes:
        bytes: its size.
        digest: SHA-256 of its content.
    """

    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class RemovedTraces:
    """The document rank{r}.removed.json: traces of one capture that were removed, and why others were kept.

    Attributes:
        run: name of the run.
        capture: folder of the capture.
        version: of the stepscope that made the views.
        removed: by file name.
        kept: why, by file name.
    """

    run: str
    capture: str
    version: str
    removed: dict[str, RemovedTrace]
    kept: dict[str, str] = field(default_factory=dict)
    schema: str = REMOVED_SCHEMA


def write_record(run: Path, rank: int, record: RemovedTraces) -> None:
    """Write the record of a capture by the process of a rank, in place of an earlier one.

    Raises:
        DataError: it cannot be written.
    """
    write_whole(run / removed_path(record.capture, rank), msgspec.json.format(msgspec.json.encode(record), indent=1))


def read_records(run: Path, capture: str) -> list[RemovedTraces]:
    """Records of a capture: one, or one of each node whose ranks share no disk.

    Raises:
        UnusableViewError: one is damaged, of another run, or of another user.
    """
    folder = run / VIEWS_FOLDER / capture
    with suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if _RECORD.fullmatch(name))
        return [record for name in names if (record := _read(folder / name, run, capture)) is not None]
    return []


class RemovedLookup:
    """Lookup of removed traces by their paths, which reads the records of each capture once."""

    def __init__(self) -> None:
        self._by_folder: dict[Path, dict[str, RemovedTrace]] = {}

    def find(self, address: str) -> RemovedTrace | None:
        """The record of a trace that was removed; None where the trace is there, or is missing without a record.

        Raises:
            UnusableViewError: the record cannot be used.
        """
        path = Path(address)
        if "://" in address or len(path.parts) < 3 or path.parts[-3] != TRACES_FOLDER or os.path.exists(address):
            return None
        folder = path.parent
        if folder not in self._by_folder:
            records = read_records(folder.parent.parent, folder.name)
            self._by_folder[folder] = {name: one for record in records for name, one in record.removed.items()}
        return self._by_folder[folder].get(path.name)


def removed_files(run: Path, capture: str) -> list[str]:
    """Paths at which the removed traces of a capture were.

    Raises:
        UnusableViewError: a record cannot be used.
    """
    folder = run / TRACES_FOLDER / capture
    names = {name for record in read_records(run, capture) for name in record.removed}
    return [str(folder / name) for name in names if not os.path.exists(folder / name)]


def captures_with_records(run: Path) -> Iterator[str]:
    """Folders of captures of which traces were removed."""
    with suppress(OSError):
        for folder in sorted(path for path in (run / VIEWS_FOLDER).iterdir() if path.is_dir()):
            if any(_RECORD.fullmatch(name) for name in os.listdir(folder)):
                yield folder.name


def _read(path: Path, run: Path, capture: str) -> RemovedTraces | None:
    content = read_file(path, owners_of(run))
    if content is None:
        return None
    record = _decoded(content, str(path))
    if record.capture != capture or record.run != (name_of(run) or record.run):
        raise UnusableViewError(f"is of another capture ({record.run}, {record.capture})", where=str(path))
    return record


def _decoded(content: bytes, where: str) -> RemovedTraces:
    try:
        record = msgspec.json.decode(content, type=RemovedTraces)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnusableViewError(f"is damaged ({error})", where=where) from error
    if record.schema != REMOVED_SCHEMA:
        raise UnusableViewError(f"has schema {record.schema!r}, this version reads {REMOVED_SCHEMA!r}", where=where)
    if not all(_NAME.fullmatch(name) and removed.digest for name, removed in record.removed.items()):
        raise UnusableViewError("is damaged: it names files that are not traces", where=where)
    return record


def name_of(run: Path) -> str | None:
    """Name of a run by its manifest; None on a node whose disk has none, or where it cannot be read."""
    try:
        return decode_manifest(read_whole(run / RUN_FILE), where=str(run)).run
    except DataError:
        return None
