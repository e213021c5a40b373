"""Memory that torch has reserved and no tensor uses, in the shared pool and in the private ones.

A CUDA graph allocates from a private pool, as torch.cuda.MemPool does: what is free there is for the pool's own tensors
(and for the graph while it is replayed), never for others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from stepscope.analyzer.memory.history import HeldBlock
from stepscope.core.documents.memory import SHARED_POOL, Fragmentation, MemorySegment, PoolId, PrivatePool


def free_pieces(segment: MemorySegment) -> list[int]:
    """Sizes of a segment's free blocks; a piece is one block, as torch joins adjacent ones."""
    return [block.size for block in segment.blocks if not block.is_allocated and not block.is_awaited]


def free_pieces_beside(held: Iterable[HeldBlock], segments: Iterable[MemorySegment]) -> dict[PoolId, list[int]]:
    """Sizes of the pieces between the blocks that are held at some moment, by pool."""
    blocks = sorted(held, key=lambda block: block.address)
    starts = [block.address for block in blocks]
    pieces: dict[PoolId, list[int]] = defaultdict(list)
    for segment in segments:
        free_from, end = segment.address, segment.address + segment.size
        for block in blocks[bisect_left(starts, segment.address) : bisect_left(starts, end)]:
            if block.address > free_from:
                pieces[segment.pool].append(block.address - free_from)
            free_from = max(free_from, block.address + block.size)
        if end > free_from:
            pieces[segment.pool].append(end - free_from)
    return pieces


def fragmentation_of(segments: Iterable[MemorySegment]) -> Fragmentation:
    """Fragmentation at the snapshot's end."""
    free: list[int] = []
    in_used = in_private = 0
    for segment in segments:
        pieces = free_pieces(segment)
        free += pieces
        if segment.pool != SHARED_POOL:
            in_private += sum(pieces)
        elif sum(pieces) < segment.size:
            in_used += sum(pieces)
    inactive, largest = sum(free), max(free, default=0)
    return Fragmentation(inactive, largest, in_used, 1 - largest / inactive if inactive else 0.0, in_private)


def private_pools_of(segments: Iterable[MemorySegment]) -> list[PrivatePool]:
    """The private pools, the largest first."""
    by_id = defaultdict(list)
    for segment in segments:
        if segment.pool != SHARED_POOL:
            by_id[segment.pool].append(segment)
    pools = [
        PrivatePool(
            id=pool,
            reserved_bytes=sum(segment.size for segment in own),
            allocated_bytes=sum(block.size for segment in own for block in segment.blocks if block.is_allocated),
            inactive_bytes=sum(sum(free_pieces(segment)) for segment in own),
            num_segments=len(own),
        )
        for pool, own in by_id.items()
    ]
    return sorted(pools, key=lambda pool: (-pool.reserved_bytes, pool.id))
