"""Files of a metric history as a reader sees them, while another process writes: catalog, open segments, and which
files are whole. Of an object store it keeps copies, which are read by local means."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.errors import DataError, UnreachableError, from_os_error
from stepscope.store.history.catalog import (
    CATALOG,
    HOUR_MS,
    SEGMENTS,
    TIER_MS,
    Catalog,
    MetricEntry,
    StoredFile,
    catalog_content,
    decode_catalog,
    entity_id,
    file_choice,
    metric_entry,
    segment_number,
    segment_path,
)
from stepscope.store.history.parquet import entities_of, load_pyarrow
from stepscope.store.history.places import LocalPlace, Place
from stepscope.store.history.plans import remade_with
from stepscope.store.history.questions import Labels
from stepscope.store.history.samples import TableRows
from stepscope.store.history.segments import Segment, SegmentDecoder, crc32

_LOG = logging.getLogger(__name__)

MAX_COPIED_BYTES = 2 << 30
"""Of files of an object store, on the local disk; more only while one question needs them."""
_COPIED_AT_ONCE = 8
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class HistoryState:
    """What the history holds at one moment."""

    catalog: Catalog
    segments: Mapping[int, Segment]

    def open_rows(self, metric: str) -> list[TableRows]:
        """Rows with a metric that are in segments yet."""
        return [rows for segment in self.segments.values() for rows in segment.tables if metric in rows.columns]

    def entry(self, metric: str) -> MetricEntry:
        """Kind and unit of a metric."""
        return self.catalog.metrics.get(metric) or metric_entry(metric)

    def names(self) -> set[str]:
        """Names of all metrics."""
        found = {name for segment in self.segments.values() for rows in segment.tables for name in rows.columns}
        return found.union(*self.catalog.columns)


class FileGoneError(Exception):
    """A file that the catalog names is gone: it was replaced in the meantime."""


class HistoryFiles:
    """Files of one history. Threads may share it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._copies = None if isinstance(place, LocalPlace) else _Copies(place)
        self._decoder = SegmentDecoder()
        self._segments: dict[int, Segment | None] = {}
        self._entities: dict[str, tuple[tuple[int, ...], tuple[Labels, ...]]] = {}
        self._texts: dict[bytes, tuple[tuple[int, ...], tuple[Labels, ...]]] = {}
        self._checked: dict[str, tuple[tuple[int, int], bool]] = {}
        self._known: tuple[bytes, Catalog] | None = None
        self._guard = threading.Lock()

    def state(self) -> HistoryState:
        """What the history holds now.

        Raises:
            DataError: it is not a history, or its catalog is damaged.
            UnreachableError: it does not answer.
        """
        with self._guard:
            for _ in range(_ATTEMPTS):
                catalog = self._read_catalog()
                segments = self._open_segments(catalog)
                if self._read_catalog().compacted == catalog.compacted:
                    break
            if not catalog.change and not segments and not self._is_there():
                raise DataError(
                    "is not a metric history", where=self.place.location, what_next="check the path, or record one"
                )
            return HistoryState(catalog, segments)

    def _read_catalog(self) -> Catalog:
        content = catalog_content(self.place)
        if self._known is None or self._known[0] != content:
            self._known = content, decode_catalog(content, self.place.path(CATALOG))
            self._forget_gone(self._known[1])
        return self._known[1]

    def _forget_gone(self, catalog: Catalog) -> None:
        there = {file.path for file in catalog.files}
        for path in set(self._checked) - there:  # copies: other threads add meanwhile
            self._checked.pop(path, None)
        for path in set(self._entities) - there:
            self._entities.pop(path, None)
        used = {id(entities) for entities in list(self._entities.values())}
        for text, entities in list(self._texts.items()):
            if id(entities) not in used:
                self._texts.pop(text, None)

    def _is_there(self) -> bool:
        try:
            return bool(self.place.sizes(""))
        except OSError as error:
            raise UnreachableError(f"cannot be read ({error})", where=self.place.location) from error

    def _open_segments(self, catalog: Catalog) -> dict[int, Segment]:
        """Segments that are not in files yet. A listing may lack names while others are added and removed, so that each
        number up to the first one that is not there is tried."""
        try:
            listed = [segment_number(name) for name in self.place.sizes(SEGMENTS)]
        except OSError as error:
            raise UnreachableError(f"cannot be read ({error})", where=self.place.location) from error
        newest = max((number for number in (*listed, *self._segments) if number is not None), default=0)
        newest = max(newest, catalog.compacted)
        found = {number: one for number, one in self._segments.items() if number > catalog.compacted}
        new = [number for number in range(catalog.compacted + 1, newest + 1) if number not in found]
        try:
            for number, content in zip(new, self.place.read_many([segment_path(one) for one in new]), strict=True):
                if content is not None:
                    found[number] = self._segment(number, content)
            number = newest
            while isinstance(self.place, LocalPlace) and (number := number + 1):
                found[number] = self._segment(number, self.place.read(segment_path(number)))
        except FileNotFoundError:  # not written yet
            pass
        except OSError as error:
            raise UnreachableError(f"cannot be read ({error})", where=self.place.location) from error
        self._segments = found
        return {number: segment for number, segment in sorted(found.items()) if segment is not None}

    def _segment(self, number: int, content: memoryview) -> Segment | None:
        try:
            return self._decoder.decode(content, self.place.path(segment_path(number)))
        except DataError as error:
            _LOG.warning("%s", error)
            return None

    def of_metric(
        self, state: HistoryState, metric: str, tiers: Sequence[str], start_ms: int, end_ms: int
    ) -> list[StoredFile]:
        """Whole files that together have each row of a metric in (start, end] once.

        Args:
            tiers: of lower resolution that may be used where a finer one is there too.

        Raises:
            FileGoneError: ask again, with a new state.
        """
        has = [metric in columns for columns in state.catalog.columns]
        near = [
            file
            for file in state.catalog.files
            if file.span_ms < end_ms and file.span_ms + file.hours * HOUR_MS > start_ms
        ]
        there = {file.path for file in state.catalog.files}
        while True:
            choice = [
                file
                for file in file_choice(near, tiers, there)
                if has[file.columns]
                and file.first_ms - max(TIER_MS[file.tier], 1) < end_ms
                and (file.last_ms or 0) > start_ms
            ]
            if self._copies is not None:
                self._copies.fetch(choice)
            damaged = [file for file in choice if not self.is_whole(file)]
            if not damaged:
                return choice
            damaged += remade_with([file for file in state.catalog.files if file.path in there], damaged)
            near = [file for file in near if file not in damaged]  # another resolution may stand in
            there.difference_update(file.path for file in damaged)

    def path(self, file: StoredFile) -> str:
        """Local path of a file, or of the copy of it."""
        return self.place.path(file.path) if self._copies is None else str(self._copies.path(file))

    def content(self, file: StoredFile) -> memoryview:
        """Content of a file.

        Raises:
            FileGoneError: ask again, with a new state.
            UnreachableError: it cannot be read.
        """
        try:
            return self.place.read(file.path)
        except FileNotFoundError as error:
            raise FileGoneError from error
        except OSError as error:
            raise UnreachableError(f"cannot be read ({error})", where=self.place.path(file.path)) from error

    def is_whole(self, file: StoredFile) -> bool:
        """Whether a file is what was written; each is read once to tell.

        Raises:
            FileGoneError: ask again, with a new state.
        """
        try:
            path = Path(self.path(file))
            status = path.stat()
            stamp = status.st_size, status.st_mtime_ns
            known = self._checked.get(file.path)
            if known is None or known[0] != stamp:
                is_whole = stamp[0] == file.bytes and crc32(path.read_bytes()) == file.crc32
                known = self._checked[file.path] = (stamp, is_whole)
                if not is_whole:
                    _LOG.warning("%s is damaged; left out", self.place.path(file.path))
        except FileNotFoundError as error:
            if file in self._read_catalog().files:
                if file.path not in self._checked:
                    _LOG.warning("%s is missing; left out", self.place.path(file.path))
                self._checked[file.path] = ((0, 0), False)
                return False
            raise FileGoneError from error
        except OSError as error:
            _LOG.warning("%s cannot be read (%s); left out", self.place.path(file.path), error)
            return False
        return known[1]

    def entities_of(self, file: StoredFile) -> tuple[tuple[int, ...], tuple[Labels, ...]]:
        """Numbers and labels of the series in a file.

        Raises:
            FileGoneError: ask again, with a new state.
            DataError: it cannot be read.
        """
        known = self._entities.get(file.path)
        if known is None:
            pa, parquet = load_pyarrow()
            path = self.path(file)
            try:
                metadata = parquet.read_metadata(path).metadata
            except FileNotFoundError as error:
                raise FileGoneError from error
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"cannot be read ({error})", where=path) from error
            metadata = metadata or {}
            text = metadata.get(b"stepscope.labels", b"") + metadata.get(b"stepscope.entities", b"")
            known = self._texts.get(text)  # the same in most files of a table
            if known is None:
                entities = entities_of(metadata, path)
                known = self._texts[text] = tuple(map(entity_id, entities)), entities
            self._entities[file.path] = known
        return known


