"""How do decoded events become columns? Chunk by chunk into narrow arrays, joined once at the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.categories import (
    LEGACY_ANNOTATIONS,
    LEGACY_NAMES,
    LEGACY_OPERATOR,
    MODULE_FRAME,
    PYTHON_FUNCTION,
    TRACE_SPAN,
    category_of,
)
from stepscope.trace.columns import (
    DEVICE_CATEGORIES,
    NONE,
    Category,
    IntColumn,
    KernelLaunch,
    ReadQuality,
    Shapes,
    TraceColumns,
    TraceHeader,
)
from stepscope.trace.communication import CommunicationBuilder
from stepscope.trace.events import NO_ARGUMENTS, Arguments, Event, ExactEvent, LaunchKey, told_ranks, told_ranks_of
from stepscope.trace.header import MOST_RANKS
from stepscope.trace.interning import GrowingColumn, Numbered, integers, narrow
from stepscope.trace.lanes import Track, lanes_of
from stepscope.trace.scanning import COLUMNS, BatchScanner, ScannedBatch, has_accelerator
from stepscope.trace.splitting import Batch
from stepscope.trace.sync_waits import SyncWaitBuilder
from stepscope.trace.times import UNKNOWN_NS, durations_ns, exact_starts_ns, starts_ns

_BETWEEN_TEXTS = b"\0"
"""Never part of valid JSON."""
_NO_SHAPES = _BETWEEN_TEXTS * 2
_NO_LAUNCH: LaunchKey = ((), (), NONE, NONE)
_IS_DEVICE = np.isin(np.arange(len(Category)), DEVICE_CATEGORIES)
_HAVE_SHAPES = np.isin(np.arange(len(Category)), (Category.CPU_OP, Category.USER_ANNOTATION))
"""Operators, and the annotations of communication backends."""
_MAY_COMMUNICATE = np.isin(np.arange(len(Category)), (Category.CPU_OP, Category.KERNEL))
_MAY_WAIT = np.arange(len(Category)) == Category.SYNC_RECORD


class ColumnsBuilder:
    """Takes complete events in the file's order.

    Attributes:
        num_rows: rows so far.
        dropped: complete events that are impossible: no times, negative or overflowed ones, device work at time 0.
        saw_stacks: a python_function was among them.
        communication: the rows that name a collective.
        waits: the rows that name an event that is waited for.
        told_ranks: process -> rank, where the events' arguments tell it (merging tools write it there).
    """

    def __init__(self, *, keep_python_functions: bool) -> None:
        self.num_rows = 0
        self.dropped = 0
        self.saw_stacks = False
        self.communication = CommunicationBuilder()
        self.waits = SyncWaitBuilder()
        self.tracks: Numbered[Track] = Numbered()
        self.told_ranks: dict[int | str | None, int] = {}
        self.names: Numbered[str | None] = Numbered()
        self.shapes: Numbered[bytes] = Numbered()
        self.shapes[_NO_SHAPES]
        self.launches: Numbered[LaunchKey] = Numbered()
        self.launches[_NO_LAUNCH]
        self.columns = {name: GrowingColumn() for name in COLUMNS}
        self._ignored = {TRACE_SPAN} if keep_python_functions else {TRACE_SPAN, PYTHON_FUNCTION}
        self._categories: list[Category] = []
        self._is_legacy = False
        self._is_exact = False
        self._scanner: BatchScanner | None = None

    def scanner(self) -> BatchScanner | None:
        """A scanner into this builder's tables; None without the accelerator."""
        if not has_accelerator():
            return None
        self._scanner = BatchScanner(
            ignores_frames=PYTHON_FUNCTION in self._ignored,
            tracks=self.tracks,
            names=self.names,
            shapes=self.shapes,
            launches=self.launches,
        )
        return self._scanner

    def add(self, batch: Batch | ScannedBatch | Sequence[ExactEvent]) -> None:
        """Append a batch's complete events; other phases are skipped."""
        if isinstance(batch, ScannedBatch):
            self._append_scanned(batch)
            return
        events: list[Any]
        start = None
        num_tracks = len(self.tracks)
        if isinstance(batch, Batch) and not self._is_exact:
            events = self._complete(batch.events)
            start = starts_ns([event.ts for event in events])
            self._is_exact = start is None and bool(events)
        if start is None:
            exact = batch.exact() if isinstance(batch, Batch) else batch
            self.dropped += [event.ph for event in exact].count("")
            events = self._complete(exact)
            start = exact_starts_ns([event.ts for event in events])
        if events:
            self._append(events, start)
        if len(self.tracks) > num_tracks:
            ranks = told_ranks(bytes(batch.array_text)) if isinstance(batch, Batch) else told_ranks_of(batch)
            self.told_ranks = {pid: rank for pid, rank in ranks.items() if rank <= MOST_RANKS} | self.told_ranks

    def build(self, header: TraceHeader, quality: ReadQuality) -> TraceColumns:
        """All rows as one trace; called once.

        Args:
            header: its base time is added to all timestamps, its groups complete the rows' groups.
            quality: the counts so far.
        """
        start = self.columns.pop("start_ns").finish()
        start += header.base_time_ns
        end = start + self.columns.pop("duration_ns").finish()
        track = self.columns.pop("track").finish()
        places, lanes = lanes_of(list(self.tracks), self._categories, self.told_ranks)
        lane = narrow(np.array(places, np.int64))[track]
        name = self.columns.pop("name").finish()
        category = self._final_categories(track, name)
        del track
        calls, groups = self.communication.build(header.groups)
        return TraceColumns(
            header=header,
            quality=quality,
            category=category,
            name=name,
            lane=lane,
            start_ns=start,
            end_ns=end,
            **{column: grown.finish() for column, grown in self.columns.items()},
            names=tuple(name or "" for name in self.names),
            lanes=lanes,
            shape_table=tuple(_shapes(texts) for texts in list(self.shapes)[1:]),
            launches=tuple(_launch(key) for key in list(self.launches)[1:]),
            groups=groups,
            communication=calls,
            waits=self.waits.build(),
        )

    def _final_categories(self, track: IntColumn, name: IntColumn) -> IntColumn:
        """Category codes; annotations of 2021, which were operators then, become annotations."""
        category = np.array(self._categories, np.int8)[track]
        if self._is_legacy:
            is_operator = np.array([track_name == LEGACY_OPERATOR for track_name, _, _ in self.tracks])
            is_annotation = np.array([(text or "").startswith(LEGACY_ANNOTATIONS) for text in self.names])
            category[is_operator[track] & is_annotation[name]] = Category.USER_ANNOTATION
        return category

    def _complete(self, events: Sequence[Any]) -> list[Any]:
        ignored = self._ignored
        return [event for event in events if event.ph == "X" and (event.cat not in ignored or _is_module_frame(event))]

    def _append(self, events: list[Event | ExactEvent], start: npt.NDArray[np.int64]) -> None:
        duration = durations_ns([event.dur for event in events])
        tracks = self.tracks
        track = integers([tracks[event.cat, event.pid, event.tid] for event in events])
        category = self._categories_of(track)
        impossible = (start == UNKNOWN_NS) | (duration == UNKNOWN_NS)
        impossible |= (start == 0) & (duration == 0) & _IS_DEVICE[category]
        if impossible.any():
            self.dropped += int(impossible.sum())
            stay = ~impossible
            events = list(compress(events, stay.tolist()))
            start, duration, track, category = start[stay], duration[stay], track[stay], category[stay]
        if not events:
            return
        self.columns["start_ns"].add(start)
        self.columns["duration_ns"].add(narrow(duration))
        self.columns["track"].add(track)
        names = self.names
        self.columns["name"].add(integers(list(map(names.__getitem__, [event.name for event in events]))))
        self._append_arguments([event.args or NO_ARGUMENTS for event in events], category)
        self.num_rows += len(events)

    def _append_scanned(self, batch: ScannedBatch) -> None:
        for name, column in batch.columns.items():
            self.columns[name].add(column)
        category = self._categories_of(batch.columns["track"][batch.calls])
        arguments = batch.call_arguments
        calls = _MAY_COMMUNICATE[category] & np.array([args.collective is not None for args in arguments], np.bool_)
        waits = _MAY_WAIT[category] & np.array([bool(args.waited_record) for args in arguments], np.bool_)
        for table, chosen in ((self.communication, calls.tolist()), (self.waits, waits.tolist())):
            rows = [self.num_rows + row for row in compress(batch.calls, chosen)]
            table.add(rows, compress(arguments, chosen))
        self.num_rows += batch.num_rows

    def _append_arguments(self, arguments: list[Arguments], category: IntColumn) -> None:
        external_id = integers([args.external_id for args in arguments])
        if self._is_legacy:
            legacy = integers([args.legacy_external_id for args in arguments])
            external_id = np.where(external_id == NONE, legacy, external_id)
        self.columns["correlation"].add(integers([args.correlation for args in arguments]))
        self.columns["external_id"].add(external_id)

        operators = np.flatnonzero(_HAVE_SHAPES[category])
        texts = [
            _BETWEEN_TEXTS.join((args.input_dims, args.input_types, args.concrete_inputs))
            for args in _pick(arguments, operators)
        ]
        numbers = np.fromiter(map(self.shapes.__getitem__, texts), np.int64, len(texts))
        self._add_at(operators, "shapes", numbers - 1, len(category))  # number 0 is "nothing recorded"

        kernels = np.flatnonzero(category == Category.KERNEL)
        keys = [(args.grid, args.block, args.registers, args.shared_memory) for args in _pick(arguments, kernels)]
        numbers = np.fromiter(map(self.launches.__getitem__, keys), np.int64, len(keys))
        self._add_at(kernels, "launch", numbers - 1, len(category))  # number 0 is "nothing recorded"

        copies = np.flatnonzero((category == Category.MEMCPY) | (category == Category.MEMSET))
        sizes = [args.num_bytes for args in _pick(arguments, copies)]
        self._add_at(copies, "num_bytes", integers(sizes), len(category))

        names = [args.collective for args in arguments]
        named = [] if names.count(None) == len(names) else np.flatnonzero(_MAY_COMMUNICATE[category]).tolist()
        calls = [row for row in named if names[row] is not None]
        self.communication.add([self.num_rows + row for row in calls], [arguments[row] for row in calls])
        waits = [row for row in np.flatnonzero(_MAY_WAIT[category]).tolist() if arguments[row].waited_record]
        self.waits.add([self.num_rows + row for row in waits], [arguments[row] for row in waits])

    def _add_at(self, rows: npt.NDArray[np.intp], name: str, values: IntColumn, count: int) -> None:
        column = np.full(count, NONE, values.dtype)
        column[rows] = values
        self.columns[name].add(narrow(column))

    def _categories_of(self, track: IntColumn) -> IntColumn:
        for name, _, _ in list(self.tracks)[len(self._categories) :]:
            self._categories.append(category_of(name))
            self._is_legacy = self._is_legacy or name in LEGACY_NAMES
            self.saw_stacks = self.saw_stacks or name == PYTHON_FUNCTION
        if self._is_legacy and self._scanner is not None:
            self._scanner.stop()
        return np.array(self._categories, np.int8)[track]


def _is_module_frame(event: Event | ExactEvent) -> bool:
    """Few, where frames of functions are many, and they tie kernels to modules."""
    return event.name is not None and event.name.startswith(MODULE_FRAME) and event.cat == PYTHON_FUNCTION


def _pick(arguments: list[Arguments], rows: npt.NDArray[np.intp]) -> list[Arguments]:
    return [arguments[row] for row in rows.tolist()]


def _launch(key: LaunchKey) -> KernelLaunch:
    grid, block, registers, shared_memory = key
    return KernelLaunch(grid, block, _of_a_block(registers), _of_a_block(shared_memory))


def _of_a_block(amount: int) -> int | None:
    """Registers or bytes; None where not recorded, or more than any device has."""
    return amount if 0 <= amount < 1 << 32 else None


def _shapes(texts: bytes) -> Shapes:
    return Shapes(*texts.decode("utf-8", errors="replace").split("\0"))
