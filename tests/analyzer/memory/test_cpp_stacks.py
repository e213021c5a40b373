"""Stacks with C++ frames (stacks="all", torch's default): the same categories and places as with Python's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.documents.memory import MemoryCategory, own_call
from tests.analyzer.memory.snapshots import MIB, report_of
from tests.collectors.fake_allocator import Allocator


@pytest.mark.parametrize(
    ("stack", "category", "place"),
    [
        ("forward, all", MemoryCategory.ACTIVATIONS, "train (train.py:9)"),
        ("engine, all", MemoryCategory.GRADIENTS, "torch::autograd::generated::MmBackward0::apply"),
        ("hook, all", MemoryCategory.GRADIENTS, "on_gradient (model.py:3)"),
        ("recompute, all", MemoryCategory.ACTIVATIONS, "recompute (model.py:4)"),
        ("reducer, all", MemoryCategory.COMMUNICATION, "c10d::Reducer::initialize_buckets"),
        ("workspace, all", MemoryCategory.OTHER, "train (train.py:9)"),
        ("other thread, all", MemoryCategory.OTHER, "mine::Cache::grow (/usr/lib/libmine.so:0)"),
    ],
)
def test_the_first_python_frame_and_autograd_s_thread(
    stack: str, category: MemoryCategory, place: str, tmp_path: Path
) -> None:
    allocator = Allocator()
    allocator.segment(0, 64 * MIB)
    allocator.alloc(0, MIB, stack)
    allocator.alloc(8 * MIB, MIB // 2, "backward")
    holder, *_ = report_of(allocator, tmp_path).at_peak
    assert (holder.category, own_call(holder.stack)) == (category, place)


def test_a_failure_on_autograd_s_thread_is_in_the_backward_pass(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 64 * MIB)
    allocator.fail(80 * MIB, 0, "engine, all")
    oom = report_of(allocator, tmp_path).oom
    assert oom is not None
    assert oom.phase == "backward"
