"""Columns of one rank's trace: the type that readers fill and the analyzer reads.

`TraceColumns` and its parts (categories, lanes, shapes, process groups, header, read quality), and what readers build
them with (`Numbered`, `GrowingColumn`). Times are nanoseconds; `NONE` in an integer column is unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.intp]
Scalar = TypeVar("Scalar", bound=np.generic)


class RowIndex:
    """Index of a trace's rows by category and name.

    The analysis selects rows some fifty times among millions, mostly by names that are rare or absent (a checkpoint, a
    wait for an event). The rows are sorted once by (category, name); a selection then costs only what it returns.

    Args:
        category, name: by row, small whole numbers; `name` is an index into `names`.
        names: the distinct names.
    """

    __slots__ = ("_category", "_first", "_kinds", "_name", "_names", "_of_categories", "_rows")

    def __init__(
        self, category: npt.NDArray[np.signedinteger], name: npt.NDArray[np.signedinteger], names: Sequence[str]
    ) -> None:
        self._category = category
        self._name = name
        self._names = names
        self._of_categories: dict[tuple[int, ...], Rows] = {}
        self._kinds: dict[int, list[int]] | None = None

    def of(self, categories: tuple[int, ...]) -> Rows:
        """Indices of the rows in any of the categories, ascending; cached, so read-only."""
        rows = self._of_categories.get(categories)
        if rows is None:
            wanted = np.zeros(len(self._category), np.bool_)
            for category in categories:
                wanted |= self._category == category
            rows = self._of_categories[categories] = np.flatnonzero(wanted)
            rows.flags.writeable = False
        return rows

    def named(self, categories: tuple[int, ...], wanted: Callable[[str], object]) -> Rows:
        """Indices of the rows in any of the categories whose name is wanted, ascending; each name is tested once."""
        if self._kinds is None:
            self._kinds = self._sort()
        kinds = [kind for category in categories for kind in self._kinds.get(category, ())]
        names = {kind % len(self._names) for kind in kinds}
        found = {name for name in names if wanted(self._names[name])}
        parts = [
            self._rows[self._first[kind] : self._first[kind + 1]] for kind in kinds if kind % len(self._names) in found
        ]
        return np.sort(np.concatenate(parts), kind="stable").astype(np.intp) if parts else np.empty(0, np.intp)

    def _sort(self) -> dict[int, list[int]]:
        """Sort the rows by kind (category * number of names + name); return the kinds present by category."""
        num_names = max(len(self._names), 1)
        kind = self._category.astype(np.int64) * num_names + self._name
        num_rows = np.bincount(kind)
        kinds = np.flatnonzero(num_rows)
        number = np.cumsum(num_rows > 0) - 1
        # mostly a few hundred kinds: numpy sorts two-byte integers by counting (radix sort)
        width = np.int16 if len(kinds) < 2**15 else np.int32
        self._rows = np.argsort(number.astype(width)[kind], kind="stable").astype(np.int32)
        self._first = np.concatenate(([0], np.cumsum(num_rows)))
        by_category: dict[int, list[int]] = {}
        for one in kinds.tolist():
            by_category.setdefault(one // num_names, []).append(one)
        return by_category


IntColumn = npt.NDArray[np.signedinteger]
"""An integer column; readers choose the width."""

NONE = -1
"""Stands for "not recorded" inside integer columns."""


class Category(IntEnum):
    """What kind of event a row is, under one name for all profiler versions and vendors."""

    CPU_OP = 0
    USER_ANNOTATION = 1
    RUNTIME = 2
    """CUDA or HIP runtime or driver call"""
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    GPU_USER_ANNOTATION = 6
    SYNC_RECORD = 7
    """cuda_sync record of a stream; not device work"""
    OVERHEAD = 8
    """of the profiler itself: buffer flushes, resource setup"""
    PYTHON_FUNCTION = 9
    """frames of modules and garbage collections; other frames only on request"""
    OTHER = 10


DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
"""Rows that occupy the device."""


class Lane(NamedTuple):
    """Where an event ran: a host thread (process id, thread id) or a stream (device, stream id).

    `part` is the rank's label in a file that merges several ranks; empty elsewhere.
    """

    process: int
    thread: int
    on_device: bool
    part: str = ""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Arguments of an operator call as the trace's JSON text; empty where not recorded."""

    input_dims: str
    input_types: str
    concrete_inputs: str


