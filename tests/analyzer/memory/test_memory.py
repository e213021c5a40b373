"""Peaks, holders and causes match jobs whose allocations are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.memory import explain_memory
from stepscope.analyzer.memory.categories import category_of
from stepscope.analyzer.memory.history import HeldBlock, history_of
from stepscope.collectors.memory_snapshot import read_memory_snapshot
from stepscope.core.documents.hang import StackFrame
from stepscope.core.documents.memory import MemoryCategory, MemoryReport, OomCause, OutOfMemoryNote
from tests.analyzer.memory.snapshots import MIB
from tests.collectors.fake_allocator import Allocator

_GRANULE = 512
_MODULE = "/lib/torch/nn/modules/module.py"
_MIB = 1 << 20
_GIB = 1 << 30


def _report(
    allocator: Allocator, tmp_path: Path, note: OutOfMemoryNote | None = None, newest: int = 10**6
) -> MemoryReport:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(allocator.pickled(newest=newest))
    return explain_memory(read_memory_snapshot(path), note)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 19), st.integers(1, 50)), max_size=60), st.integers(0, 80))
def test_the_books_are_reckoned_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, int, int]], newest: int
) -> None:
    allocator = Allocator()
    allocator.segment(0, 20 * 64 * _GRANULE)
    levels = [allocator.allocated]
    held: list[dict[int, tuple[int, str]]] = [dict(allocator.blocks)]
    for is_new, slot, size in steps:
        address, before = slot * 64 * _GRANULE, len(allocator.trace)
        if is_new and address not in allocator.blocks:
            allocator.alloc(address, size * _GRANULE, "forward")
        elif not is_new and address in allocator.blocks:
            allocator.free(address)
        levels += [allocator.allocated] * (len(allocator.trace) - before > 0)
        held += [dict(allocator.blocks)] * (len(allocator.trace) - before > 0)
    path = tmp_path_factory.getbasetemp() / "snapshot.pickle"
    path.write_bytes(allocator.pickled(newest=newest))
    history = history_of(read_memory_snapshot(path), 0)
    assert (history.allocated_now, history.reserved_now) == (allocator.allocated, allocator.reserved)
    assert history.allocated[-1] == allocator.allocated
    if newest > len(allocator.trace):
        assert history.allocated.max() == max(levels)
        at = levels.index(max(levels))
        assert {one.address: one.size for one in history.held_after(history.peak)} == {
            address: size for address, (size, _) in held[at].items()
        }
    assert sum(one.size for one in history.held_after(history.peak)) == history.allocated[history.peak]


def _job(*, layers: int = 4) -> Allocator:
    """Parameters, gradients and optimizer's state of some layers; forward, backward and step at their places."""
    allocator = Allocator()
    allocator.segment(0, 64 * _MIB)
    for layer in range(layers):
        allocator.alloc(layer * _MIB, _MIB, "init")
    for layer in range(layers):
        allocator.alloc((10 + layer) * _MIB, 2 * _MIB if layer == 0 else _MIB, "forward")
    for layer in range(layers):
        allocator.alloc((20 + layer) * _MIB, _MIB, "engine")
    for layer in range(layers):
        allocator.free((10 + layer) * _MIB)
    allocator.alloc(30 * _MIB, 3 * _MIB, "optimizer")
    allocator.alloc(40 * _MIB, _MIB // 2, "reduce")
    allocator.step_ends()
    return allocator


def test_the_peak_is_shared_out_by_category(tmp_path: Path) -> None:
    report = _report(_job(), tmp_path)
    assert report.peak_bytes == 13 * _MIB
    assert {category: num for category, num in report.by_category.items() if num} == {
        MemoryCategory.PARAMETERS: 4 * _MIB,
        MemoryCategory.ACTIVATIONS: 5 * _MIB,
        MemoryCategory.GRADIENTS: 4 * _MIB,
    }
    assert report.allocated_bytes == int(11.5 * _MIB)
    assert report.reserved_bytes == 64 * _MIB
    assert sum(holder.bytes for holder in report.at_peak) == report.peak_bytes
    assert report.at_peak[0].stack[0] == "_call_impl (/lib/torch/nn/modules/module.py:1)"


def test_what_is_known_of_owners_comes_before_stacks(tmp_path: Path) -> None:
    note = OutOfMemoryNote(0, None, None, None, None, {0: "optimizer"})
    report = _report(_job(), tmp_path, note)
    assert report.by_category[MemoryCategory.OPTIMIZER] == _MIB
    assert report.by_category[MemoryCategory.PARAMETERS] == 3 * _MIB


def test_communication_and_optimizer_after_the_peak_s_end(tmp_path: Path) -> None:
    allocator = _job()
    allocator.alloc(50 * _MIB, 8 * _MIB, "optimizer")
    report = _report(allocator, tmp_path)
    assert report.by_category[MemoryCategory.COMMUNICATION] == _MIB // 2
    assert report.by_category[MemoryCategory.OPTIMIZER] == 11 * _MIB


def test_without_events_what_is_held_now_is_told_and_that_they_are_missing(tmp_path: Path) -> None:
    report = _report(_job(), tmp_path, newest=0)
    assert report.peak_bytes == report.allocated_bytes
    assert [notice.code for notice in report.warnings] == ["no_history"]
    assert report.timeline == []


def test_fragmentation_is_of_pieces_no_tensor_uses(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 10 * _MIB)
    allocator.segment(100 * _MIB, 5 * _MIB)
    allocator.alloc(4 * _MIB, _MIB)
    found = _report(allocator, tmp_path).fragmentation
    assert (found.inactive_bytes, found.largest_bytes, found.in_used_segments_bytes) == (14 * _MIB, 5 * _MIB, 9 * _MIB)
    assert found.ratio == pytest.approx(1 - 5 / 14)


def _leaking(kept: int, num_steps: int = 8) -> Allocator:
    allocator = _job()
    place = 1000
    for step in range(num_steps):
        for number in range(3):
            allocator.alloc((2000 + number) * _MIB, 5 * _MIB, "forward")
            allocator.free((2000 + number) * _MIB)
        if kept:
            allocator.segment(place * _MIB, kept)
            allocator.alloc(place * _MIB, kept, "own")
            place += 10 + step
        allocator.step_ends()
    return allocator


def test_what_each_step_keeps_is_found_with_its_place(tmp_path: Path) -> None:
    growth = _report(_leaking(3 * _MIB), tmp_path).growth
    assert growth is not None
    assert (growth.bytes_per_step, growth.stack, growth.grown_bytes) == (3 * _MIB, ["keep (train.py:20)"], 24 * _MIB)


def test_steps_that_keep_nothing_do_not_grow(tmp_path: Path) -> None:
    assert _report(_leaking(0), tmp_path).growth is None


def test_a_leak_ends_the_job(tmp_path: Path) -> None:
    """pytorch#140792: the loss is kept with its graph."""
    allocator = _leaking(3 * _MIB)
    allocator.fail(4 * _MIB, 10 * _GIB, "optimizer")
    report = _report(allocator, tmp_path)
    assert report.oom is not None
    assert (report.oom.cause, report.oom.phase, report.oom.requested_bytes) == (OomCause.LEAK, "optimizer", 4 * _MIB)
    assert report.remedies[0].change.startswith("do not keep what is allocated at keep (train.py:20)")
    assert report.remedies[0].saved_bytes == 24 * _MIB


def test_enough_is_free_but_in_pieces(tmp_path: Path) -> None:
    """pytorch#35901: a segment of 11.6 GB is split by an active block of 0.5 GB."""
    allocator = Allocator()
    allocator.segment(0, 11_643_387_904)
    allocator.alloc(6_000_000_000, 499_214_336, "forward")
    allocator.fail(8_000_000_000, 1 * _GIB, "forward")
    report = _report(allocator, tmp_path)
    assert report.oom is not None
    assert (report.oom.cause, report.oom.phase) == (OomCause.FRAGMENTATION, "forward")
    assert report.remedies[0].change.startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert report.remedies[0].saved_bytes == 11_643_387_904 - 499_214_336


def test_what_joins_pieces_comes_before_larger_savings(tmp_path: Path) -> None:
    """At the peak there were more activations than there are pieces."""
    allocator = Allocator()
    for column in range(10):
        allocator.segment(column * 100 * _MIB, 96 * _MIB)
        allocator.alloc(column * 100 * _MIB, 96 * _MIB, "forward")
    for column in range(10):
        allocator.free(column * 100 * _MIB)
        allocator.alloc(column * 100 * _MIB, 56 * _MIB, "forward")
    allocator.fail(200 * _MIB, 0, "forward")
    report = _report(allocator, tmp_path)
    assert report.oom is not None
    assert report.oom.cause is OomCause.FRAGMENTATION
    first, second, *_ = report.remedies
    assert first.change.startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert (first.saved_bytes, second.saved_bytes) == (400 * _MIB, 720 * _MIB)


def test_what_is_needed_at_once_is_more_than_there_is(tmp_path: Path) -> None:
    """torchtune#2071: 22.41 GiB allocated, 206 MiB more reserved, 210 MiB free, asked for 1.96 GiB."""
    allocator = Allocator()
    allocated, reserved = int(22.41 * _GIB), int(22.41 * _GIB) + 206 * _MIB
    allocator.segment(0, reserved)
    allocator.alloc(0, allocated, "forward")
    allocator.fail(int(1.96 * _GIB), 210 * _MIB, "backward")
    report = _report(allocator, tmp_path)
    assert report.oom is not None
    assert (report.oom.cause, report.oom.phase) == (OomCause.CAPACITY, "backward")
    assert report.oom.evidence == [
        "asked for 1.96 GiB: 22.41 GiB allocated, 206.00 MiB more reserved, 210.00 MiB free on the GPU"
    ]


def test_somebody_else_has_the_memory(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 10 * _GIB)
    allocator.alloc(0, 9 * _GIB, "forward")
    allocator.fail(4 * _GIB, 1 * _GIB)
    note = OutOfMemoryNote(0, 4 * _GIB, 80 * _GIB, 1 * _GIB, "forward")
    report = _report(allocator, tmp_path, note)
    assert report.oom is not None
    assert (report.oom.cause, report.oom.non_torch_bytes) == (OomCause.OTHER_PROCESS, 69 * _GIB)
    assert report.remedies[0].saved_bytes == 69 * _GIB


def test_a_failure_that_only_the_note_tells_of(tmp_path: Path) -> None:
    note = OutOfMemoryNote(0, 4 * _GIB, 80 * _GIB, 1 * _GIB, "backward")
    allocator = Allocator()
    allocator.segment(0, 78 * _GIB)
    allocator.alloc(0, 77 * _GIB, "forward")
    report = _report(allocator, tmp_path, note, newest=0)
    assert report.oom is not None
    assert (report.oom.cause, report.oom.phase, report.oom.allocated_bytes) == (
        OomCause.CAPACITY,
        "backward",
        77 * _GIB,
    )


def test_numbers_at_the_failure_are_not_those_of_the_end(tmp_path: Path) -> None:
    """What the failed call had allocated is freed while the error goes up."""
    allocator = Allocator()
    allocator.segment(0, 64 * _MIB)
    allocator.alloc(0, 32 * _MIB, "optimizer")
    allocator.fail(40 * _MIB, 0, "optimizer")
    allocator.free(0)
    report = _report(allocator, tmp_path)
    assert report.oom is not None
    assert (report.oom.allocated_bytes, report.allocated_bytes) == (32 * _MIB, 0)


def test_the_timeline_keeps_peaks_however_long_it_is(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 64 * _MIB)
    for number in range(3000):
        size = 60 * _MIB if number == 1234 else _MIB
        allocator.alloc(0, size)
        allocator.free(0)
    report = _report(allocator, tmp_path)
    assert len(report.timeline) <= 400
    assert max(allocated for _, allocated, _ in report.timeline) == 60 * _MIB
    assert [time for time, _, _ in report.timeline] == sorted(time for time, _, _ in report.timeline)


def test_the_gpu_with_most_memory_is_reported_and_others_are_named(tmp_path: Path) -> None:
    allocator = Allocator(device=2)
    allocator.segment(0, _MIB)
    report = _report(allocator, tmp_path)
    assert report.device == 2


_LAYER = StackFrame("forward", "/lib/torch/nn/modules/linear.py", 1), StackFrame("_call_impl", _MODULE, 2)
_USER = StackFrame("train", "train.py", 9)


@pytest.mark.parametrize(
    ("frames", "category"),
    [
        # what a layer allocates within FSDP's and DDP's own forward
        (
            (*_LAYER, StackFrame("forward", "/lib/torch/distributed/fsdp/_fully_shard.py", 3)),
            "activations",
        ),
        ((*_LAYER, StackFrame("forward", "/lib/torch/nn/parallel/distributed.py", 3)), "activations"),
        # and what these allocate themselves
        ((StackFrame("_alloc_storage", "/lib/torch/distributed/fsdp/_flat_param.py", 3), *_LAYER), "communication"),
        ((StackFrame("_build", "/lib/torch/nn/parallel/distributed.py", 3), _USER), "communication"),
        # a layer's operation on sharded tensors
        ((StackFrame("dispatch", "/lib/torch/distributed/tensor/_dispatch.py", 3), *_LAYER), "activations"),
        # recomputed within the backward pass
        ((*_LAYER, StackFrame("backward", "/lib/torch/utils/checkpoint.py", 3)), "activations"),
        # a kernel's own backward, which is not torch's
        ((StackFrame("backward", "/lib/flash_attn/interface.py", 3), _USER), "gradients"),
        ((StackFrame("clip_grad_norm_", "/lib/torch/nn/utils/clip_grad.py", 3), _USER), "temporary"),
        ((StackFrame("unscale_", "/lib/torch/amp/grad_scaler.py", 3), _USER), "temporary"),
        ((StackFrame("_init_state", "/lib/megatron/core/optimizer/optimizer.py", 3), _USER), "optimizer"),
        ((_USER,), "activations"),
        # a loss that is called without a module, also by a backward pass of one's own; an initialisation
        ((StackFrame("cross_entropy", "/lib/torch/nn/functional.py", 3), _USER), "activations"),
        (
            (StackFrame("gelu", "/lib/torch/nn/functional.py", 3), StackFrame("backward", "mine.py", 3), _USER),
            "gradients",
        ),
        ((StackFrame("normal_", "/lib/torch/nn/init.py", 3), _USER), "temporary"),
    ],
)
def test_the_innermost_call_that_tells_decides(frames: tuple[StackFrame, ...], category: str) -> None:
    assert category_of(HeldBlock(0, 1, 1, 0), [(), frames], {}) == category


def test_what_does_not_outlive_the_step_is_temporary(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 64 * _MIB)
    allocator.alloc(0, _MIB, "engine")
    allocator.alloc(8 * _MIB, 2 * _MIB, "engine")
    allocator.alloc(16 * _MIB, 4 * _MIB, "optimizer")
    allocator.free(8 * _MIB)
    allocator.free(16 * _MIB)
    allocator.step_ends()
    allocator.free(0)
    by_category = _report(allocator, tmp_path).by_category
    assert (by_category[MemoryCategory.GRADIENTS], by_category[MemoryCategory.TEMPORARY]) == (_MIB, 6 * _MIB)


def test_longer_sequences_are_no_leak(tmp_path: Path) -> None:
    """Each step's batch is larger than the one before, which is freed."""
    allocator = _job()
    allocator.segment(1000 * _MIB, 64 * _MIB)
    allocator.alloc(1000 * _MIB, _MIB, "own")
    for step in range(10):
        allocator.free((1000 + 20 * (step % 2)) * _MIB)
        allocator.alloc((1000 + 20 * ((step + 1) % 2)) * _MIB, (step + 2) * _MIB, "own")
        allocator.step_ends()
    assert _report(allocator, tmp_path).growth is None


def test_pieces_and_what_the_gpu_has_free_would_do_together(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 4 * _GIB)
    allocator.alloc(_GIB, _GIB, "forward")
    allocator.fail(3 * _GIB + 512 * _MIB, _GIB)
    report = _report(allocator, tmp_path)
    assert report.oom is not None
    assert report.oom.cause == OomCause.FRAGMENTATION


def test_a_limit_of_torch_s_is_said(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 8 * _GIB)
    allocator.alloc(0, 8 * _GIB, "forward")
    allocator.fail(16 * _MIB, 70 * _GIB)
    report = _report(allocator, tmp_path)
    assert report.oom is not None
    assert report.oom.cause == OomCause.CAPACITY
    assert "a limit of torch's ended it" in report.oom.evidence[1]


def test_a_block_whose_rest_was_too_small_to_split_counts_whole(tmp_path: Path) -> None:
    """Asked for 700 bytes; the block is of 2,048."""
    allocator = Allocator()
    allocator.segment(0, 4096)
    allocator.alloc(0, 2048, "own")
    allocator.trace[-1]["size"] = 700
    report = _report(allocator, tmp_path)
    assert (report.peak_bytes, report.timeline[0][1]) == (2048, 0)


def test_owners_are_of_the_blocks_that_were_there_when_they_were_noted(tmp_path: Path) -> None:
    """At the peak another block lay where a gradient lies at the end."""
    allocator = Allocator()
    allocator.segment(0, 64 * _MIB)
    allocator.alloc(0, 8 * _MIB, "forward")
    allocator.free(0)
    allocator.alloc(0, _MIB, "engine")
    allocator.fail(64 * _MIB, 0)
    by_category = _report(allocator, tmp_path, OutOfMemoryNote(0, None, None, None, None, {0: "gradients"})).by_category
    assert (by_category[MemoryCategory.ACTIVATIONS], by_category[MemoryCategory.GRADIENTS]) == (8 * _MIB, 0)


def test_memory_from_before_the_recording_is_said(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 64 * MIB)
    allocator.alloc(0, 48 * MIB, "engine")  # without frames, as all that was allocated before
    allocator.alloc(48 * MIB, 16 * MIB)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(allocator.pickled(newest=1))
    report = explain_memory(read_memory_snapshot(path))
    assert [notice.message for notice in report.warnings] == [
        "48.0 MiB were allocated before recording began: record from the start of the process"
    ]
