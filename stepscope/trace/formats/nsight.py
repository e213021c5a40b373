"""Reader of Nsight Systems' SQLite exports (`nsys export --type sqlite`): kernels, copies, CUDA calls and NVTX ranges.

Tables are those of NVIDIA's "SQLite Export Schema Reference"; each is there only if the report has such events, and
newer versions add columns. A process that used a GPU is a rank. NVTX ranges of `torch.autograd.profiler.emit_nvtx()`
become operators, with their shapes; a CUDA graph recorded as a whole (`--cuda-graph-trace=graph`, the default) is one
kernel; ranges that count the steps of the training loop become its steps; others are
annotations. There are no arguments of collectives in an export, so waiting cannot be told from transfer.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.core.errors import DataError, NotATraceError
from stepscope.trace.columns import (
    NONE,
    Category,
    CommunicationCalls,
    KernelLaunch,
    Lane,
    Numbered,
    RankSource,
    ReadQuality,
    Shapes,
    SyncWaits,
    TraceColumns,
    TraceDevice,
    TraceHeader,
    narrow,
)
from stepscope.trace.file_names import read_file_name
from stepscope.trace.formats.foreign_files import ANALYZE, Kind, kind_of_file
from stepscope.trace.inflating import Readable

MAGIC = b"SQLite format 3\0"
_BLOCK_BYTES = 1 << 20
_PUSH_POP, _START_END = 59, 60
"""Types of NVTX events that are ranges."""
_MAX_TIME_NS = 1 << 62
_VERSION_OF_CALL = re.compile(r"_v\d+$")
_EMITTED = re.compile(
    r"^(.+?), (?:seq = -?\d+|op_id = \d+)(?:, op_id = \d+)?(?:, sizes = (\[.*?\]))?(?:, input_op_ids = .*)?$"
)
"""Name of a range of emit_nvtx(): operator, its sequence number, and its sizes with `record_shapes`."""
_COUNTED = re.compile(r"^(.*?)[ _#:=-]*(\d{1,9})$")
_STEP_WORDS = re.compile(r"step|iter|batch", re.IGNORECASE)
_STEP_NAME = re.compile(r"(?:train(?:ing)?[ _]?)?(?:step|iter|iteration|batch)", re.IGNORECASE)
_COPIES = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_MEMORIES = {1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed", 6: "Device", 7: "Managed"}
"""CUPTI's numbers, where the export has no table of its own for them."""


def read_nsight(stream: Readable, *, path: str, file_bytes: int, head: bytes = b"") -> list[TraceColumns]:
    """Read a SQLite export of Nsight Systems; arguments as of `stepscope.trace.reading.RankReader`.

    Returns:
        One trace, or one a process that used a GPU.

    Raises:
        NotATraceError: it is another SQLite database, or no process in it used a GPU.
        DataError: it is damaged, or a table is not as documented.
    """
    with _database(stream, path, file_bytes, head) as database:
        try:
            return _Export(database, path, file_bytes, head).ranks()
        except (sqlite3.Error, OverflowError, TypeError, UnicodeDecodeError, ValueError) as error:
            raise DataError(f"cannot be read as an export of Nsight Systems ({error})", where=path) from error


@contextmanager
def _database(stream: Readable, path: str, file_bytes: int, head: bytes) -> Iterator[sqlite3.Connection]:
    """The database, read-only; a stream that is no file of its own is copied to a temporary one."""
    local = Path(path)
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as copy:
        is_local = "://" not in path and local.is_file() and local.stat().st_size == file_bytes
        block = head
        while block:
            if not is_local:
                copy.write(block)
            block = stream.read(_BLOCK_BYTES)
        copy.flush()
        uri = (local if is_local else Path(copy.name)).resolve().as_uri()
        with closing(sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)) as connection:
            yield connection


