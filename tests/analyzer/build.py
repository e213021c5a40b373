"""Builder of traces by hand: events of one rank, in microseconds, as the columns that a reader would fill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from stepscope.trace.columns import (
    NONE,
    Category,
    CommunicationCalls,
    KernelLaunch,
    Lane,
    ProcessGroup,
    ReadQuality,
    Shapes,
    SyncWaits,
    TraceColumns,
    TraceDevice,
    TraceHeader,
)

MAIN, AUTOGRAD, WORKER = 1, 2, 3
"""Threads: the training loop's, the one that launches backward, one of the communication backend."""

COMPUTE_STREAM, COMMUNICATION_STREAM, COPY_STREAM = 7, 20, 24

NS_PER_US = 1000

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


@dataclass(slots=True)
class _Row:
    category: Category
    name: str
    lane: Lane
    start: int
    end: int
    correlation: int = NONE
    shapes: Shapes | None = None
    num_bytes: int = NONE
    external_id: int = NONE
    launch: KernelLaunch | None = None


@dataclass(slots=True)
class _Description:
    """What a row says of the collective it is."""

    row: int
    kind: str
    group: tuple[int, ...] | None
    elements: int
    source: int
    destination: int
    sequence: int
    root: int = NONE
    communicator: int = NONE


@dataclass
class TraceBuilder:
    """Collects events; times are microseconds (times `ns`, so pass ns=1 for nanoseconds) since `base_ns`."""

    rank: int | None = 0
    world_size: int | None = 1
    host: str | None = "node0"
    groups: tuple[ProcessGroup, ...] = ()
    gpu: str | None = "NVIDIA H100 80GB HBM3"
    backend: str = "nccl"
    path: str = "trace.json"
    with_stacks: bool = False
    ns: int = NS_PER_US
    base_ns: int = 0
    _rows: list[_Row] = field(default_factory=list)
    _descriptions: list[_Description] = field(default_factory=list)
    _waits: list[tuple[int, int, int]] = field(default_factory=list)
    _correlation: int = 0

    def step(self, number: int, start: int, end: int) -> None:
        """A profiled step on the training loop's thread."""
        self.annotation(f"ProfilerStep#{number}", start, end)

    def annotation(self, name: str, start: int, end: int, *, thread: int = MAIN) -> None:
        self._host_row(Category.USER_ANNOTATION, name, start, end, thread)

    def operator(
        self,
        name: str,
        start: int,
        end: int,
        *,
        thread: int = MAIN,
        concrete: str = "",
        dims: str = "",
        types: str = "",
        category: Category | None = None,
    ) -> None:
        self._host_row(category or Category.CPU_OP, name, start, end, thread)
        if concrete or dims:
            self._rows[-1].shapes = Shapes(dims, types, concrete)

    def runtime(self, name: str, start: int, end: int, *, thread: int = MAIN) -> None:
        """A CUDA or HIP call that launches nothing."""
        self._host_row(Category.RUNTIME, name, start, end, thread)

    def record_event(self, start: int, *, thread: int = MAIN) -> int:
        """A call that records an event on a stream; its correlation, by which waits name it."""
        return self._correlated("cudaEventRecord", start, start + 1, thread)

    def stream_wait(
        self, start: int, *, stream: int, recorded: int, on_stream: int, thread: int = MAIN, is_told: bool = True
    ) -> None:
        """A stream is made to wait for an event; with the record that says so, if `is_told`."""
        correlation = self._correlated("cudaStreamWaitEvent", start, start + 1, thread)
        if is_told:
            self._sync_record("Stream Wait Event", start, start + 1, stream, correlation)
            self._waits.append((len(self._rows) - 1, on_stream, recorded))

    def stream_sync(self, start: int, end: int, *, stream: int, thread: int = MAIN, is_told: bool = True) -> None:
        """The host waits for a stream; with the record that says which, if `is_told`."""
        correlation = self._correlated("cudaStreamSynchronize", start, end, thread)
        if is_told:
            self._sync_record("Stream Sync", start, end, stream, correlation)

    def event_sync(self, start: int, end: int, *, recorded: int, on_stream: int, thread: int = MAIN) -> None:
        """The host waits for an event."""
        correlation = self._correlated("cudaEventSynchronize", start, end, thread)
        self._sync_record("Event Sync", start, end, NONE, correlation)
        self._waits.append((len(self._rows) - 1, on_stream, recorded))

    def overhead(self, name: str, start: int, end: int) -> None:
        self._host_row(Category.OVERHEAD, name, start, end, thread=0, process=-1)

    def kernel(
        self,
        start: int,
        end: int,
        *,
        launch: int | None = None,
        launch_end: int | None = None,
        name: str = GEMM,
        stream: int = COMPUTE_STREAM,
        thread: int = MAIN,
        call: str = "cudaLaunchKernel",
        category: Category = Category.KERNEL,
        num_bytes: int = NONE,
        config: KernelLaunch | None = None,
    ) -> None:
        """A device activity, and the call that launched it unless `launch` is None."""
        if launch is not None:
            self._correlation += 1
            self._host_row(Category.RUNTIME, call, launch, launch + 1 if launch_end is None else launch_end, thread)
            self._rows[-1].correlation = self._correlation
        self._device_row(category, name, start, end, stream, NONE if launch is None else self._correlation)
        self._rows[-1].num_bytes = num_bytes
        self._rows[-1].launch = config

    def lost_launch(self, start: int, *, call: str = "cudaLaunchKernel", thread: int = MAIN) -> None:
        """A call whose device activity is not in the trace."""
        self._correlated(call, start, start + 1, thread)

    def copy(
        self,
        start: int,
        end: int,
        *,
        launch: int,
        launch_end: int | None = None,
        name: str = "Memcpy DtoH (Device -> Pageable)",
        stream: int = COPY_STREAM,
        thread: int = MAIN,
    ) -> None:
        category = Category.MEMSET if name.startswith("Memset") else Category.MEMCPY
        self.kernel(
            start,
            end,
            launch=launch,
            launch_end=launch_end,
            name=name,
            stream=stream,
            thread=thread,
            call="cudaMemcpyAsync",
            category=category,
        )

    def graph(self, spans: Iterable[tuple[int, int]], *, launch: int, names: Iterable[str] = ()) -> None:
        """The kernels of one CUDA graph launch: all share its correlation."""
        self._correlation += 1
        self._host_row(Category.RUNTIME, "cudaGraphLaunch", launch, launch + 1, MAIN)
        self._rows[-1].correlation = self._correlation
        given = list(names)
        for place, (start, end) in enumerate(spans):
            name = given[place] if given else GEMM
            stream = COMMUNICATION_STREAM if "nccl" in name else COMPUTE_STREAM
            self._device_row(Category.KERNEL, name, start, end, stream, self._correlation)

    def collective(
        self,
        kind: str,
        start: int,
        end: int,
        *,
        launch: int,
        launch_end: int | None = None,
        group: tuple[int, ...] | None,
        elements: int = 1024,
        stream: int = COMMUNICATION_STREAM,
        thread: int = MAIN,
        sequence: int = NONE,
        communicator: int = NONE,
        root: int = NONE,
        described: bool = True,
        name: str = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    ) -> None:
        """A communication kernel that says what it is (unless `described` is false); its operator says the root."""
        identity = NONE
        if root != NONE:
            identity = 1_000_000 + len(self._rows)
            self._host_row(Category.CPU_OP, "record_param_comms", launch, launch + 1, thread)
            row = len(self._rows) - 1
            self._rows[row].external_id = identity
            self._descriptions.append(_Description(row, kind, group, elements, NONE, NONE, sequence, root))
        self.kernel(start, end, launch=launch, launch_end=launch_end, name=name, stream=stream, thread=thread)
        row = len(self._rows) - 1
        self._rows[row].external_id = identity
        if described:
            told = _Description(row, kind, group, elements, NONE, NONE, sequence, communicator=communicator)
            self._descriptions.append(told)

    def point_to_point(
        self,
        start: int,
        end: int,
        *,
        launch: int,
        group: tuple[int, ...],
        send_to: Iterable[int] = (),
        receive_from: Iterable[int] = (),
        stream: int = COMMUNICATION_STREAM,
    ) -> None:
        """A send/receive kernel, which tells nothing itself, and the described operators just before its launch, which
        name the peers by their ranks in the job, as torch does."""
        parts = [("send", NONE, peer) for peer in send_to]
        parts += [("recv", peer, NONE) for peer in receive_from]
        for kind, source, destination in parts:
            self._host_row(Category.CPU_OP, "record_param_comms", launch, launch, MAIN)
            row = len(self._rows) - 1
            self._descriptions.append(_Description(row, kind, group, 1024, source, destination, NONE))
        self.kernel(start, end, launch=launch, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)", stream=stream)

    def build(self) -> TraceColumns:
        """The columns, in the order in which events were added."""
        names = list(dict.fromkeys(row.name for row in self._rows))
        lanes = list(dict.fromkeys(row.lane for row in self._rows))
        launches = list(dict.fromkeys(row.launch for row in self._rows if row.launch is not None))
        shapes = list(dict.fromkeys(row.shapes for row in self._rows if row.shapes is not None))
        groups = self._all_groups()

        def column(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array(list(values), np.int64)

        rows = self._rows
        return TraceColumns(
            header=self._header(groups),
            quality=ReadQuality(len(rows), 0, 0, 0, False),
            category=column(row.category for row in rows),
            name=column(names.index(row.name) for row in rows),
            lane=column(lanes.index(row.lane) for row in rows),
            start_ns=column(row.start * self.ns + self.base_ns for row in rows),
            end_ns=column(row.end * self.ns + self.base_ns for row in rows),
            correlation=column(row.correlation for row in rows),
            external_id=column(row.external_id for row in rows),
            shapes=column(NONE if row.shapes is None else shapes.index(row.shapes) for row in rows),
            launch=column(NONE if row.launch is None else launches.index(row.launch) for row in rows),
            num_bytes=column(row.num_bytes for row in rows),
            names=tuple(names),
            lanes=tuple(lanes),
            shape_table=tuple(shapes),
            launches=tuple(launches),
            groups=groups,
            communication=self._communication(groups),
            waits=SyncWaits(*(column(values) for values in zip(*self._waits, strict=True)))
            if self._waits
            else SyncWaits(column(()), column(()), column(())),
        )

    def _communication(self, groups: tuple[ProcessGroup, ...]) -> CommunicationCalls:
        told = self._descriptions
        kinds = list(dict.fromkeys(d.kind for d in told))
        place = {group.ranks: number for number, group in enumerate(groups)}

        def column(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array(list(values), np.int64)

        return CommunicationCalls(
            row=column(d.row for d in told),
            kind=column(kinds.index(d.kind) for d in told),
            group=column(NONE if d.group is None else place[d.group] for d in told),
            in_elements=column(d.elements for d in told),
            out_elements=column(d.elements for d in told),
            dtype=column(0 for _ in told),
            source_rank=column(d.source for d in told),
            destination_rank=column(d.destination for d in told),
            sequence=column(d.sequence for d in told),
            root_rank=column(d.root for d in told),
            communicator=column(d.communicator for d in told),
            kinds=tuple(kinds),
            dtypes=("Float",),
        )

    def _all_groups(self) -> tuple[ProcessGroup, ...]:
        known = {group.ranks for group in self.groups}
        told = dict.fromkeys(d.group for d in self._descriptions if d.group is not None and d.group not in known)
        return (*self.groups, *(ProcessGroup(str(number), "", ranks) for number, ranks in enumerate(told, 100)))

    def _header(self, groups: tuple[ProcessGroup, ...]) -> TraceHeader:
        return TraceHeader(
            path=self.path,
            rank=self.rank,
            world_size=self.world_size,
            backend=self.backend,
            host_name=self.host,
            base_time_ns=self.base_ns,
            devices=() if self.gpu is None else (TraceDevice(0, self.gpu, 132, None),),
            groups=groups,
            versions={},
            with_shapes=False,
            with_stacks=self.with_stacks,
            file_bytes=0,
            text_bytes=0,
        )

    def _correlated(self, name: str, start: int, end: int, thread: int) -> int:
        self._correlation += 1
        self._host_row(Category.RUNTIME, name, start, end, thread)
        self._rows[-1].correlation = self._correlation
        return self._correlation

    def _sync_record(self, name: str, start: int, end: int, stream: int, correlation: int) -> None:
        self._device_row(Category.SYNC_RECORD, name, start, end, stream, correlation)

    def _host_row(self, category: Category, name: str, start: int, end: int, thread: int, process: int = 100) -> None:
        self._rows.append(_Row(category, name, Lane(process, thread, on_device=False), start, end))

    def _device_row(self, category: Category, name: str, start: int, end: int, stream: int, correlation: int) -> None:
        self._rows.append(_Row(category, name, Lane(0, stream, on_device=True), start, end, correlation))


def three_captured_steps(step_us: int, kernels_us: tuple[int, int, int]) -> TraceBuilder:
    """Captured steps 4 to 6 of this length, each with one kernel that the host launches at its begin."""
    trace = TraceBuilder()
    for place, length in enumerate(kernels_us):
        begin = 1_000 + place * step_us
        trace.step(4 + place, begin, begin + step_us)
        trace.kernel(begin + 10, begin + 10 + length, launch=begin + 1)
    return trace
