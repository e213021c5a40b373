"""GPU memory: a snapshot of torch's CUDA allocator, and the report `stepscope.memory/1` made of it.

Sizes are bytes. A snapshot keeps its events as columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from stepscope.core.documents.evidence import Notice
from stepscope.core.documents.hang import StackFrame

MEMORY_SCHEMA = "stepscope.memory/1"


def own_call(stack: Sequence[str]) -> str:
    """Of a stack's lines the innermost that is not torch's own; the innermost where all are; empty without one."""
    return next((line for line in stack if "/torch/" not in f"/{line}"), stack[0] if stack else "")


class MemoryCategory(StrEnum):
    """What memory is for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    TEMPORARY = "temporary"
    COMMUNICATION = "communication"
    OTHER = "other"


class OomCause(StrEnum):
    """Why memory ran out."""

    CAPACITY = "capacity"  # what is needed at once is more than there is
    FRAGMENTATION = "fragmentation"  # enough is free, in pieces
    LEAK = "leak"  # each step keeps some
    OTHER_PROCESS = "other_process"  # somebody else has it


@dataclass(frozen=True, slots=True)
class Holder:
    """Blocks of one category and stack that were held at the peak.

    Attributes:
        stack: where they were allocated, the innermost call first: "function (file:line)"; empty where not known.
    """

    category: MemoryCategory
    bytes: int
    count: int
    stack: list[str]


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Memory that torch has and no tensor uses, at the end of the snapshot.

    Attributes:
        inactive_bytes: all of it.
        largest_bytes: the largest piece.
        in_used_segments_bytes: in segments that cannot be given back, as a tensor lies in them.
        ratio: 1 - largest / all.
    """

    inactive_bytes: int
    largest_bytes: int
    in_used_segments_bytes: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Growth:
    """What each step keeps.

    Attributes:
        bytes_per_step: median difference from one step's end to the next.
        num_steps: steps that the recorded events cover.
        stack: of what grows.
        grown_bytes: what it holds by now.
    """

    bytes_per_step: int
    num_steps: int
    stack: list[str]
    grown_bytes: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """How memory ran out, at that moment.

    Attributes:
        phase: forward, backward, optimizer or unknown.
        allocated_bytes, reserved_bytes: of torch.
        device_free_bytes: of the GPU; None where not known.
        non_torch_bytes: what neither torch has nor is free: other processes, NCCL, CUDA itself; None where the size of
            the GPU is not known.
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


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change, and what it is expected to save at the peak; None where that cannot be told."""

    change: str
    saved_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """All that `stepscope memory` says of one GPU of one process.

    Attributes:
        allocated_bytes, reserved_bytes: at the end, as torch's own counters have them.
        peak_bytes: most that was allocated in the time that the events cover.
        by_category: at the peak.
        at_peak: the largest holders.
        timeline: (time in us, allocated, reserved), at most some hundred points, peaks kept.
    """

    device: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    by_category: dict[MemoryCategory, int]
    at_peak: list[Holder]
    fragmentation: Fragmentation
    growth: Growth | None
    oom: OutOfMemory | None
    remedies: list[Remedy]
    timeline: list[tuple[int, int, int]]
    warnings: list[Notice] = field(default_factory=list)
    schema: str = MEMORY_SCHEMA


NO_STACK = 0
"""Place of the empty stack among a snapshot's stacks."""


class AllocatorAction(IntEnum):
    """What happened, in the words of torch's allocator."""

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
class AllocatorEvents:
    """What happened on one GPU, the oldest first; as many as torch was told to remember.

    Attributes:
        actions: `Action` of each.
        addresses: of the block or segment; of an OOM the bytes that the device had free.
        sizes: bytes.
        times_us: since the epoch.
        stacks: place of each one's stack.
    """

    actions: array[int] = field(default_factory=lambda: array("B"))
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    times_us: array[int] = field(default_factory=lambda: array("q"))
    stacks: array[int] = field(default_factory=lambda: array("i"))


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """A piece of a segment; `is_allocated` when a tensor has it, `is_awaited` when it is freed but still used."""

    address: int
    size: int
    is_allocated: bool
    is_awaited: bool
    stack: int


@dataclass(frozen=True, slots=True)
class MemorySegment:
    """Memory that torch has from the driver.

    Attributes:
        is_expandable: it may grow, so that its free end can become part of a larger block.
    """

    device: int
    address: int
    size: int
    is_expandable: bool
    blocks: tuple[MemoryBlock, ...]


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """One process's memory.

    Attributes:
        segments: of all GPUs.
        events: by GPU.
        stacks: the innermost frame first; events and blocks name them by their place here.
        settings: PYTORCH_CUDA_ALLOC_CONF.
        step_ends_us: when the optimizer's steps ended, where torch noted it.
    """

    segments: list[MemorySegment] = field(default_factory=list)
    events: dict[int, AllocatorEvents] = field(default_factory=dict)
    stacks: list[tuple[StackFrame, ...]] = field(default_factory=lambda: [()])
    settings: str = ""
    step_ends_us: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OutOfMemoryNote:
    """What the training side wrote down when memory ran out, beside its snapshot.

    Attributes:
        owners: category of blocks by their address.
    """

    device: int | None
    requested_bytes: int | None
    device_total_bytes: int | None
    device_free_bytes: int | None
    phase: str | None
    owners: dict[int, str] = field(default_factory=dict)
