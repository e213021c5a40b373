"""What held a GPU's memory? The typed form of the `stepscope.memory/1` document. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stepscope.core.analysis import Notice

MEMORY_SCHEMA = "stepscope.memory/1"


def own_call(stack: Sequence[str]) -> str:
    """Of a stack's lines the innermost that is not torch's own; the innermost where all are; empty without one."""
    return next((line for line in stack if "/torch/" not in f"/{line}"), stack[0] if stack else "")


class Category(StrEnum):
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

    category: Category
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
    by_category: dict[Category, int]
    at_peak: list[Holder]
    fragmentation: Fragmentation
    growth: Growth | None
    oom: OutOfMemory | None
    remedies: list[Remedy]
    timeline: list[tuple[int, int, int]]
    warnings: list[Notice] = field(default_factory=list)
    schema: str = MEMORY_SCHEMA
