"""Reports and snapshots of the fake allocator."""

from __future__ import annotations

from pathlib import Path

from stepscope.analyzer.memory import explain_memory
from stepscope.collectors.memory_snapshot import read_snapshot
from stepscope.core.documents.memory import MemoryReport, MemorySnapshot
from tests.collectors.fake_allocator import Allocator

MIB, GIB = 1 << 20, 1 << 30


def snapshot_of(allocator: Allocator, folder: Path) -> MemorySnapshot:
    """The allocator's snapshot, through a file."""
    path = folder / "snapshot.pickle"
    path.write_bytes(allocator.pickled())
    return read_snapshot(path)


def report_of(allocator: Allocator, folder: Path) -> MemoryReport:
    """The report on it."""
    return explain_memory(snapshot_of(allocator, folder))