class ProcessGroup(NamedTuple):
    """A communicator. `ranks` is None where the trace does not list its members, or truncates the list."""

    name: str
    description: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class CommunicationCalls:
    """Rows (kernels and `record_param_comms` operators) with arguments of a collective; one entry a row.

    Attributes:
        row: index into the event columns, ascending.
        kind: index into `kinds`, NCCL's names: allreduce, _allgather_base, reduce_scatter, send, recv, wait, ...
        group: index into TraceColumns.groups, or NONE.
        in_elements, out_elements: message size in elements, or NONE.
        dtype: index into `dtypes` (the profiler's names: Float, BFloat16, ...), or NONE.
        source_rank, destination_rank: as recorded (torch writes the peer's global rank), or NONE.
        sequence: the group's sequence number (torch >= 2.12), or NONE.
        root_rank: torch's "Rank" of an operator: the root (rank in the group) of broadcast, reduce, gather and scatter,
            else the caller or the peer; or NONE. Kernels do not record it.
        communicator: id of its communicator ("Comms Id", torch >= 2.12; modulo 2^63), or NONE.
    """

    row: IntColumn
    kind: IntColumn
    group: IntColumn
    in_elements: IntColumn
    out_elements: IntColumn
    dtype: IntColumn
    source_rank: IntColumn
    destination_rank: IntColumn
    sequence: IntColumn
    root_rank: IntColumn
    communicator: IntColumn
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SyncWaits:
    """Synchronization records that name the event waited for; one entry a record.

    The row's lane (a stream) waits, or the host where that stream is NONE; the call is the runtime row with the same
    correlation.

    Attributes:
        row: index into the event columns, ascending.
        stream: the stream that the event was recorded on, or NONE.
        record: correlation of the call that recorded it, or NONE (before the trace began).
    """

    row: IntColumn
    stream: IntColumn
    record: IntColumn


@dataclass(frozen=True, slots=True)
class TraceDevice:
    """One entry of the trace's device list."""

    index: int
    name: str
    num_sms: int | None
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None = None
    warp_size: int | None = None
    max_threads_per_sm: int | None = None
    registers_per_sm: int | None = None
    shared_memory_per_sm_bytes: int | None = None


class KernelLaunch(NamedTuple):
    """Launch configuration of a kernel; () or None where not recorded (AMD records no registers, no memory).

    Attributes:
        grid: thread blocks by dimension.
        block: threads of a block by dimension.
        shared_memory_bytes: of a block, static and dynamic.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers_per_thread: int | None
    shared_memory_bytes: int | None

    @property
    def num_blocks(self) -> int | None:
        """Thread blocks of the grid."""
        return _volume(self.grid)

    @property
    def threads_per_block(self) -> int | None:
        return _volume(self.block)


def _volume(sizes: tuple[int, ...]) -> int | None:
    volume = prod(sizes) if sizes else NONE
    return volume if 0 <= volume < 2**63 else None


class RankSource(StrEnum):
    """Where a trace's rank comes from."""

    HEADER = "header"
    """distributedInfo, or what a merging tool wrote into the events"""
    COLLECTIVES = "collectives"
    """the recorded communication calls: their groups, and the rank's place in them"""
    FILE_NAME = "file_name"
    DEVICE = "device"
    """the order of the devices in a file that merges several ranks"""
    ONLY_FILE = "only_file"
    """the job's only trace, which does not give its rank: rank 0"""
    ORDER = "order"
    """none of these: the lowest free rank, in the order of the files. Such a number names no process."""


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """Metadata of a trace; None where not recorded.

    Attributes:
        rank: from distributedInfo, else from the communication calls, else from the file's name.
        rank_source: which of these; ORDER for a rank of a merged file that its file does not give.
        place: index by parallel dimension, from the file's name; empty where it does not give it.
        process_id: the host process that ran the rank's operators.
        accelerator: the recorded device where its calls are not those of CUDA or HIP; None for NVIDIA, AMD and CPU.
        base_time_ns: added to relative timestamps (0 where they were absolute).
        groups: the communicators listed in the header.
        file_bytes, text_bytes: size of the file, and of its JSON text.
        whole_steps: the steps that profile() recorded from begin to end; torch closes the mark of a step that an
            exception interrupted as if it had ended.
        part: label of this rank's events in a file of several ranks ("process 4711"); empty in a file of one.
    """

    path: str
    rank: int | None
    world_size: int | None
    backend: str | None
    host_name: str | None
    base_time_ns: int
    devices: tuple[TraceDevice, ...]
    groups: tuple[ProcessGroup, ...]
    versions: dict[str, str]
    with_shapes: bool
    with_stacks: bool
    file_bytes: int
    text_bytes: int
    whole_steps: tuple[int, ...] | None = None
    part: str = ""
    rank_source: RankSource | None = None
    place: dict[str, int] = field(default_factory=dict)
    process_id: int | None = None
    accelerator: str | None = None

    @property
    def file(self) -> str:
        """Name of the file, and of this rank's part of it."""
        return self._end_of_path(1)

    @property
    def file_in_folder(self) -> str:
        """The same with the name of its folder."""
        return self._end_of_path(2)

    def _end_of_path(self, num_names: int) -> str:
        names = self.path.replace("\\", "/").replace("::", "/").split("/")
        name = "/".join(names[-num_names:])
        return f"{name} ({self.part})" if self.part else name


