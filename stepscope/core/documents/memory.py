"""GPU memory: a snapshot of torch's CUDA allocator, and the report `stepscope.memory/1` on it. Sizes are bytes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from stepscope.core.documents.hang import StackFrame
from stepscope.core.vocabulary import Notice

MEMORY_SCHEMA = "stepscope.memory/1"
MEMORY_COMPARISON_SCHEMA = "stepscope.memory-comparison/1"


def own_call(stack: Sequence[str]) -> str:
    """Document of GPU memory: innermost line of a stack field outside torch.

    The innermost where all are in torch; empty if none.
    """
    line = next((line for line in stack if "/torch/" not in f"/{line}"), stack[0] if stack else "")
    return line.removesuffix(" (??:0)")  # of a C++ function


def is_python(frame: StackFrame) -> bool:
    """Whether a frame of a memory stack is one of Python's: others have no file, a library or a C++ source."""
    return frame.file.endswith(".py") or frame.file.startswith("<")


_AUTOGRAD = ("torch::autograd::Engine::", "torch::autograd::Node::operator", "torch::autograd::python::PythonEngine::")


def is_autograd_thread(frame: StackFrame) -> bool:
    """Whether a C++ frame of a memory stack is of the engine that runs the backward pass."""
    return frame.function.startswith(_AUTOGRAD)


_WORKSPACE = ("at::cuda::getCurrentCUDABlasHandle", "at::cuda::getCUDABlasLtWorkspace")


def is_workspace(frame: StackFrame) -> bool:
    """Whether a C++ frame allocates cuBLAS' workspace, which the process keeps, whoever called first."""
    return frame.function.startswith(_WORKSPACE)