class _Copies:
    """Copies of files of an object store in a temporary folder: they never change."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._folder = Path(tempfile.mkdtemp(prefix="stepscope-history-"))
        self._sizes: dict[str, int] = {}
        self._guard = threading.Lock()
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def path(self, file: StoredFile) -> Path:
        """Path of the copy."""
        return self._folder / file.path.replace("/", "+")

    def fetch(self, files: Sequence[StoredFile]) -> None:
        """Copy what is not there yet; forget the oldest of others where it becomes too much.

        Raises:
            FileGoneError: one is not there any more.
            UnreachableError: the store does not answer.
            DataError: the temporary folder is full.
        """
        with self._guard:
            missing = [file for file in files if file.path not in self._sizes]
            for place in range(0, len(missing), _COPIED_AT_ONCE):
                some = missing[place : place + _COPIED_AT_ONCE]
                try:
                    contents = list(self._place.read_many([file.path for file in some]))
                except OSError as error:
                    raise UnreachableError(f"cannot be read ({error})", where=self._place.location) from error
                for file, content in zip(some, contents, strict=True):
                    if content is not None:
                        self._write(self.path(file), content)
                        self._sizes[file.path] = len(content)
            needed = {file.path for file in files}
            excess = sum(self._sizes.values()) - MAX_COPIED_BYTES
            for path in [path for path in self._sizes if path not in needed]:
                if excess <= 0:
                    break
                excess -= self._sizes.pop(path)
                (self._folder / path.replace("/", "+")).unlink(missing_ok=True)

    def _write(self, path: Path, content: memoryview) -> None:
        try:
            path.write_bytes(content)
        except OSError as error:
            path.unlink(missing_ok=True)
            problem = from_os_error(error, "cannot be written", where=str(self._folder))
            problem.what_next = "set TMPDIR to a larger disk, or ask for less time"
            raise problem from error
