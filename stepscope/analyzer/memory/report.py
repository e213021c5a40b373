"""Report on one GPU's memory from a snapshot: holders, fragmentation, why an allocation failed, what to change."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from stepscope.analyzer.memory.categories import category_of, phase_of
from stepscope.analyzer.memory.history import History, growth_of, history_of
from stepscope.core.documents.hang import StackFrame, stack_lines
from stepscope.core.documents.memory import (
    Fragmentation,
    Growth,
    MemoryCategory,
    MemoryHolder,
    MemoryReport,
    MemorySegment,
    MemorySnapshot,
    OomCause,
    OutOfMemory,
    OutOfMemoryNote,
    Remedy,
    own_call,
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
        text = "the snapshot has no events: record them with torch.cuda.memory._record_memory_history()"
        notices.append(Notice("no_history", text))
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
) -> tuple[list[MemoryHolder], dict[MemoryCategory, int]]:
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
    holders = [MemoryHolder(key[0], sizes[key], counts[key], stack_lines(snapshot.stacks[key[1]])) for key in largest]
    return holders, by_category


_FOREIGN_SHARE = 0.15
"""Share of the GPU's memory: CUDA's context, NCCL's buffers and libraries take a few GB at most."""
_UNUSED_SHARE = 0.5
"""Share of the request that unused reserved memory must hold; the GPU's free memory holds the rest."""
_LEAKED_SHARE = 0.3
"""Share of allocated memory from which growth is the cause."""


def out_of_memory_of(
    history: History,
    stacks: Sequence[tuple[StackFrame, ...]],
    fragmentation: Fragmentation,
    growth: Growth | None,
    note: OutOfMemoryNote | None,
) -> OutOfMemory | None:
    """Post-mortem of a failed allocation; None if none failed.

    `fragmentation` is that of the snapshot's end, right after the failure; `note` was written by the training process.
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
    cause, evidence = _cause(requested, allocated, reserved, free, foreign, total, fragmentation, growth)
    return OutOfMemory(requested, phase, cause, allocated, reserved, free, foreign, evidence, stack_lines(frames))


def _cause(
    requested: int,
    allocated: int,
    reserved: int,
    free: int | None,
    foreign: int | None,
    total: int | None,
    fragmentation: Fragmentation,
    growth: Growth | None,
) -> tuple[OomCause, list[str]]:
    unused = reserved - allocated
    numbers = f"asked for {_words(requested)}: {_words(allocated)} allocated, {_words(unused)} more reserved"
    numbers += "" if free is None else f", {_words(free)} free on the GPU"
    evidence = [numbers]
    if free is not None and free >= requested:
        evidence.append("the GPU has room: a limit of torch's ended it (set_per_process_memory_fraction)")
    if foreign is not None and total is not None and foreign > _FOREIGN_SHARE * total:
        evidence.append(f"{_words(foreign)} of {_words(total)} are neither torch's nor free")
        return OomCause.OTHER_PROCESS, evidence
    if growth is not None and growth.grown_bytes >= _LEAKED_SHARE * allocated:
        evidence.append(f"each of {growth.num_steps} steps kept {_words(growth.bytes_per_step)}")
        evidence.append(f"one place holds {_words(growth.grown_bytes)} of many steps")
        return OomCause.LEAK, evidence
    in_pieces = unused + (free if free is not None and free < requested else 0)
    if in_pieces >= requested and unused >= _UNUSED_SHARE * requested:
        evidence.append(f"the largest unused piece is {_words(fragmentation.largest_bytes)}")
        return OomCause.FRAGMENTATION, evidence
    return OomCause.CAPACITY, evidence


def _words(num_bytes: int) -> str:
    """Bytes as in torch's own message: binary units, two decimals."""
    value, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:,.2f} {units[0]}" if units[0] != "B" else f"{num_bytes} B"


_MIN_SAVING = 0.02
"""Smallest saving to report, as a share of the peak."""
_EXPANDABLE = re.compile(r"expandable_segments\s*:\s*True", re.IGNORECASE)


def remedies_for(
    by_category: Mapping[MemoryCategory, int],
    fragmentation: Fragmentation,
    growth: Growth | None,
    oom: OutOfMemory | None,
    settings: str,
) -> list[Remedy]:
    """Changes that save memory: those for the cause first, then by saving, given the bytes by category at the peak.

    Savings of ZeRO are those with many data-parallel ranks; with two they are half.
    """
    first: list[Remedy] = []
    if oom is not None and oom.cause is OomCause.OTHER_PROCESS:
        first.append(Remedy("end the other processes on this GPU (nvidia-smi)", oom.non_torch_bytes))
    if growth is not None:
        place = own_call(growth.stack)
        where = f" at {place}" if place else ""
        change = f"do not keep what is allocated{where}: append loss.item() or loss.detach(), not the loss"
        first.append(Remedy(change, growth.grown_bytes))
    held = Counter(by_category)
    peak = held.total()
    optimizer, gradients = held[MemoryCategory.OPTIMIZER], held[MemoryCategory.GRADIENTS]
    leaked = growth.grown_bytes if growth is not None else 0
    activations = max(held[MemoryCategory.ACTIVATIONS] - leaked, 0)
    rest = [
        Remedy("ZeRO 1: shard the optimizer's state over data-parallel ranks", optimizer),
        Remedy("ZeRO 2: shard gradients as well", optimizer + gradients),
        Remedy("ZeRO 3 (FSDP): shard parameters as well", optimizer + gradients + held[MemoryCategory.PARAMETERS]),
        Remedy("halve the micro-batch", activations // 2),
        Remedy("recompute activations (checkpoint each layer)", activations * 3 // 4),
    ]
    if not _EXPANDABLE.search(settings):
        change = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that free pieces join"
        is_cause = oom is not None and oom.cause is OomCause.FRAGMENTATION
        (first if is_cause else rest).append(Remedy(change, fragmentation.in_used_segments_bytes))
    worthwhile = [remedy for remedy in rest if (remedy.saved_bytes or 0) > _MIN_SAVING * peak]
    return [*first, *sorted(worthwhile, key=lambda remedy: -(remedy.saved_bytes or 0))]
