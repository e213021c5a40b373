"""Writer of the embedded metric history: one append-only segment a flush.

Nothing that the recorder does waits for more than one small file: compaction, lower resolution and retention are
`HistoryWriter.maintain`, which may run in another thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import numpy as np

from stepscope.core.errors import from_os_error
from stepscope.core.text.numbers import counted
from stepscope.store.history.catalog import Catalog, described, segment_path
from stepscope.store.history.maintenance import Maintenance
from stepscope.store.history.parquet import no_pyarrow
from stepscope.store.history.places import LocalPlace, place_of
from stepscope.store.history.plans import Retention
from stepscope.store.history.questions import HistoryEvent, HistoryMetric
from stepscope.store.history.recovery import recovered_catalog
from stepscope.store.history.samples import KnownEntities, SampleBlock, TableRows, joined, label_names, to_rows
from stepscope.store.history.segments import SegmentEncoder

_LOG = logging.getLogger(__name__)

MAX_PENDING_BYTES = 64 << 20
"""Kept in memory while the place cannot be written; of more, the oldest are lost."""
_JUMP_NS = 600 * 10**9
"""A time that lies so far from the newest one is worth a line."""


class HistoryWriter:
    """The one writer of a metric history in a directory or at an fsspec URL.

    Args:
        location: directory or URL; made if there is none.
        retention: how long what is kept; by default as `Retention` says.
        clock: ns since the epoch, for retention alone.

    Raises:
        UsageError: pyarrow is not installed.
        DataError: another writer has it, or it cannot be written.
        UnreachableError: the URL does not answer.
    """

    def __init__(
        self, location: str | Path, *, retention: Retention | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        if find_spec("pyarrow") is None:  # imported at the first compaction
            raise no_pyarrow()
        self._place = place_of(location)
        self._lock = self._place.lock()
        try:
            catalog = recovered_catalog(self._place)
            self._maintenance = Maintenance(self._place, catalog, retention or Retention(), clock)
            self._next = 1 + self._maintenance.find_segments()
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise from_os_error(error, "cannot be written", where=self._place.location) from error
            raise
        self._encoder = SegmentEncoder(packed=not isinstance(self._place, LocalPlace))
        self._guard = threading.Lock()
        self._flushing = threading.Lock()
        self._known: dict[tuple[str, ...], KnownEntities] = {}
        self._blocks: dict[tuple[str, ...], list[TableRows]] = {}
        self._events: list[HistoryEvent] = []
        self._unwritten: list[tuple[bytes, list[TableRows]]] = []
        self._num_lost, self._num_lost_before = 0, 0
        self._is_failing = False
        self._newest_ns = catalog.newest_ms * 1_000_000
        self._is_behind = False
        self._has_appended = False

    @property
    def catalog(self) -> Catalog:
        """What the history holds in Parquet files."""
        return self._maintenance.catalog

    @property
    def num_lost(self) -> int:
        """Batches that were lost so far: of those that could not be written the oldest."""
        return self._num_lost_before + self._num_lost

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def describe(self, metrics: Iterable[HistoryMetric]) -> None:
        """Say kinds and units of metrics, as pages have them; otherwise their names say (`_total`: a counter)."""
        self._maintenance.describe({metric.name: described(metric) for metric in metrics})

    def append(self, block: SampleBlock) -> None:
        """Take samples. They are kept once `flush` has returned True.

        Raises:
            ValueError: the parts of the block do not fit together.
        """
        names = label_names(block)
        if not len(block.times_ns) or not block.columns:
            return
        with self._guard:
            known = self._known.get(names)
            if known is None:
                known = self._known[names] = KnownEntities(names)
            rows = to_rows(block, known)
            self._blocks.setdefault(names, []).append(rows)
        self._watch_clock(int(rows.times_ms[0]) * 1_000_000, int(rows.times_ms.max()) * 1_000_000)

    def append_events(self, events: Iterable[HistoryEvent]) -> None:
        """Take events. One that ends, or whose text changes, is given again: its kind, start, labels and code tell."""
        with self._guard:
            self._events.extend(events)

    def flush(self) -> bool:
        """Write what was taken since the last flush as one segment.

        Returns:
            Whether all is on the disk. If not, one warning says why, and the next flush tries again; of more than
            MAX_PENDING_BYTES the oldest samples are lost: a gap.

        Raises:
            DataError: another writer has taken the place.
        """
        with self._flushing:
            with self._guard:
                tables = [joined(parts, self._known[names]) for names, parts in self._blocks.items()]
                self._forget_idle(tables)
                self._blocks = {}
                events, self._events = self._events, []
            if tables or events:
                self._unwritten.append((self._encoder.encode(tables, events), tables))
            try:
                self._lock.renew()
                while self._unwritten:
                    content, tables = self._unwritten[0]
                    self._place.write(segment_path(self._next), content)
                    self._maintenance.wrote(self._next, tables, len(content))
                    self._next += 1
                    del self._unwritten[0]
            except OSError as error:
                self._is_full(error)
                return False
            if self._is_failing:
                lost = f"; {counted(self._num_lost, 'batch')} lost" if self._num_lost else "; nothing is lost"
                _LOG.warning("%s: can be written again%s", self._place.location, lost)
                self._is_failing, self._num_lost_before, self._num_lost = False, self.num_lost, 0
            return True

    def maintain(self) -> bool:
        """Do one piece of work on what is written: compact, lower the resolution, delete what is too old.

        Call it between flushes until it returns False. A piece is about an hour of one table; what was cut short is
        done again.

        Returns:
            Whether more remains to be done now.

        Raises:
            DataError: another writer has taken the place.
        """
        try:
            self._lock.renew()
        except OSError:  # the next flush says so
            return False
        return self._maintenance.step()

    def compact(self) -> None:
        """Flush, and move all segments into Parquet files now, also those of the hour that is not over."""
        self.flush()
        while self._maintenance.step(is_last=True):
            pass

    def close(self) -> None:
        """Flush, and let others write. Segments stay as they are."""
        try:
            self.flush()
        finally:
            self._lock.release()

    def _forget_idle(self, tables: Sequence[TableRows]) -> None:
        """Begin anew with entities of which most have no rows any more."""
        for rows in tables:
            if len(rows.entities) > 2 * int(np.count_nonzero(np.bincount(rows.entity, minlength=1))) + 100:
                del self._known[rows.labels]

    def _is_full(self, error: OSError) -> None:
        if not self._is_failing:
            _LOG.warning("%s: cannot be written (%s); samples wait in memory", self._place.location, error)
            self._is_failing = True
        while sum(len(content) for content, _ in self._unwritten) > MAX_PENDING_BYTES:
            del self._unwritten[0]
            self._num_lost += 1

    def _watch_clock(self, first_ns: int, newest_ns: int) -> None:
        """One line where time jumps; samples keep the time that they came with."""
        behind, ahead = self._newest_ns - first_ns, newest_ns - self._newest_ns
        if self._newest_ns and behind > _JUMP_NS and not self._is_behind:
            _LOG.warning("%s: time went back by %s s; samples are kept", self._place.location, behind // 10**9)
            self._is_behind = True
        elif behind <= _JUMP_NS:
            self._is_behind = False
            if self._newest_ns and ahead > _JUMP_NS and self._has_appended:
                _LOG.warning("%s: time went forth by %s s; samples are kept", self._place.location, ahead // 10**9)
        self._newest_ns = max(self._newest_ns, newest_ns)
        self._has_appended = True
