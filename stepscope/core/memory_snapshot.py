"""What did torch's CUDA allocator hold, and what had happened to it? One snapshot, as columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

from stepscope.core.flight_recorder import StackFrame

NO_STACK = 0
"""Place of the empty stack among a snapshot's stacks."""


class Action(IntEnum):
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
class Events:
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
class Block:
    """A piece of a segment; `is_allocated` when a tensor has it, `is_awaited` when it is freed but still used."""

    address: int
    size: int
    is_allocated: bool
    is_awaited: bool
    stack: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that torch has from the driver.

    Attributes:
        is_expandable: it may grow, so that its free end can become part of a larger block.
    """

    device: int
    address: int
    size: int
    is_expandable: bool
    blocks: tuple[Block, ...]


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

    segments: list[Segment] = field(default_factory=list)
    events: dict[int, Events] = field(default_factory=dict)
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
