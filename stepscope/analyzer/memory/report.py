"""Report on one GPU's memory from a snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from stepscope.analyzer.memory.categories import category_of
from stepscope.analyzer.memory.history import History, growth_of, history_of
from stepscope.analyzer.memory.out_of_memory import out_of_memory_of, remedies_for
from stepscope.core.documents.hang import stack_lines
from stepscope.core.documents.memory import (
    Fragmentation,
    Holder,
    MemoryCategory,
    MemoryReport,
    MemorySegment,
    MemorySnapshot,
    OutOfMemoryNote,
)
from stepscope.core.vocabulary import Notice


def fragmentation_of(segments: Iterable[MemorySegment]) -> Fragmentation:
    """Fragmentation at the snapshot's end; a piece is one free block, as torch joins adjacent ones."""
    free, in_used = [], 0
    for segment in segments:
        pieces = [block.size for block in segment.blocks if not block.is_allocated and not block.is_awaited]
        free += pieces
        if sum(pieces) < segment.size:
            in_used += sum(pieces)
    inactive, largest = sum(free), max(free, default=0)
    return Fragmentation(inactive, largest, in_used, 1 - largest / inactive if inactive else 0.0)


_MAX_HOLDERS = 40


def explain_memory(snapshot: MemorySnapshot, note: OutOfMemoryNote | None = None) -> MemoryReport:
    """Explain the memory of the GPU that the note names, else of the one with the most reserved memory."""
    device, notices = _device(snapshot, note)
    history = history_of(snapshot, device)
    owners = note.owners if note is not None else {}
    holders, by_category = _holders(history, snapshot, owners)
    if not history.events.actions:
        notices.append(
            Notice(
                "no_history", "the snapshot has no events: record them with torch.cuda.memory._record_memory_history()"
            )
        )
    fragmentation = fragmentation_of(history.segments)
    growth = growth_of(history, snapshot.step_ends_us, snapshot.stacks)
    oom = out_of_memory_of(history, snapshot.stacks, fragmentation, growth, note)
    return MemoryReport(
        device,
        history.allocated_now,
        history.reserved_now,
        int(history.allocated[history.peak]),
        by_category,
        holders,
        fragmentation,
        growth,
        oom,
        remedies_for(by_category, fragmentation, growth, oom, snapshot.settings),
        history.timeline(),
        notices,
    )


def _device(snapshot: MemorySnapshot, note: OutOfMemoryNote | None) -> tuple[int, list[Notice]]:
    reserved: dict[int, int] = defaultdict(int)
    for segment in snapshot.segments:
        reserved[segment.device] += segment.size
    for device, events in snapshot.events.items():
        if events.actions:
            reserved[device] += 0
    if note is not None and note.device in reserved:
        device = note.device
    else:
        device = max(reserved, key=lambda one: (reserved[one], -one), default=0)
    others = [str(one) for one in sorted(reserved) if one != device]
    notices = [Notice("other_devices", f"the snapshot is also of GPU {', '.join(others)}")] if others else []
    return device or 0, notices


def _holders(
    history: History, snapshot: MemorySnapshot, owners: Mapping[int, str]
) -> tuple[list[Holder], dict[MemoryCategory, int]]:
    """Largest holders at the peak, and bytes by category."""
    sizes: dict[tuple[MemoryCategory, int], int] = defaultdict(int)
    counts: dict[tuple[MemoryCategory, int], int] = defaultdict(int)
    by_category = dict.fromkeys(MemoryCategory, 0)
    step_ends = history.places_of(snapshot.step_ends_us)
    failed = history.last_failure
    noted_at = len(history.events.actions) if failed is None else failed
    for one in history.held_after(history.peak):
        category = category_of(one, snapshot.stacks, owners, step_ends, noted_at)
        sizes[category, one.stack] += one.size
        counts[category, one.stack] += 1
        by_category[category] += one.size
    largest = sorted(sizes, key=lambda key: -sizes[key])[:_MAX_HOLDERS]
    holders = [Holder(key[0], sizes[key], counts[key], stack_lines(snapshot.stacks[key[1]])) for key in largest]
    return holders, by_category