@dataclass(frozen=True, slots=True)
class ReadQuality:
    """Events that the reader repaired or left out.

    Attributes:
        num_events: entries of all phases, lost ones included.
        repaired, dropped, clipped: events repaired, events lost, and device rows cut where the next one starts.
        truncated: the text ends before its closing bracket.
        clipped_ns: time cut off.
        damaged_at_byte: position in the text of the first event repaired or lost, or None.
    """

    num_events: int
    repaired: int
    dropped: int
    clipped: int
    truncated: bool
    clipped_ns: int = 0
    damaged_at_byte: int | None = None


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """One rank's complete events ("ph": "X"), in the file's order.

    All arrays have one entry an event. Times are int64 ns since the epoch (ts + base), end >= start. A launch and the
    device rows it caused share `correlation`; all kernels of one CUDA graph launch share the launch's.

    Attributes:
        category: Category codes.
        name: index into `names`.
        lane: index into `lanes`.
        correlation, external_id: or NONE.
        shapes: index into `shape_table`, or NONE.
        launch: a kernel's index into `launches`, numbered in order of first appearance, or NONE.
        num_bytes: a copy's or memset's size, or NONE.
    """

    header: TraceHeader
    quality: ReadQuality
    category: IntColumn
    name: IntColumn
    lane: IntColumn
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    correlation: IntColumn
    external_id: IntColumn
    shapes: IntColumn
    launch: IntColumn
    num_bytes: IntColumn
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    shape_table: tuple[Shapes, ...]
    launches: tuple[KernelLaunch, ...]
    groups: tuple[ProcessGroup, ...]
    communication: CommunicationCalls
    waits: SyncWaits
    _index: RowIndex = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", RowIndex(self.category, self.name, self.names))

    def __len__(self) -> int:
        return len(self.start_ns)

    def with_header(self, header: TraceHeader) -> TraceColumns:
        """The same rows, and what is known of their order, under another header."""
        trace = replace(self, header=header)
        object.__setattr__(trace, "_index", self._index)
        return trace

    def rows_of(self, *categories: Category) -> npt.NDArray[np.intp]:
        """Indices of the rows in any of the categories, ascending; read-only."""
        return self._index.of(categories)

    def rows_named(self, wanted: Callable[[str], object], *categories: Category) -> npt.NDArray[np.intp]:
        """Indices of the rows in any of the categories whose name is wanted, ascending; each name is tested once."""
        return self._index.named(categories, wanted)

    def num_blocks(self, rows: IntColumn) -> npt.NDArray[np.int64]:
        """For each of the rows, its grid size in thread blocks, or NONE."""
        blocks = [NONE if launch.num_blocks is None else launch.num_blocks for launch in self.launches]
        return np.array([*blocks, NONE], np.int64)[self.launch[rows]]  # NONE picks the last

    def named(self, rows: IntColumn, wanted: Callable[[str], object]) -> npt.NDArray[np.bool_]:
        """For each of the rows, whether its name is wanted; each distinct name is tested once."""
        return self.by_name(rows, lambda name: bool(wanted(name)), np.bool_)

    def by_name(self, rows: IntColumn, value_of: Callable[[str], float], dtype: type[Scalar]) -> npt.NDArray[Scalar]:
        """For each of the rows, the value of its name; `value_of` is called once for each distinct name."""
        names = self.name[rows]
        is_used = np.zeros(len(self.names), np.bool_)
        is_used[names] = True
        values = np.zeros(len(self.names), dtype)
        values[is_used] = [value_of(self.names[name]) for name in np.flatnonzero(is_used).tolist()]
        return values[names]


Value = TypeVar("Value", bound=Hashable)

_WIDTHS = tuple(
    (np.dtype(width), int(np.iinfo(width).min), int(np.iinfo(width).max)) for width in (np.int8, np.int16, np.int32)
)


class Numbered(dict[Value, int]):
    """Value -> number; asking for a new value numbers it."""

    def __missing__(self, value: Value) -> int:
        number = self[value] = len(self)
        return number


def narrow(column: IntColumn) -> IntColumn:
    """The same integers in the smallest type that holds them."""
    if not len(column):
        return column.astype(np.int8)
    low, high = int(column.min()), int(column.max())
    for width, least, most in _WIDTHS:
        if least <= low and high <= most:
            return column.astype(width)
    return column


def integers(values: Collection[int]) -> IntColumn:
    """Trace columns: integers as a narrow column, whatever the format; those beyond int64 become NONE.

    struct.pack is faster than np.fromiter.
    """
    try:
        return narrow(np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64))
    except struct.error:
        fitting = (value if -(2**63) <= value < 2**63 else NONE for value in values)
        return narrow(np.fromiter(fitting, np.int64, len(values)))


class GrowingColumn:
    """A column that grows by doubling; unused capacity is never touched, so it takes no memory."""

    def __init__(self) -> None:
        self._array: IntColumn = np.empty(0, np.int8)
        self._count = 0

    def add(self, part: IntColumn) -> None:
        """Append a part; the column widens when a part is wider."""
        count = self._count + len(part)
        is_wider = part.dtype.itemsize > self._array.dtype.itemsize
        if is_wider or count > len(self._array):
            room = 2 * count if count > len(self._array) else len(self._array)
            larger = np.empty(room, part.dtype if is_wider else self._array.dtype)
            larger[: self._count] = self._array[: self._count]
            self._array = larger
        self._array[self._count : count] = part
        self._count = count

    def finish(self) -> IntColumn:
        """The whole column; nothing can be added afterwards."""
        self._array.resize(self._count, refcheck=False)
        return self._array
