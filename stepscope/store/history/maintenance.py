"""Maintenance of the embedded metric history: compaction into hourly files, lower resolution, retention.

Each piece writes new files, then the catalog that names them, then nothing: what they replace is removed after
GRACE_SECONDS, when no reader can be in the middle of it. A kill at any moment leaves files that no catalog names.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import msgspec
import numpy as np

from stepscope.core.errors import DataError
from stepscope.store.history.catalog import (
    EVENTS,
    HOUR_MS,
    RAW,
    SEGMENTS,
    TIER_MS,
    Catalog,
    MetricEntry,
    StoredFile,
    file_number,
    hour_of,
    segment_number,
    segment_path,
    table_name,
)
from stepscope.store.history.event_records import by_day
from stepscope.store.history.parquet import Origin
from stepscope.store.history.places import Place
from stepscope.store.history.plans import (
    LowerPlan,
    Retention,
    expired_files,
    lower_plans,
    merge_plan,
    num_cells,
    small_parts,
)
from stepscope.store.history.questions import HistoryEvent, Labels
from stepscope.store.history.resolution import coarser
from stepscope.store.history.samples import TableRows, joined, selected, sort_key, sorted_rows, without_idle
from stepscope.store.history.segments import SegmentDecoder
from stepscope.store.history.written_files import WrittenFiles, paths_of, set_aside

_LOG = logging.getLogger(__name__)

GRACE_SECONDS = 120
"""Replaced files stay for so long; a reader that takes longer starts again."""
BATCH_BYTES = 128 << 20
"""Of segments that are compacted at once: the memory that it takes is about three times as much."""
BATCH_SEGMENTS = 1000
LOWER_CELLS = 4_000_000
"""Values that one piece of work reads, but for the last file."""
PART_CELLS = 16_000_000
"""Values in memory at once: of a larger hour, some entities at a time."""
_CLOCK_STEP_MS = 2 * HOUR_MS


@dataclass(frozen=True, slots=True)
class _OpenSegment:
    """Oldest and newest time of the rows in a segment (None: it has none), and its size."""

    first_ms: int | None
    last_ms: int | None
    bytes: int

    def is_within(self, hour_ms: int) -> bool:
        """Whether all its rows are of one hour."""
        if self.first_ms is None or self.last_ms is None:
            return True
        return hour_of(self.first_ms) == hour_of(self.last_ms) == hour_ms


class Maintenance:
    """Maintenance of one history, by its one writer.

    Args:
        clock: ns since the epoch.
    """

    def __init__(self, place: Place, catalog: Catalog, retention: Retention, clock: Callable[[], int]) -> None:
        self._place = place
        self._files = WrittenFiles(place, catalog, clock)
        self._retention = retention
        self._clock = clock
        self._decoder = SegmentDecoder()
        self._working = threading.Lock()
        self._guard = threading.Lock()
        self._open: dict[int, _OpenSegment] = {}
        self._compacted: list[int] = []
        self._compacted_since = time.monotonic()
        self._expired: tuple[int, int] | None = None
        self._settled: tuple[int, int] | None = None
        self._failing = ""
        self._last_clock_ms = catalog.newest_ms
        self._held_until_ms = 0

    @property
    def catalog(self) -> Catalog:
        """What the history holds in files."""
        return self._files.catalog

    def find_segments(self) -> int:
        """Find the segments that an earlier writer left; the number of the newest one ever."""
        for name, size in self._place.sizes(SEGMENTS).items():
            number = segment_number(name)
            if number is None:
                continue
            if number <= self.catalog.compacted:
                self._compacted.append(number)
                continue
            try:
                segment = self._decoder.decode(self._place.read(segment_path(number)), segment_path(number))
                self.wrote(number, segment.tables, size)
            except DataError:  # set aside when its batch is compacted
                self.wrote(number, (), size)
        return max([self.catalog.compacted, *self._open])

    def wrote(self, number: int, tables: Iterable[TableRows], size: int) -> None:
        """Take note of a segment."""
        times = [int(edge) for rows in tables for edge in (rows.times_ms.min(), rows.times_ms.max())]
        with self._guard:
            self._open[number] = _OpenSegment(min(times, default=None), max(times, default=None), size)

    def describe(self, metrics: Mapping[str, MetricEntry]) -> None:
        """Take kinds and units of metrics."""
        with self._working:
            if any(self.catalog.metrics.get(name) != entry for name, entry in metrics.items()):
                self._files.commit(metrics={**self.catalog.metrics, **metrics})

    def step(self, *, is_last: bool = False) -> bool:
        """Do one piece of work; whether there was one."""
        with self._working:
            return self._step(is_last=is_last)

    def _step(self, *, is_last: bool) -> bool:
        try:
            worked = self._compact(is_last=is_last) or self._reshape() or self._expire()
            self._remove_retired()
        except OSError as error:
            if self._failing != str(error):
                _LOG.warning("%s: cannot be maintained (%s); tried again later", self._place.location, error)
            self._failing = str(error)
            return False
        if worked:
            self._failing = ""
        return worked

    # -- compaction

    def _compact(self, *, is_last: bool) -> bool:
        batch = self._due(is_last=is_last)
        if not batch:
            return False
        parts: dict[tuple[str, ...], list[TableRows]] = defaultdict(list)
        events: list[HistoryEvent] = []
        paths = [segment_path(number) for number in batch]
        for path, content in zip(paths, self._place.read_many(paths), strict=True):
            try:
                segment = self._decoder.decode(content or memoryview(b""), self._place.path(path))
            except DataError as error:
                set_aside(self._place, path, error)
                continue
            events += segment.events
            for rows in segment.tables:
                parts[rows.labels].append(rows)
        files: list[StoredFile] = []
        replaced: list[StoredFile] = []
        damaged: list[StoredFile] = []
        tables = dict(self.catalog.tables)
        for labels in list(parts):
            table = table_name(labels)
            tables[table] = labels
            for span, rows in _by_hour(joined(parts.pop(labels))):
                limit = PART_CELLS // max(len(rows.columns), 1)
                parts_of_hour = small_parts(self.catalog.files, table, span, num_rows=len(rows), max_rows=limit)
                merged, old = self._files.readable(parts_of_hour, self._files.rows, damaged)
                rows = sorted_rows(joined([*old, rows]))
                origin = Origin(RAW, table, span, replaces=paths_of(merged))
                files.append(self._files.write_rows(origin, rows, str(batch[-1])))
                replaced += merged
        for day, some in by_day(events):
            of_day = [file for file in self.catalog.files if file.tier == EVENTS and file.span_ms == day]
            merged, known = self._files.readable(of_day, self._files.events, damaged)
            files.append(self._files.write_events(day, [*chain.from_iterable(known), *some], batch[-1], merged))
            replaced += merged
        self._files.commit(files=files, replaced=replaced, dropped=damaged, tables=tables, compacted=batch[-1])
        with self._guard:
            for number in batch:
                del self._open[number]
        self._compacted += batch
        self._compacted_since = time.monotonic()
        return True

    def _due(self, *, is_last: bool) -> list[int]:
        """Numbers of the oldest segments that are to be compacted together."""
        with self._guard:
            spans = sorted(self._open.items())
        newest_ms = next((one.last_ms for _, one in reversed(spans) if one.last_ms is not None), None)
        is_over = is_last or len(spans) > BATCH_SEGMENTS or sum(one.bytes for _, one in spans) > BATCH_BYTES
        is_over |= newest_ms is not None and self._clock() // 1_000_000 - newest_ms > HOUR_MS
        batch: list[int] = []
        size = 0
        for number, one in spans:
            if not is_over and (newest_ms is None or one.is_within(hour_of(newest_ms))):
                break
            if batch and (size + one.bytes > BATCH_BYTES or len(batch) >= BATCH_SEGMENTS):
                break
            batch.append(number)
            size += one.bytes
        return batch

    # -- lower resolution, merging, retention

    def _reshape(self) -> bool:
        state = self.catalog.change, self._open_hour()
        if state == self._settled:
            return False
        if self._lower() or self._merge():
            return True
        self._settled = state
        return False

    def _lower(self) -> bool:
        """Make files of lower resolution, until LOWER_CELLS are read."""
        damaged: list[StoredFile] = []
        files: list[StoredFile] = []
        replaced: list[StoredFile] = []
        cells = 0
        for plan in lower_plans(self.catalog, self._open_hour()):
            made = self._lower_files(plan, damaged)
            if damaged:
                break  # the rest is done at the next step
            files += made
            replaced += plan.replaced
            cells += sum(num_cells(self.catalog, file) for file in plan.sources)
            if cells > LOWER_CELLS or plan.replaced:
                break
        if files or damaged:
            self._files.commit(files=files, replaced=replaced, dropped=damaged)
        return bool(files or damaged)

    def _lower_files(self, plan: LowerPlan, damaged: list[StoredFile]) -> list[StoredFile]:
        metrics = self._metrics_of(plan.sources)
        span, hours = plan.sources[0].span_ms, plan.sources[0].hours
        origin = Origin(plan.tier, plan.table, span, hours, paths_of(plan.sources), paths_of(plan.replaced))
        made = []
        for part, wanted in enumerate(self._entity_parts(plan.sources, damaged)):
            _, parts = self._files.readable(plan.sources, partial(self._files.rows, wanted=wanted), damaged)
            if damaged:
                return []
            rows = parts[0] if len(parts) == 1 else sorted_rows(joined(parts))
            lower = coarser(rows, {name: self._files.entry(name).kind for name in metrics}, TIER_MS[plan.tier])
            number = f"{self.catalog.change + 1}" + (f"-{self.catalog.change + 1}.{part}" if part else "")
            made += [self._files.write_rows(origin, lower, number, metrics)] if len(lower) else []
        return made

    def _entity_parts(self, files: Sequence[StoredFile], damaged: list[StoredFile]) -> list[frozenset[Labels] | None]:
        """Sets of entities of which PART_CELLS are in the files; None: all."""
        num_parts = -(-sum(num_cells(self.catalog, file) for file in files) // PART_CELLS)
        if num_parts < 2:
            return [None]
        _, found = self._files.readable(files, self._files.entities, damaged)
        entities = sorted({one for some in found for one in some}, key=sort_key)
        size = -(-len(entities) // num_parts) or 1
        return [frozenset(entities[place : place + size]) for place in range(0, len(entities), size)]

    def _merge(self) -> bool:
        """Make one file of small ones."""
        plan = merge_plan(self.catalog, self._open_hour())
        if not plan:
            return False
        damaged: list[StoredFile] = []
        whole, parts = self._files.readable(plan, self._files.rows, damaged)
        if damaged:
            self._files.commit(dropped=damaged)
            return True
        first = whole[0]
        hours = max(file.span_ms + file.hours * HOUR_MS for file in whole) - first.span_ms
        there = {file.path for file in self.catalog.files}
        sources = tuple(source for file in whole for source in file.sources if source in there)
        origin = Origin(first.tier, first.table, first.span_ms, hours // HOUR_MS, sources, paths_of(whole))
        number = str(self.catalog.change + 1)
        if first.tier == RAW:
            number = f"{max(map(file_number, paths_of(whole)))}-{number}"
        file = self._files.write_rows(origin, sorted_rows(joined(parts)), number, self._metrics_of(whole))
        self._files.commit(files=[file], replaced=whole, renamed=dict.fromkeys(paths_of(whole), file.path))
        return True

    def _expire(self) -> bool:
        now_ms = self._now_ms()
        if now_ms is None or (now_ms // 60_000, self.catalog.change) == self._expired:
            return False
        old = expired_files(self.catalog, self._retention, now_ms)
        if old:
            self._files.commit(replaced=old)
        self._expired = now_ms // 60_000, self.catalog.change
        return bool(old)

    def _open_hour(self) -> int:
        """Start of the hour of the oldest row that is not in a file; hours before it are over."""
        with self._guard:
            open_ms = [one.first_ms for one in self._open.values() if one.first_ms is not None]
        return hour_of(min(open_ms, default=self.catalog.newest_ms))

    def _metrics_of(self, files: Iterable[StoredFile]) -> list[str]:
        return sorted({metric for file in files for metric in self.catalog.columns[file.columns]})

    def _now_ms(self) -> int | None:
        """The time, or None for an hour after the clock has jumped: what a wrong clock deletes is lost."""
        now_ms = self._clock() // 1_000_000
        if self._last_clock_ms and abs(now_ms - self._last_clock_ms) > _CLOCK_STEP_MS:
            self._held_until_ms = now_ms + HOUR_MS
        elif now_ms < self._last_clock_ms:
            self._held_until_ms = min(self._held_until_ms, now_ms + HOUR_MS)
        self._last_clock_ms = now_ms
        return None if now_ms < self._held_until_ms else now_ms

    def _remove_retired(self) -> None:
        """Segments first, the newest before the others: while a batch is there, so is what it was merged with."""
        if time.monotonic() - self._compacted_since < GRACE_SECONDS:
            return
        self._place.remove_many([segment_path(number) for number in sorted(self._compacted)])
        self._compacted.clear()
        now_ms = self._clock() // 1_000_000
        due = [one for one in self.catalog.retired if abs(now_ms - one.since_ms) > 1000 * GRACE_SECONDS]
        for one in due:
            self._place.remove(one.path)
        if due:
            kept = tuple(one for one in self.catalog.retired if one not in due)
            self._files.catalog = msgspec.structs.replace(self.catalog, retired=kept)
            self._files.commit()


def _by_hour(rows: TableRows) -> list[tuple[int, TableRows]]:
    hours = (rows.times_ms - 1) // HOUR_MS * HOUR_MS
    spans = np.unique(hours)
    if len(spans) == 1:
        return [(int(spans[0]), without_idle(rows))]
    return [(int(span), selected(rows, hours == span)) for span in spans]
