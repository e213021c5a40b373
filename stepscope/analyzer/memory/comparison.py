"""Comparison of two memory snapshots: of two times of a process, or of two ranks.

Blocks are compared by category and the innermost call outside torch: the same code allocates alike in all ranks, and
addresses say nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.analyzer.memory.history import History, history_of
from stepscope.analyzer.memory.holders import holders_after
from stepscope.analyzer.memory.pools import fragmentation_of
from stepscope.analyzer.memory.report import job_of, reported_device
from stepscope.core.documents.memory import (
    Compared,
    ComparedHolder,
    Fragmentation,
    Holder,
    MemoryCategory,
    MemoryComparison,
    MemorySnapshot,
    OutOfMemoryNote,
    own_call,
)
from stepscope.core.vocabulary import Notice


@dataclass(frozen=True, slots=True)
class NamedSnapshot:
    """A snapshot with its file and the note beside it."""

    file: str
    snapshot: MemorySnapshot
    note: OutOfMemoryNote | None = None


def compare_memory(first: NamedSnapshot, second: NamedSnapshot) -> MemoryComparison:
    """Compare the memory of the GPU that each snapshot has most of."""
    sides = _Side(first), _Side(second)
    histories = [side.history for side in sides]
    end, end_counts = _joined([side.end for side in sides])
    peak, _ = _joined([side.peak for side in sides])
    holders = [
        ComparedHolder(*key, end.get(key, _NONE), peak.get(key, _NONE), end_counts.get(key, _NONE))
        for key in {**end, **peak}
    ]
    differing = [holder for holder in holders if _largest_change(holder)]
    return MemoryComparison(
        (first.file, second.file),
        (histories[0].device, histories[1].device),
        _compared([history.allocated_now for history in histories]),
        _compared([history.reserved_now for history in histories]),
        _compared([side.fragmentation.inactive_bytes for side in sides]),
        _compared([side.fragmentation.private_pools_bytes for side in sides]),
        _compared([int(history.allocated[history.peak]) for history in histories]),
        sorted(differing, key=lambda holder: (-_largest_change(holder), holder.category, holder.place)),
        [notice for side in sides for notice in side.notices],
    )


class _Side:
    """One of the two: its holders at the end and at its peak."""

    def __init__(self, named: NamedSnapshot) -> None:
        device, notices = reported_device(named.snapshot, named.note)
        owners = named.note.owners if named.note is not None else {}
        self.history: History = history_of(named.snapshot, device)
        job = job_of(named.snapshot, self.history, owners)
        self.fragmentation: Fragmentation = fragmentation_of(self.history.segments)
        self.notices = [Notice(notice.code, f"{named.file}: {notice.message}") for notice in notices]
        num_events = len(self.history.events.actions)
        self.end: list[Holder] = holders_after(num_events, self.history, named.snapshot, owners, job)
        self.peak: list[Holder] = holders_after(self.history.peak, self.history, named.snapshot, owners, job)


_Key = tuple[MemoryCategory, str]
_NONE = Compared(0, 0)


def _joined(sides: Sequence[Sequence[Holder]]) -> tuple[dict[_Key, Compared], dict[_Key, Compared]]:
    """Bytes and counts of both sides' holders, by category and place."""
    sizes: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    counts: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    for place, holders in enumerate(sides):
        for holder in holders:
            key = holder.category, own_call(holder.stack)
            sizes[key][place] += holder.bytes
            counts[key][place] += holder.count
    return {key: _compared(pair) for key, pair in sizes.items()}, {key: _compared(pair) for key, pair in counts.items()}


def _compared(pair: Sequence[int]) -> Compared:
    return Compared(pair[0], pair[1])


def _largest_change(holder: ComparedHolder) -> int:
    return max(abs(holder.end.change), abs(holder.peak.change))