class MemoryCategory(StrEnum):
    """Memory document: purpose of memory."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    TEMPORARY = "temporary"
    COMMUNICATION = "communication"
    KV_CACHE = "kv_cache"
    OTHER = "other"


class JobKind(StrEnum):
    """Kind of job, by the stacks of a snapshot."""

    TRAINING = "training"  # there is a backward pass or an optimizer
    INFERENCE = "inference"  # there is neither, and modules are called without gradients
    UNKNOWN = "unknown"


class OomCause(StrEnum):
    """Memory document: cause of an out-of-memory error."""

    CAPACITY = "capacity"  # more is needed at once than the GPU has
    FRAGMENTATION = "fragmentation"  # enough is free, but in pieces
    PRIVATE_POOLS = "private_pools"  # enough is free, but in private pools (CUDA graphs), of which others get nothing
    LEAK = "leak"  # memory grows with each step
    OTHER_PROCESS = "other_process"  # another process has it


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """Memory document: blocks of one category and stack at the peak.

    Attributes:
        bytes: of all these blocks.
        count: how many blocks.
        stack: of the allocation, innermost call first: "function (file:line)"; empty where unknown.
    """

    category: MemoryCategory
    bytes: int
    count: int
    stack: list[str]


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Memory document: memory that torch has reserved and no tensor uses, at the end of the snapshot.

    Attributes:
        inactive_bytes: total.
        largest_bytes: the largest piece.
        in_used_segments_bytes: in segments that cannot be freed, as they contain a tensor; without private pools.
        ratio: 1 - largest / total.
        private_pools_bytes: the part of the total that is in private pools.
    """

    inactive_bytes: int
    largest_bytes: int
    in_used_segments_bytes: int
    ratio: float
    private_pools_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PrivatePool:
    """A memory pool beside the shared one, as CUDA graphs and torch.cuda.MemPool have, at the end of the snapshot.

    Tensors outside of it get none of its memory. What a CUDA graph's pool has free is used while the graph is replayed.

    Attributes:
        reserved_bytes, allocated_bytes: held by the pool, and of it used by tensors.
        num_segments: pieces that it has from the driver.
        id: torch's pair of numbers.
        inactive_bytes: reserved, and no tensor uses it.
    """

    id: tuple[int, int]
    reserved_bytes: int
    allocated_bytes: int
    inactive_bytes: int
    num_segments: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory document: memory that each step adds and does not free.

    Attributes:
        bytes_per_step: median difference from one step's end to the next.
        num_steps: steps that the recorded events cover.
        stack: of the growing allocations.
        grown_bytes: their size at the end.
    """

    bytes_per_step: int
    num_steps: int
    stack: list[str]
    grown_bytes: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Memory document: an out-of-memory error, and the memory at that moment.

    Attributes:
        phase: forward, backward, optimizer or unknown.
        allocated_bytes, reserved_bytes: by torch.
        device_free_bytes: of the GPU; None where unknown.
        non_torch_bytes: used by others than torch (other processes, NCCL, CUDA itself); None where the GPU's size is
            unknown.
        unreachable_bytes: reserved and unused, but in other pools than the request's.
    """

    requested_bytes: int
    phase: str
    cause: OomCause
    allocated_bytes: int
    reserved_bytes: int
    device_free_bytes: int | None
    non_torch_bytes: int | None
    evidence: list[str]
    stack: list[str]
    unreachable_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Remedy:
    """Memory document: a change, and the bytes that it should save at the peak; None where unknown.

    Attributes:
        change: what to change, in words.
        saved_bytes: at the peak; None where unknown.
    """

    change: str
    saved_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The document `stepscope.memory/1`, on one GPU of one process.

    Attributes:
        allocated_bytes, reserved_bytes: at the end, by torch's own counters.
        peak_bytes: largest allocated size in the time that the events cover.
        by_category: at the peak.
        at_peak: the largest holders.
        timeline: (time in us, allocated, reserved), at most some hundred points that keep the peaks.
        private_pools: the largest first.
        job: advice for training is given to training only.
    """

    device: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    by_category: dict[MemoryCategory, int]
    at_peak: list[MemoryHolder]
    fragmentation: Fragmentation
    growth: Growth | None
    oom: OutOfMemory | None
    remedies: list[Remedy]
    timeline: list[tuple[int, int, int]]
    warnings: list[Notice] = field(default_factory=list)
    private_pools: list[PrivatePool] = field(default_factory=list)
    job: JobKind = JobKind.UNKNOWN
    schema: str = MEMORY_SCHEMA


@dataclass(frozen=True, slots=True)
class Compared:
    """A value in two snapshots, and its change from the first to the second."""

    first: int
    second: int

    @property
    def change(self) -> int:
        """Growth."""
        return self.second - self.first


@dataclass(frozen=True, slots=True)
class ComparedHolder:
    """Blocks of one category and place in two snapshots.

    Attributes:
        place: the innermost call outside torch; empty where unknown.
        end, peak: bytes at the end of each snapshot, and at each one's peak.
        end_count: number of blocks at the end.
    """

    category: MemoryCategory
    place: str
    end: Compared
    peak: Compared
    end_count: Compared


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """The document `stepscope.memory-comparison/1`: two times of a process, or two ranks.

    Attributes:
        files: of the two snapshots.
        devices: GPU of each.
        inactive: reserved and unused, of which `private_pools` is in private pools.
        holders: those that differ, by the larger difference at the end or at the peak.
    """

    files: tuple[str, str]
    devices: tuple[int, int]
    allocated: Compared
    reserved: Compared
    inactive: Compared
    private_pools: Compared
    peak: Compared
    holders: list[ComparedHolder]
    warnings: list[Notice] = field(default_factory=list)
    schema: str = MEMORY_COMPARISON_SCHEMA


PoolId = tuple[int, int]
SHARED_POOL: PoolId = (0, 0)
"""Pool of all tensors that no other pool was chosen for (torch's c10/core/CachingDeviceAllocator.h)."""


NO_STACK = 0
"""Index of the empty stack in a snapshot's stacks."""


class AllocatorAction(IntEnum):
    """Typed memory snapshot: kind of an event, in the words of torch's allocator."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    OTHER = 8


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """Pool and CUDA stream of a request that failed; None where the snapshot does not say."""

    pool: PoolId | None
    stream: int | None


@dataclass(frozen=True, slots=True)
class AllocatorEvents:
    """Typed memory snapshot: events of one GPU as columns, the oldest first; as many as torch was set to record.

    Attributes:
        actions: an `AllocatorAction` each.
        addresses: of the block or segment; for an OOM the free bytes of the device.
        sizes: bytes.
        times_us: since the epoch.
        stacks: indices into the snapshot's stacks.
        failed: what is known of each OOM, by the event's index.
    """

    actions: array[int] = field(default_factory=lambda: array("B"))
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    times_us: array[int] = field(default_factory=lambda: array("q"))
    stacks: array[int] = field(default_factory=lambda: array("i"))
    failed: dict[int, FailedRequest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """Typed memory snapshot: a piece of a segment; `is_allocated` by a tensor, or `is_awaited`: freed, still in use."""

    address: int
    size: int
    is_allocated: bool
    is_awaited: bool
    stack: int


@dataclass(frozen=True, slots=True)
class MemorySegment:
    """Typed memory snapshot: memory that torch got from the driver.

    Attributes:
        is_expandable: it can grow, so that its free end can become part of a larger block.
        pool: SHARED_POOL, or a private one.
        stream: CUDA stream of the kernels that may use it.
    """

    device: int
    address: int
    size: int
    is_expandable: bool
    blocks: tuple[MemoryBlock, ...]
    pool: PoolId = SHARED_POOL
    stream: int = 0


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Typed memory snapshot: the allocator's memory in one process.

    Attributes:
        segments: of all GPUs.
        events: by GPU.
        stacks: innermost frame first; events and blocks refer to them by index.
        settings: PYTORCH_CUDA_ALLOC_CONF.
        step_ends_us: ends of the optimizer's steps, where torch recorded them.
    """

    segments: list[MemorySegment] = field(default_factory=list)
    events: dict[int, AllocatorEvents] = field(default_factory=dict)
    stacks: list[tuple[StackFrame, ...]] = field(default_factory=lambda: [()])
    settings: str = ""
    step_ends_us: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OutOfMemoryNote:
    """Typed memory snapshot: what `profile()` recorded of an out-of-memory error, beside the snapshot.

    Attributes:
        owners: category of blocks by address.
        time_ns: of the failure, ns since the epoch.
    """

    device: int | None
    requested_bytes: int | None
    device_total_bytes: int | None
    device_free_bytes: int | None
    phase: str | None
    owners: dict[int, str] = field(default_factory=dict)
    time_ns: int | None = None