@dataclass(slots=True)
class _Rows:
    """Rows of one process, column by column, before they are arrays."""

    category: list[int] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    correlation: list[int] = field(default_factory=list)
    shapes: list[int] = field(default_factory=list)
    launch: list[int] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    num_dropped: int = 0
    names: Numbered[str] = field(default_factory=Numbered)
    lanes: Numbered[Lane] = field(default_factory=Numbered)
    shape_table: Numbered[Shapes] = field(default_factory=Numbered)
    launches: Numbered[KernelLaunch] = field(default_factory=Numbered)

    def add(
        self,
        category: Category,
        name: str,
        lane: Lane,
        start: int,
        end: int | None,
        *,
        correlation: int | None = None,
        shapes: Shapes | None = None,
        launch: KernelLaunch | None = None,
        num_bytes: int | None = None,
    ) -> None:
        """Add an event; one without an end, or whose end is before its start, is dropped."""
        if end is None or not 0 <= start <= end < _MAX_TIME_NS:
            self.num_dropped += 1
            return
        self.category.append(category)
        self.name.append(self.names[name])
        self.lane.append(self.lanes[lane])
        self.start.append(start)
        self.end.append(end)
        self.correlation.append(NONE if correlation is None else correlation)
        self.shapes.append(NONE if shapes is None else self.shape_table[shapes])
        self.launch.append(NONE if launch is None else self.launches[launch])
        self.num_bytes.append(NONE if num_bytes is None else num_bytes)

    def build(self, header: TraceHeader) -> TraceColumns:
        """The rows by their start."""
        start = np.array(self.start, np.int64)
        order = np.argsort(start, kind="stable")
        columns = {
            name: narrow(np.array(getattr(self, name), np.int64)[order])
            for name in ("category", "name", "lane", "correlation", "shapes", "launch", "num_bytes")
        }
        none = np.empty(0, np.int64)
        calls = dict.fromkeys(("row", "kind", "group", "in_elements", "out_elements", "dtype", "source_rank"), none)
        calls |= dict.fromkeys(("destination_rank", "sequence", "root_rank", "communicator"), none)
        return TraceColumns(
            header=header,
            quality=ReadQuality(len(start) + self.num_dropped, 0, self.num_dropped, 0, False),
            start_ns=start[order] + header.base_time_ns,
            end_ns=np.array(self.end, np.int64)[order] + header.base_time_ns,
            external_id=np.full(len(start), NONE, np.int8),
            **columns,
            names=tuple(self.names),
            lanes=tuple(self.lanes),
            shape_table=tuple(self.shape_table),
            launches=tuple(self.launches),
            groups=(),
            communication=CommunicationCalls(**calls, kinds=(), dtypes=()),
            waits=SyncWaits(none, none, none),
        )


