"""Builders of columns: decoded events, batch by batch, into narrow arrays; names, lanes and shapes are interned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from stepscope.trace.columns import (
    DEVICE_CATEGORIES,
    NONE,
    Category,
    CommunicationCalls,
    GrowingColumn,
    IntColumn,
    KernelLaunch,
    Numbered,
    ProcessGroup,
    ReadQuality,
    Shapes,
    SyncWaits,
    TraceColumns,
    TraceHeader,
    integers,
    narrow,
)
from stepscope.trace.file_names import MAX_RANK
from stepscope.trace.formats.kineto.events import (
    NO_ARGUMENTS,
    Arguments,
    Event,
    ExactEvent,
    LaunchKey,
    ranks_in_arguments,
    ranks_in_events,
)
from stepscope.trace.formats.kineto.fields import (
    IGNORED_FRAMES,
    LEGACY_ANNOTATIONS,
    LEGACY_NAMES,
    LEGACY_OPERATOR,
    PYTHON_FUNCTION,
    READ_FRAMES,
    STEP_MARK,
    TRACE_SPAN,
    UNKNOWN_NS,
    Track,
    category_of_name,
    durations_ns,
    exact_starts_ns,
    lanes_of,
    starts_ns,
)
from stepscope.trace.formats.kineto.header import parse_ranks
from stepscope.trace.formats.kineto.repair import read_json
from stepscope.trace.formats.kineto.scanning import COLUMNS, BatchScanner, ScannedBatch, has_accelerator
from stepscope.trace.formats.kineto.splitting import Batch

_BETWEEN_TEXTS = b"\0"
"""Never part of valid JSON."""
_NO_SHAPES = _BETWEEN_TEXTS * 2
_NO_LAUNCH: LaunchKey = ((), (), NONE, NONE)
_IS_DEVICE = np.isin(np.arange(len(Category)), DEVICE_CATEGORIES)
_HAVE_SHAPES = np.isin(np.arange(len(Category)), (Category.CPU_OP, Category.USER_ANNOTATION))
"""Operators, and the annotations of communication backends."""
_MAY_COMMUNICATE = np.isin(np.arange(len(Category)), (Category.CPU_OP, Category.KERNEL))
_MAY_MARK_STEPS = np.isin(np.arange(len(Category)), (Category.CPU_OP, Category.OTHER))
_MAY_WAIT = np.arange(len(Category)) == Category.SYNC_RECORD


class ColumnsBuilder:
    """Builds `TraceColumns` from complete events in the file's order.

    Attributes:
        num_rows: rows so far.
        dropped: impossible complete events: missing, negative or overflowed times, device work at time 0.
        saw_stacks: a python_function was among them.
        communication: the rows that name a collective.
        waits: the rows that name an event that is waited for.
        rank_of_process: process -> rank, where the events' arguments hold it (merging tools write it there).
    """

    def __init__(self, *, keep_python_functions: bool) -> None:
        self.num_rows = 0
        self.dropped = 0
        self.saw_stacks = False
        self.communication = CommunicationBuilder()
        self.waits = SyncWaitBuilder()
        self.tracks: Numbered[Track] = Numbered()
        self.rank_of_process: dict[int | str | None, int] = {}
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
            ranks = ranks_in_arguments(bytes(batch.array_text)) if isinstance(batch, Batch) else ranks_in_events(batch)
            known = {pid: rank for pid, rank in ranks.items() if rank <= MAX_RANK}
            self.rank_of_process = known | self.rank_of_process

    def build(self, header: TraceHeader, quality: ReadQuality) -> TraceColumns:
        """All rows as one trace; called once.

        Args:
            header: its base time is added to all timestamps, its groups complete the rows' groups.
        """
        start = self.columns.pop("start_ns").finish()
        start += header.base_time_ns
        end = start + self.columns.pop("duration_ns").finish()
        track = self.columns.pop("track").finish()
        places, lanes = lanes_of(list(self.tracks), self._categories, self.rank_of_process)
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
        """Category codes; marks of steps, and what traces of 2021 recorded as operators, become annotations."""
        category = np.array(self._categories, np.int8)[track]
        steps = [number for text, number in self.names.items() if text is not None and text.startswith(STEP_MARK)]
        if steps:
            is_mark = np.isin(name, steps)
            if Category.USER_ANNOTATION not in category[is_mark]:
                category[is_mark & _MAY_MARK_STEPS[category]] = Category.USER_ANNOTATION
        if self._is_legacy:
            is_operator = np.array([track_name == LEGACY_OPERATOR for track_name, _, _ in self.tracks])
            is_annotation = np.array([(text or "").startswith(LEGACY_ANNOTATIONS) for text in self.names])
            category[is_operator[track] & is_annotation[name]] = Category.USER_ANNOTATION
        return category

    def _complete(self, events: Sequence[Any]) -> list[Any]:
        ignored = self._ignored
        return [event for event in events if event.ph == "X" and (event.cat not in ignored or _is_read_frame(event))]

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
        self._add_at(operators, "shapes", numbers - 1, len(category))  # number 0 is "not recorded"

        kernels = np.flatnonzero(category == Category.KERNEL)
        keys = [(args.grid, args.block, args.registers, args.shared_memory) for args in _pick(arguments, kernels)]
        numbers = np.fromiter(map(self.launches.__getitem__, keys), np.int64, len(keys))
        self._add_at(kernels, "launch", numbers - 1, len(category))  # number 0 is "not recorded"

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
            self._categories.append(category_of_name(name))
            self._is_legacy = self._is_legacy or name in LEGACY_NAMES
            self.saw_stacks = self.saw_stacks or name == PYTHON_FUNCTION
        if self._is_legacy and self._scanner is not None:
            self._scanner.stop()
        return np.array(self._categories, np.int8)[track]


def _is_read_frame(event: Event | ExactEvent) -> bool:
    """Whether an event is a Python frame that is read all the same: these are few."""
    name = event.name
    if name is None or event.cat != PYTHON_FUNCTION:
        return False
    return name.startswith(READ_FRAMES) or not name.startswith(IGNORED_FRAMES)


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


_NUMBERS = ("in_elements", "out_elements", "source_rank", "destination_rank", "sequence", "root_rank", "communicator")
_INT64_LIMIT = 2**63
"""Unsigned 64-bit ids are stored modulo this."""


class CommunicationBuilder:
    """Builds `CommunicationCalls` from the rows that name a collective."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._kinds: Numbered[str] = Numbered()
        self._dtypes: Numbered[str] = Numbered()
        self._groups: Numbered[tuple[bytes, bytes, bytes]] = Numbered()
        self._kind: list[int] = []
        self._dtype: list[int] = []
        self._group: list[int] = []
        self._numbers: dict[str, list[int]] = {name: [] for name in _NUMBERS}

    def add(self, rows: Iterable[int], arguments: Iterable[Arguments]) -> None:
        """Append rows, numbered in the whole file, and their arguments."""
        for row, args in zip(rows, arguments, strict=True):
            self._rows.append(row)
            self._kind.append(self._kinds[args.collective or ""])
            dtype = _parsed(args.dtype)
            self._dtype.append(self._dtypes[dtype] if dtype and isinstance(dtype, str) else NONE)
            group = (bytes(args.group_name), bytes(args.group_description), bytes(args.group_ranks))
            self._group.append(self._groups[group] if any(group) else NONE)
            for name, values in self._numbers.items():
                values.append(whole_number(getattr(args, name), is_identity=name == "communicator"))

    def build(self, listed: tuple[ProcessGroup, ...]) -> tuple[CommunicationCalls, tuple[ProcessGroup, ...]]:
        """The columns, and all groups: the header's, then those only rows name. A group in both is merged."""
        groups, places = self._merge_groups(listed)
        group = [NONE if number == NONE else places[number] for number in self._group]
        calls = CommunicationCalls(
            row=_column(self._rows),
            kind=_column(self._kind),
            group=_column(group),
            dtype=_column(self._dtype),
            **{name: _column(values) for name, values in self._numbers.items()},
            kinds=tuple(self._kinds),
            dtypes=tuple(self._dtypes),
        )
        return calls, groups

    def _merge_groups(self, listed: tuple[ProcessGroup, ...]) -> tuple[tuple[ProcessGroup, ...], list[int]]:
        """All groups, and for each group seen in rows its index among them."""
        groups = list(listed)
        places: list[int] = []
        for texts in self._groups:
            seen = _group(*texts)
            place = next((place for place, group in enumerate(groups) if _is_same(group, seen)), len(groups))
            if place == len(groups):
                groups.append(seen)
            group = groups[place]
            groups[place] = ProcessGroup(group.name, group.description or seen.description, group.ranks or seen.ranks)
            places.append(place)
        return tuple(groups), places


