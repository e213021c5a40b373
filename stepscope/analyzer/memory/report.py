"""Report on one GPU's memory from a snapshot: holders, fragmentation, why an allocation failed, what to change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from stepscope.analyzer.memory.categories import job_kind
from stepscope.analyzer.memory.history import History, growth_of, history_of
from stepscope.analyzer.memory.holders import holders_after
from stepscope.analyzer.memory.out_of_memory import out_of_memory_of
from stepscope.analyzer.memory.pools import fragmentation_of, private_pools_of
from stepscope.analyzer.memory.remedies import remedies_for
from stepscope.core.documents.memory import (
    NO_STACK,
    JobKind,
    MemoryCategory,
    MemoryReport,
    MemorySnapshot,
    OutOfMemoryNote,
)
from stepscope.core.text.numbers import plain_size
from stepscope.core.vocabulary import Notice

_MAX_HOLDERS = 40
_EARLIER_SHARE = 0.1
"""Share of the peak allocated before the recording with unknown stacks, from which a notice says so."""


def explain_memory(snapshot: MemorySnapshot, note: OutOfMemoryNote | None = None) -> MemoryReport:
    """Explain the memory of the GPU that the note names, else of the one with the most reserved memory."""
    device, notices = reported_device(snapshot, note)
    history = history_of(snapshot, device)
    owners = note.owners if note is not None else {}
    job = job_of(snapshot, history, owners)
    holders = holders_after(history.peak, history, snapshot, owners, job)
    by_category = dict.fromkeys(MemoryCategory, 0)
    for holder in holders:
        by_category[holder.category] += holder.bytes
    if not history.events.actions:
        text = "the snapshot has no events: record them with torch.cuda.memory._record_memory_history()"
        notices.append(Notice("no_history", text))
    else:
        held = history.held_after(history.peak)
        earlier = sum(block.size for block in held if block.born is None and block.stack == NO_STACK)
        if earlier > _EARLIER_SHARE * int(history.allocated[history.peak]):
            text = f"{plain_size(earlier)} were allocated before recording began: record from the start of the process"
            notices.append(Notice("allocated_before_recording", text))
    fragmentation = fragmentation_of(history.segments)
    growth = growth_of(history, snapshot.step_ends_us, snapshot.stacks)
    oom = out_of_memory_of(history, snapshot.stacks, growth, note)
    return MemoryReport(
        device,
        history.allocated_now,
        history.reserved_now,
        int(history.allocated[history.peak]),
        by_category,
        holders[:_MAX_HOLDERS],
        fragmentation,
        growth,
        oom,
        remedies_for(
            by_category, fragmentation, growth, oom, snapshot.settings, job, is_alone=not _shows_ranks(snapshot, device)
        ),
        history.timeline(),
        notices,
        private_pools_of(history.segments),
        job,
    )


def job_of(snapshot: MemorySnapshot, history: History, owners: Mapping[int, str]) -> JobKind:
    """Kind of job. Only training records owners, and optimizer steps before the events may be of an earlier job."""
    has_step = bool(owners or history.places_of(snapshot.step_ends_us))
    return JobKind.TRAINING if has_step else job_kind(snapshot.stacks)


_OF_RANKS = ("/torch/distributed/", "/parallel/distributed.py", "/deepspeed/", "/megatron/")
_OF_RANKS_CALLS = ("c10d::", "ncclComm")


def _shows_ranks(snapshot: MemorySnapshot, device: int) -> bool:
    """Whether a snapshot shows that the job has several ranks: its GPU is not the first, or its stacks are of some."""
    frames = (frame for stack in snapshot.stacks for frame in stack)
    return device > 0 or any(
        frame.function.startswith(_OF_RANKS_CALLS) or any(part in frame.file for part in _OF_RANKS) for frame in frames
    )


def reported_device(snapshot: MemorySnapshot, note: OutOfMemoryNote | None) -> tuple[int, list[Notice]]:
    """The GPU that the note names, else the one with the most reserved memory; a notice names the others."""
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
