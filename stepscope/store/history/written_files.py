"""Parquet files of a history and the catalog that names them: written first, then named in one step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from stepscope.core.errors import DataError
from stepscope.store.history.catalog import (
    CATALOG,
    EVENTS,
    Catalog,
    MetricEntry,
    Retired,
    StoredFile,
    encode_catalog,
    metric_entry,
    stamp,
)
from stepscope.store.history.event_records import edges_of, newest_events
from stepscope.store.history.parquet import (
    Columns,
    Origin,
    decode_entities,
    decode_events,
    decode_rows,
    encode_events,
    encode_rows,
)
from stepscope.store.history.places import Place
from stepscope.store.history.plans import remade_with
from stepscope.store.history.questions import HistoryEvent, Labels
from stepscope.store.history.resolution import LAST_TIME
from stepscope.store.history.samples import TableRows
from stepscope.store.history.segments import crc32

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class WrittenFiles:
    """Files and catalog of a history, as its one writer has them.

    Args:
        clock: ns since the epoch.
    """

    def __init__(self, place: Place, catalog: Catalog, clock: Callable[[], int]) -> None:
        self.place = place
        self.catalog = catalog
        self._clock = clock

    def rows(self, file: StoredFile, wanted: frozenset[Labels] | None = None) -> TableRows:
        """Rows of a file, or those of some entities. Raises DataError: it is damaged."""
        return decode_rows(self._content(file), file.path, wanted)

    def entities(self, file: StoredFile) -> tuple[Labels, ...]:
        """Labels of the series in a file. Raises DataError: it is damaged."""
        return decode_entities(self._content(file), file.path)

    def _content(self, file: StoredFile) -> memoryview:
        content = self.place.read(file.path)
        if crc32(content) != file.crc32:
            raise DataError("is damaged (its checksum is wrong)", where=self.place.path(file.path))
        return content

    def events(self, file: StoredFile) -> list[HistoryEvent]:
        """Events in a file. Raises DataError: it is damaged."""
        return decode_events(self._content(file), file.path)

    def readable(
        self, files: Iterable[StoredFile], read: Callable[[StoredFile], _T], damaged: list[StoredFile]
    ) -> tuple[list[StoredFile], list[_T]]:
        """Files that can be read, and what is in each; the others are set aside."""
        whole, contents = [], []
        for file in files:
            try:
                contents.append(read(file))
                whole.append(file)
            except (DataError, FileNotFoundError) as error:
                damaged.append(file)
                set_aside(self.place, file.path, error)
        return whole, contents

    def entry(self, metric: str) -> MetricEntry:
        """Kind and unit of a metric."""
        return self.catalog.metrics.get(metric) or metric_entry(metric)

    def write_rows(
        self, origin: Origin, rows: TableRows, number: str, metrics: Sequence[str] | None = None
    ) -> StoredFile:
        """Write sorted rows, not yet in the catalog; `metrics` are those of the columns, by default their names."""
        metrics = sorted(rows.columns) if metrics is None else metrics
        values = dict(rows.columns)
        times = {"time": rows.times_ms}
        if LAST_TIME in values:
            times[LAST_TIME] = values.pop(LAST_TIME).astype(np.int64)
        columns = Columns(rows.labels, rows.entities, rows.entity, times, values)
        content = memoryview(encode_rows(columns, origin=origin, metrics={name: self.entry(name) for name in metrics}))
        path = f"{origin.tier}/{origin.table}/{stamp(origin.span_ms)}-{number}.parquet"
        self.place.write(path, content)
        return stored_file(
            path,
            origin,
            edges=(int(rows.times_ms.min()), int(rows.times_ms.max())),
            rows=len(rows),
            content=content,
            columns=self._columns_index(tuple(metrics)),
        )

    def _columns_index(self, metrics: tuple[str, ...]) -> int:
        columns = self.catalog.columns
        if metrics not in columns:
            columns = (*columns, metrics)
            known = {**{name: metric_entry(name) for name in metrics}, **self.catalog.metrics}
            self.catalog = msgspec.structs.replace(self.catalog, columns=columns, metrics=known)
        return columns.index(metrics)

    def write_events(
        self, day: int, events: Sequence[HistoryEvent], number: int, replaces: Sequence[StoredFile]
    ) -> StoredFile:
        """Write events of a day, not yet in the catalog."""
        events = newest_events(events)
        origin = Origin(EVENTS, "", day, 24, replaces=paths_of(replaces))
        content = memoryview(encode_events(events, origin=origin))
        path = f"{EVENTS}/{stamp(day)[:10]}-{number}.parquet"
        self.place.write(path, content)
        return stored_file(path, origin, edges=edges_of(events), rows=len(events), content=content, columns=0)

    def commit(
        self,
        *,
        files: Sequence[StoredFile] = (),
        replaced: Sequence[StoredFile] = (),
        dropped: Sequence[StoredFile] = (),
        renamed: Mapping[str, str] | None = None,
        tables: dict[str, tuple[str, ...]] | None = None,
        metrics: dict[str, MetricEntry] | None = None,
        compacted: int | None = None,
    ) -> None:
        """Replace the catalog: from now on readers see the change.

        Args:
            replaced: files that are retired; dropped: that are not there any more.
            renamed: paths of files whose rows another one has now.
        """
        old = self.catalog
        replaced = [*replaced, *remade_with(old.files, dropped)]
        gone = {file.path for file in (*replaced, *dropped)}
        now_ms = self._clock() // 1_000_000
        kept = [file for file in old.files if file.path not in gone]
        there = {file.path for file in (*kept, *files)}
        kept = [_with_sources(file, there, renamed or {}) for file in kept]
        new = msgspec.structs.replace(
            old,
            change=old.change + 1,
            compacted=old.compacted if compacted is None else compacted,
            newest_ms=max([old.newest_ms, *(file.last_ms or 0 for file in files if file.tier != EVENTS)]),
            tables=old.tables if tables is None else tables,
            metrics=old.metrics if metrics is None else metrics,
            files=tuple(sorted((*kept, *files), key=lambda file: (file.tier, file.table, file.span_ms, file.path))),
            retired=(*old.retired, *(Retired(file.path, now_ms) for file in replaced)),
        )
        self.place.write(CATALOG, encode_catalog(new))
        self.catalog = new


def set_aside(place: Place, path: str, error: Exception) -> None:
    """Move a file that cannot be used to `damaged/`, with one line."""
    try:
        aside = place.set_aside(path)
        _LOG.warning("%s; set aside as %s", error, place.path(aside))
    except FileNotFoundError:
        _LOG.warning("%s is gone; left out", place.path(path))


def stored_file(
    path: str,
    origin: Origin,
    *,
    edges: tuple[int, int | None],
    rows: int,
    content: memoryview,
    columns: int,
) -> StoredFile:
    """Entry of a file in the catalog."""
    return StoredFile(
        path,
        origin.tier,
        origin.table,
        origin.span_ms,
        edges[0],
        edges[1],
        rows,
        len(content),
        crc32(content),
        columns,
        origin.hours,
        origin.sources,
    )


def _with_sources(file: StoredFile, there: set[str], renamed: Mapping[str, str]) -> StoredFile:
    """The entry after others were merged or have gone; one whose sources are all gone stands for itself."""
    if not file.sources or (not renamed and not there.isdisjoint(file.sources)):
        return file
    sources = tuple(dict.fromkeys(renamed.get(source, source) for source in file.sources))
    return msgspec.structs.replace(file, sources=sources if not there.isdisjoint(sources) else ())


def paths_of(files: Iterable[StoredFile]) -> tuple[str, ...]:
    """Paths of files."""
    return tuple(file.path for file in files)