def _column(values: list[int]) -> IntColumn:
    return narrow(np.array(values, np.int64))


def _is_same(group: ProcessGroup, seen: ProcessGroup) -> bool:
    """Whether both are one group: names are unique within a process; without names (torch < 2.4) members decide."""
    if group.name != seen.name:
        return False
    return group.ranks is None or seen.ranks is None or group.ranks == seen.ranks


def _group(name: bytes, description: bytes, ranks: bytes) -> ProcessGroup:
    value = _parsed(name)
    return ProcessGroup(
        name="" if value is None else str(value),
        description=str(_parsed(description) or ""),
        ranks=parse_ranks(_parsed(ranks)),
    )


def _parsed(raw: Raw | bytes) -> Any:
    try:
        return read_json(bytes(raw))
    except (ValueError, RecursionError):
        return None


def whole_number(raw: Raw, *, is_identity: bool = False) -> int:
    """An integer, perhaps in quotes; NONE when it is absent, negative or (unless an identity) above int64."""
    return _whole_number(bytes(raw), is_identity)


@lru_cache(maxsize=4096)  # a training's collectives have the same few sizes in every step
def _whole_number(raw: bytes, is_identity: bool) -> int:
    value = _parsed(raw)
    if isinstance(value, str):
        value = int(value) if value.strip().isdecimal() and len(value) <= 20 else NONE
    if is_identity and isinstance(value, int) and _INT64_LIMIT <= value < 2 * _INT64_LIMIT:
        value -= _INT64_LIMIT
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INT64_LIMIT
    return value if is_count else NONE


class SyncWaitBuilder:
    """Builds `SyncWaits` from the synchronization records that name an event."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._streams: list[int] = []
        self._records: list[int] = []

    def add(self, rows: Iterable[int], arguments: Iterable[Arguments]) -> None:
        """Append rows, numbered in the whole file, and their arguments."""
        for row, args in zip(rows, arguments, strict=True):
            self._rows.append(row)
            self._streams.append(whole_number(args.waited_stream))
            self._records.append(whole_number(args.waited_record))

    def build(self) -> SyncWaits:
        """The columns."""
        return SyncWaits(_column(self._rows), _column(self._streams), _column(self._records))