class _Export:
    """An export's tables, read into the rows of each process."""

    def __init__(self, database: sqlite3.Connection, path: str, file_bytes: int, head: bytes) -> None:
        self._database, self._path, self._file_bytes, self._head = database, path, file_bytes, head
        self._tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self._texts: dict[int, str] = {}

    def ranks(self) -> list[TraceColumns]:
        """Traces of the processes that used a GPU, by the devices that they used."""
        if "StringIds" not in self._tables:
            kind = kind_of_file(self._head, self._path) or Kind("an SQLite database")
            if kind.what_next == ANALYZE:
                what = f"is {kind.what} without its table of texts"
                raise NotATraceError(
                    what, where=self._path, what_next="export the report again: nsys export --type sqlite"
                )
            what = f"is {kind.what}, not a profiler trace of PyTorch or Nsight Systems"
            raise NotATraceError(what, where=self._path, what_next=kind.what_next.replace("FILE", self._path))
        self._texts = dict(self._database.execute("SELECT id, value FROM StringIds"))
        processes: dict[int, _Rows] = {}
        self._read_device(processes)
        if not processes:
            what = "holds no kernels or copies: CUDA was not traced, or used no GPU"
            raise NotATraceError(what, where=self._path, what_next="record with: nsys profile --trace=cuda,nvtx")
        self._read_host(processes)
        ordered = sorted(processes.items(), key=lambda item: (_first_device(item[1]), item[0]))
        return [self._trace(rank, process, rows, len(ordered)) for rank, (process, rows) in enumerate(ordered)]

    def _trace(self, place: int, process: int, rows: _Rows, num_processes: int) -> TraceColumns:
        name = read_file_name(self._path)
        is_only = num_processes == 1
        rank = name.rank if is_only else place
        source = RankSource.DEVICE if not is_only else None if rank is None else RankSource.FILE_NAME
        header = TraceHeader(
            path=self._path,
            rank=rank,
            world_size=None,
            backend=None,
            host_name=self._only("TARGET_INFO_SYSTEM_ENV", "value", "name = 'Hostname'"),
            base_time_ns=self._only("TARGET_INFO_SESSION_START_TIME", "utcEpochNs") or 0,
            devices=tuple(self._devices()),
            groups=(),
            versions={},
            with_shapes=bool(rows.shape_table),
            with_stacks=False,
            file_bytes=self._file_bytes,
            text_bytes=self._file_bytes,
            part="" if is_only else f"process {process}",
            rank_source=source,
            place=name.place if is_only else {},
            process_id=process,
        )
        return rows.build(header)

    def _read_device(self, processes: dict[int, _Rows]) -> None:
        launch = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")
        memory = ("staticSharedMemory", "dynamicSharedMemory")
        where = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        for start, end, device, stream, number, process, name, *sizes in self._select(
            "CUPTI_ACTIVITY_KIND_KERNEL", (*where, "demangledName", *launch, *memory)
        ):
            grid, block, registers, shared = sizes[:3], sizes[3:6], sizes[6], sizes[7:]
            bytes_of_block = None if None in shared else sum(shared)
            configuration = KernelLaunch(_sizes(grid), _sizes(block), registers, bytes_of_block)
            rows = processes.setdefault(_process(process), _Rows())
            rows.add(
                Category.KERNEL,
                self._text(name),
                Lane(device, stream, True),
                start,
                end,
                correlation=number,
                launch=configuration if configuration.grid else None,
            )
        for start, end, device, stream, number, process, graph in self._select(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", (*where, "graphId")
        ):
            rows = processes.setdefault(_process(process), _Rows())
            end = end or None  # 0: CUPTI could not collect it
            rows.add(Category.KERNEL, f"CUDA graph {graph}", Lane(device, stream, True), start, end, correlation=number)
        copies = self._labels("ENUM_CUDA_MEMCPY_OPER", _COPIES)
        memories = self._labels("ENUM_CUDA_MEM_KIND", _MEMORIES)
        for start, end, device, stream, number, process, size, kind, source, target in self._select(
            "CUPTI_ACTIVITY_KIND_MEMCPY", (*where, "bytes", "copyKind", "srcKind", "dstKind")
        ):
            ends = f"{memories.get(source, 'Unknown')} -> {memories.get(target, 'Unknown')}"
            rows = processes.setdefault(_process(process), _Rows())
            name = f"Memcpy {copies.get(kind, 'Unknown')} ({ends})"
            lane = Lane(device, stream, True)
            rows.add(Category.MEMCPY, name, lane, start, end, correlation=number, num_bytes=size)
        for start, end, device, stream, number, process, size in self._select(
            "CUPTI_ACTIVITY_KIND_MEMSET", (*where, "bytes")
        ):
            rows = processes.setdefault(_process(process), _Rows())
            lane = Lane(device, stream, True)
            rows.add(Category.MEMSET, "Memset (Device)", lane, start, end, correlation=number, num_bytes=size)

    def _read_host(self, processes: dict[int, _Rows]) -> None:
        for start, end, thread, number, name in self._select(
            "CUPTI_ACTIVITY_KIND_RUNTIME", ("start", "end", "globalTid", "correlationId", "nameId")
        ):
            if (rows := processes.get(_process(thread))) is not None:
                call = _VERSION_OF_CALL.sub("", self._text(name))
                rows.add(Category.RUNTIME, call, _host_lane(thread), start, end, correlation=number)
        for start, end, thread, name in self._select("PROFILER_OVERHEAD", ("start", "end", "globalTid", "nameId")):
            if (rows := processes.get(_process(thread))) is not None:
                rows.add(Category.OVERHEAD, self._text(name), _host_lane(thread), start, end)
        ranges = [
            (start, end, thread, self._text(number) if text is None else text)
            for start, end, thread, kind, text, number in self._select(
                "NVTX_EVENTS", ("start", "end", "globalTid", "eventType", "text", "textId")
            )
            if kind in (_PUSH_POP, _START_END) and thread is not None
        ]
        for process, rows in processes.items():
            own = [one for one in ranges if _process(one[2]) == process]
            steps = step_names([(start, end, name) for start, end, _, name in own if end is not None])
            for start, end, thread, name in own:
                emitted = _EMITTED.match(name)
                lane = _host_lane(thread)
                if emitted is None:
                    rows.add(Category.USER_ANNOTATION, steps.get(name, name), lane, start, end)
                else:
                    shapes = Shapes(emitted[2], "", "") if emitted[2] else None
                    rows.add(Category.CPU_OP, emitted[1], lane, start, end, shapes=shapes)

    def _select(self, table: str, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """Rows of a table; no rows where the report has none, and None in place of columns that it does not have."""
        if table not in self._tables:
            return
        known = {name for _, name, *_ in self._database.execute(f"PRAGMA table_info({table})")}
        chosen = ", ".join(f'"{column}"' if column in known else "NULL" for column in columns)
        yield from self._database.execute(f"SELECT {chosen} FROM {table}")

    def _only(self, table: str, column: str, condition: str = "1") -> Any:
        """One value of a table of facts; None without it."""
        if table not in self._tables:
            return None
        row = self._database.execute(f'SELECT "{column}" FROM {table} WHERE {condition} LIMIT 1').fetchone()
        return None if row is None else row[0]

    def _labels(self, table: str, default: dict[int, str]) -> dict[int, str]:
        """Names of an enumeration; those of CUPTI where the export has no table for it."""
        labels = {number: str(label) for number, label in self._select(table, ("id", "label")) if label}
        return {number: _COPY_WORDS.get(label, label) for number, label in labels.items()} or default

    def _devices(self) -> Iterator[TraceDevice]:
        columns = ("id", "name", "smCount", "totalMemory", "computeMajor", "computeMinor")
        for index, name, num_sms, memory, major, minor in self._select("TARGET_INFO_GPU", columns):
            capability = None if major is None or minor is None else (major, minor)
            yield TraceDevice(index, name or "", num_sms, memory, capability)

    def _text(self, number: int | None) -> str:
        return "" if number is None else self._texts.get(number, "")


_COPY_WORDS = {
    "Host-to-Device": "HtoD",
    "Device-to-Host": "DtoH",
    "Device-to-Device": "DtoD",
    "Host-to-Host": "HtoH",
    "Peer-to-Peer": "PtoP",
}
"""Labels of newer exports -> CUPTI's words."""


def step_names(ranges: Sequence[tuple[int, int, str]]) -> dict[str, str]:
    """New names of the ranges that count the steps of a training loop, `ProfilerStep#N`; empty without such.

    They have the same name but for a number that rises by one, and follow each other; of several such families the one
    whose name speaks of steps, then the one that lasts longest in all. A single range must be called step, iteration or
    batch.

    Args:
        ranges: start, end and name of each.
    """
    families: dict[str, list[tuple[int, int, int, str]]] = {}
    for start, end, name in ranges:
        counted = _COUNTED.match(name)
        if counted is not None:
            families.setdefault(counted[1], []).append((start, end, int(counted[2]), name))
    best: list[tuple[int, int, int, str]] = []
    best_rank = (False, 0)
    for prefix, members in families.items():
        members.sort()
        follows = all(later[0] >= earlier[1] and later[2] == earlier[2] + 1 for earlier, later in pairwise(members))
        rank = (_STEP_WORDS.search(prefix) is not None, sum(end - start for start, end, _, _ in members))
        if (len(members) > 1 or _STEP_NAME.fullmatch(prefix)) and follows and rank > best_rank:
            best, best_rank = members, rank
    return {name: f"ProfilerStep#{number}" for _, _, number, name in best}


def _process(global_id: int) -> int:
    """Process of a serialized id: bits 24 to 47."""
    return global_id >> 24 & 0xFFFFFF


def _host_lane(global_id: int) -> Lane:
    return Lane(_process(global_id), global_id & 0xFFFFFF, False)


def _sizes(values: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(value for value in values if value is not None)


def _first_device(rows: _Rows) -> int:
    return min(lane.process for lane in rows.lanes if lane.on_device)
