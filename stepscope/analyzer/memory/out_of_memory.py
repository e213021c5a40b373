"""Post-mortem of an allocation that failed: how much was asked for, how much was free, and why that was not enough."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.analyzer.memory.categories import phase_of
from stepscope.analyzer.memory.history import History
from stepscope.analyzer.memory.pools import free_pieces_beside
from stepscope.core.documents.hang import StackFrame, stack_lines
from stepscope.core.documents.memory import (
    SHARED_POOL,
    AllocatorAction,
    Growth,
    OomCause,
    OutOfMemory,
    OutOfMemoryNote,
    PoolId,
)
from stepscope.core.text.numbers import counted

_FOREIGN_SHARE = 0.15
"""Share of the GPU's memory: CUDA's context, NCCL's buffers and libraries take a few GB at most."""
_UNUSED_SHARE = 0.5
"""Share of the request that unused reserved memory must hold; the GPU's free memory holds the rest."""
_LEAKED_SHARE = 0.3
"""Share of allocated memory from which growth is the cause."""


def out_of_memory_of(
    history: History,
    stacks: Sequence[tuple[StackFrame, ...]],
    growth: Growth | None,
    note: OutOfMemoryNote | None,
) -> OutOfMemory | None:
    """Post-mortem of a failed allocation; None if none failed.

    `note` was written by the training process.
    """
    events = history.events
    failed = history.last_failure
    frames: Sequence[StackFrame] = ()
    free: int | None
    if failed is not None:
        requested, free = events.sizes[failed], events.addresses[failed]
        frames = stacks[events.stacks[failed]]
        allocated, reserved = int(history.allocated[failed + 1]), int(history.reserved[failed + 1])
    elif note is not None and note.requested_bytes is not None:
        requested, free = note.requested_bytes, note.device_free_bytes
        allocated, reserved = history.allocated_now, history.reserved_now
    else:
        return None
    total = note.device_total_bytes if note is not None else None
    foreign = None if total is None or free is None else max(total - free - reserved, 0)
    phase = phase_of(frames)
    if phase == "unknown" and note is not None and note.phase is not None:
        phase = note.phase
    pool = SHARED_POOL if failed is None else _pool_of(history, failed)
    moment = len(events.actions) if failed is None else failed + 1
    pieces = free_pieces_beside(history.held_after(moment), history.segments)
    within = pieces.pop(pool, [])
    shortage = _Shortage(
        requested=requested,
        allocated=allocated,
        unused=reserved - allocated,
        free=free,
        foreign=foreign,
        total=total,
        pool=pool,
        largest_piece=max(within, default=0),
        unreachable=sum(map(sum, pieces.values())),
        num_unreachable_pools=len(pieces),
    )
    cause, evidence = _cause(shortage, growth)
    lines = stack_lines(frames)
    return OutOfMemory(
        requested, phase, cause, allocated, reserved, free, foreign, evidence, lines, shortage.unreachable
    )


def _pool_of(history: History, failed: int) -> PoolId:
    """Pool that the failed request was for: as recorded, else that of the latest block of its CUDA stream.

    The default stream, 0, cannot be captured.
    """
    events = history.events
    request = events.failed.get(failed)
    if request is None or request.pool is not None or not request.stream:
        return SHARED_POOL if request is None or request.pool is None else request.pool
    segments = sorted(history.segments, key=lambda segment: segment.address)
    starts = [segment.address for segment in segments]
    for place in range(failed - 1, -1, -1):
        if events.actions[place] == AllocatorAction.ALLOC:
            segment = segments[bisect_right(starts, events.addresses[place]) - 1]
            if segment.stream == request.stream:
                return segment.pool
    return SHARED_POOL


@dataclass(frozen=True, slots=True)
class _Shortage:
    """Memory at the failure, in bytes.

    Attributes:
        unused: reserved by torch, without a tensor.
        free: of the GPU; None where unknown, as the next two.
        foreign: neither torch's nor free.
        total: of the GPU.
        pool: of the request.
        largest_piece: that is free in the request's pool.
        unreachable: the unused part in other pools.
    """

    requested: int
    allocated: int
    unused: int
    free: int | None
    foreign: int | None
    total: int | None
    pool: PoolId
    largest_piece: int
    unreachable: int
    num_unreachable_pools: int

    def would_do(self, unused: int) -> bool:
        """Whether unused memory, with what the GPU has free, is as much as was asked for, half of it unused."""
        free = self.free if self.free is not None and self.free < self.requested else 0
        return unused + free >= self.requested and unused >= _UNUSED_SHARE * self.requested


def _cause(shortage: _Shortage, growth: Growth | None) -> tuple[OomCause, list[str]]:
    requested, free, unreachable = shortage.requested, shortage.free, shortage.unreachable
    numbers = f"asked for {_words(requested)}: {_words(shortage.allocated)} allocated, {_words(shortage.unused)} more"
    evidence = [f"{numbers} reserved" + ("" if free is None else f", {_words(free)} free on the GPU")]
    if free is not None and free >= requested:
        evidence.append("the GPU has room: a limit of torch's ended it (set_per_process_memory_fraction)")
    if unreachable and shortage.pool == SHARED_POOL:
        pools = counted(shortage.num_unreachable_pools, "private pool")
        evidence.append(
            f"{_words(unreachable)} of it are free in {pools} (CUDA graphs): tensors outside of them get none of it"
        )
    elif unreachable:
        evidence.append(f"{_words(unreachable)} of it are free in other pools than the request's, which is private")
    foreign, total = shortage.foreign, shortage.total
    if foreign is not None and total is not None and foreign > _FOREIGN_SHARE * total:
        evidence.append(f"{_words(foreign)} of {_words(total)} are neither torch's nor free")
        return OomCause.OTHER_PROCESS, evidence
    if growth is not None and growth.grown_bytes >= _LEAKED_SHARE * shortage.allocated:
        evidence.append(f"each of {growth.num_steps} steps kept {_words(growth.bytes_per_step)}")
        evidence.append(f"one place holds {_words(growth.grown_bytes)} of many steps")
        return OomCause.LEAK, evidence
    if shortage.would_do(shortage.unused - unreachable):
        evidence.append(f"the largest unused piece is {_words(shortage.largest_piece)}")
        return OomCause.FRAGMENTATION, evidence
    if shortage.would_do(unreachable):
        return OomCause.PRIVATE_POOLS, evidence
    return OomCause.CAPACITY, evidence


def _words(num_bytes: int) -> str:
    """Bytes as in torch's own message: binary units, two decimals."""
    value, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:,.2f} {units[0]}" if units[0] != "B" else f"{num_bytes} B"
