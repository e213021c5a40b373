"""How much memory does torch have that no tensor uses, and could a large tensor use it?"""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.core.memory import Fragmentation
from stepscope.core.memory_snapshot import Segment


def fragmentation_of(segments: Iterable[Segment]) -> Fragmentation:
    """At the snapshot's end. A piece is one free block: torch joins those that lie beside each other."""
    free, in_used = [], 0
    for segment in segments:
        pieces = [block.size for block in segment.blocks if not block.is_allocated and not block.is_awaited]
        free += pieces
        if sum(pieces) < segment.size:
            in_used += sum(pieces)
    inactive, largest = sum(free), max(free, default=0)
    return Fragmentation(inactive, largest, in_used, 1 - largest / inactive if inactive else 0.0)
