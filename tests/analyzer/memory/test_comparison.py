"""Comparison of two snapshots: what holds more or less at the end and at the peak."""

from __future__ import annotations

from pathlib import Path

from stepscope.analyzer.memory import NamedSnapshot, compare_memory
from stepscope.core.documents.memory import Compared, ComparedHolder, MemoryCategory
from tests.analyzer.memory.snapshots import MIB, snapshot_of
from tests.collectors.fake_allocator import Allocator


def _allocator(kept: int = 0, *, offset: int = 0) -> Allocator:
    """Two tensors of a forward pass, one freed, `kept` tensors of `keep`, and a graph's pool."""
    allocator = Allocator()
    allocator.segment(offset, 64 * MIB)
    allocator.segment(offset + 100 * MIB, 8 * MIB, (1, 0))
    allocator.alloc(offset, 4 * MIB, "forward")
    allocator.alloc(offset + 8 * MIB, 16 * MIB, "forward")
    allocator.free(offset + 8 * MIB)
    for number in range(kept):
        allocator.alloc(offset + (30 + number) * MIB, MIB, "own")
    return allocator


def test_two_times_of_a_process(tmp_path: Path) -> None:
    first, second = snapshot_of(_allocator(1), tmp_path), snapshot_of(_allocator(6), tmp_path)
    found = compare_memory(NamedSnapshot("a", first), NamedSnapshot("b", second))
    assert (found.files, found.devices) == (("a", "b"), (0, 0))
    assert (found.allocated, found.reserved) == (Compared(5 * MIB, 10 * MIB), Compared(72 * MIB, 72 * MIB))
    assert (found.inactive, found.private_pools) == (Compared(67 * MIB, 62 * MIB), Compared(8 * MIB, 8 * MIB))
    assert found.peak == Compared(20 * MIB, 20 * MIB)
    assert found.holders == [
        ComparedHolder(
            MemoryCategory.ACTIVATIONS, "keep (train.py:20)", Compared(MIB, 6 * MIB), Compared(0, 0), Compared(1, 6)
        )
    ]
    assert found.allocated.change == 5 * MIB


def test_two_ranks_whose_addresses_differ(tmp_path: Path) -> None:
    other = _allocator(2, offset=1 << 40)
    other.alloc((1 << 40) + 40 * MIB, 2 * MIB, "optimizer")
    found = compare_memory(
        NamedSnapshot("rank0", snapshot_of(_allocator(2), tmp_path)),
        NamedSnapshot("rank1", snapshot_of(other, tmp_path)),
    )
    assert [(holder.category, holder.end, holder.peak) for holder in found.holders] == [
        (MemoryCategory.OPTIMIZER, Compared(0, 2 * MIB), Compared(0, 0))
    ]


def test_a_snapshot_and_itself_differ_in_nothing(tmp_path: Path) -> None:
    one = NamedSnapshot("a", snapshot_of(_allocator(3), tmp_path))
    found = compare_memory(one, one)
    assert (found.holders, found.allocated.change) == ([], 0)


def test_what_differs_at_the_peak_alone_is_named(tmp_path: Path) -> None:
    other = _allocator()
    other.alloc(8 * MIB, 32 * MIB, "forward")
    other.free(8 * MIB)
    found = compare_memory(
        NamedSnapshot("a", snapshot_of(_allocator(), tmp_path)), NamedSnapshot("b", snapshot_of(other, tmp_path))
    )
    assert [(holder.end.change, holder.peak.change) for holder in found.holders] == [(0, 16 * MIB)]
