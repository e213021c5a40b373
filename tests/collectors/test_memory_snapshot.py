"""Snapshots of any protocol and size are read alike; anything else is refused in one line."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors import memory_snapshot
from stepscope.collectors.memory_snapshot import informative_frames, read_memory_snapshot, read_out_of_memory_note
from stepscope.collectors.safe_pickle.loading import UnsafePickleError
from stepscope.core.documents.hang import StackFrame
from stepscope.core.documents.memory import (
    AllocatorAction,
    FailedRequest,
    MemoryBlock,
    MemorySnapshot,
    is_autograd_thread,
    is_python,
)
from stepscope.core.errors import DataError
from tests.collectors.fake_allocator import Allocator


def _allocator() -> Allocator:
    allocator = Allocator(settings="expandable_segments:True")
    allocator.segment(1000, 400)
    allocator.alloc(1000, 100, "forward")
    allocator.alloc(1200, 50, "engine")
    allocator.free(1200, completed=False)
    allocator.step_ends()
    allocator.fail(500, 7)
    return allocator


def _read(path: Path, content: bytes, whole_below_bytes: int = 1 << 26) -> MemorySnapshot:
    path.write_bytes(content)
    return read_memory_snapshot(path, whole_below_bytes=whole_below_bytes)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("whole_below_bytes", [0, 1 << 26])
def test_protocols_and_sizes(protocol: int, whole_below_bytes: int, tmp_path: Path) -> None:
    snapshot = _read(tmp_path / "a.pickle", _allocator().pickled(protocol), whole_below_bytes)
    (segment,) = snapshot.segments
    assert (segment.device, segment.address, segment.size) == (0, 1000, 400)
    assert segment.blocks == (
        MemoryBlock(1000, 100, True, False, segment.blocks[0].stack),
        MemoryBlock(1100, 100, False, False, 0),
        MemoryBlock(1200, 50, False, True, 0),
        MemoryBlock(1250, 150, False, False, 0),
    )
    assert [frame.function for frame in snapshot.stacks[segment.blocks[0].stack]] == ["_call_impl", "train"]
    events = snapshot.events[0]
    assert list(events.actions) == [
        AllocatorAction.SEGMENT_ALLOC,
        AllocatorAction.ALLOC,
        AllocatorAction.ALLOC,
        AllocatorAction.FREE_REQUESTED,
        AllocatorAction.OOM,
    ]
    assert list(events.sizes) == [400, 512, 512, 512, 500]  # torch notes what was asked for, and gives multiples
    assert list(events.addresses) == [1000, 1000, 1200, 1200, 7]
    assert snapshot.settings == "expandable_segments:True"
    assert len(snapshot.step_ends_us) == 1


def test_gzip_and_the_bare_list_of_segments(tmp_path: Path) -> None:
    whole = _read(tmp_path / "a.pickle", _allocator().pickled())
    assert _read(tmp_path / "a.pickle.gz", gzip.compress(_allocator().pickled())) == whole
    for whole_below_bytes in (0, 1 << 26):
        bare = _read(tmp_path / "b.pickle", pickle.dumps(_allocator().snapshot()["segments"]), whole_below_bytes)
        assert bare.segments[0].size == 400
        assert bare.events == {}


def test_blocks_without_an_address_follow_each_other_and_have_their_history(tmp_path: Path) -> None:
    """As torch 1.13 wrote them."""
    frames = [{"name": "f", "filename": "a.py", "line": 1}]
    blocks = [
        {"size": 100, "state": "active_allocated", "history": [{"frames": frames}]},
        {"size": 50, "state": "active_pending_free"},
    ]
    content = pickle.dumps([{"device": 1, "address": 10, "total_size": 150, "blocks": blocks}])
    (segment,) = _read(tmp_path / "a.pickle", content).segments
    assert [(block.address, block.size, block.is_awaited) for block in segment.blocks] == [
        (10, 100, False),
        (110, 50, True),
    ]
    assert segment.blocks[0].stack == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a complete pickle"),
        (b"\x1f\x8bnot gzip", "cannot be read"),
        (pickle.dumps({}), "is not a memory snapshot"),
        (pickle.dumps({"segments": 7}), "is not a memory snapshot"),
        (pickle.dumps({"segments": [{"address": 1}]}), "is not a memory snapshot"),
        (pickle.dumps({"segments": [], "device_traces": [[{}]]}), "is not a memory snapshot"),
        (
            pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": -1, "size": 1}]]}),
            "OverflowError",
        ),
    ],
)
@pytest.mark.parametrize("whole_below_bytes", [0, 1 << 26])
def test_what_is_no_snapshot_is_refused(content: bytes, said: str, whole_below_bytes: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said) as refused:
        _read(tmp_path / "a.pickle", content, whole_below_bytes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("whole_below_bytes", [0, 1 << 26])
def test_a_snapshot_that_would_run_something_is_refused(whole_below_bytes: int, tmp_path: Path) -> None:
    with pytest.raises(UnsafePickleError):
        _read(tmp_path / "a.pickle", pickle.dumps({"segments": [print]}), whole_below_bytes)


def test_the_note_beside_a_snapshot(tmp_path: Path) -> None:
    told: dict[str, Any] = {
        "device": 1,
        "requested_bytes": 5,
        "device_total_bytes": 100,
        "device_free_bytes": 7,
        "training_phase": "backward",
        "categories": {"optimizer": {"bytes": 9, "addresses": [10, 20]}, "other": {"bytes": 1}},
    }
    (tmp_path / "rank0-oom.json").write_text(json.dumps(told))
    note = read_out_of_memory_note(tmp_path / "rank0-oom.pickle")
    assert note is not None
    assert (note.device, note.requested_bytes, note.device_total_bytes, note.device_free_bytes) == (1, 5, 100, 7)
    assert (note.phase, note.owners) == ("backward", {10: "optimizer", 20: "optimizer"})
    assert read_out_of_memory_note(tmp_path / "rank0-oom.pickle.gz") == note


@pytest.mark.parametrize(
    "text", ["", "7", "[]", '{"categories": 7}', '{"categories": {"optimizer": {"addresses": ["a"]}}}']
)
def test_a_note_that_cannot_be_read_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    assert read_out_of_memory_note(tmp_path / "a.pickle") is None


def test_pipes_and_devices_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pickle")
    for path in (tmp_path / "a.pickle", Path("/dev/zero")):
        with pytest.raises(DataError, match="is not a file"):
            read_memory_snapshot(path)


def test_what_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_snapshot, "_MAX_UNPACKED_BYTES", 1 << 20)
    (tmp_path / "a.pickle.gz").write_bytes(gzip.compress(bytes(1 << 23)))
    with pytest.raises(DataError, match="unpacks to more than"):
        read_memory_snapshot(tmp_path / "a.pickle.gz")


def test_segments_that_share_their_blocks_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_snapshot, "_MAX_BLOCKS", 10_000)
    segment = {"address": 0, "total_size": 512, "blocks": [{"size": 1, "state": "inactive"}] * 2_000}
    (tmp_path / "a.pickle").write_bytes(pickle.dumps([segment] * 100))
    with pytest.raises(DataError, match="more than 10,000 blocks"):
        read_memory_snapshot(tmp_path / "a.pickle")


def test_segments_that_grow_are_known_also_where_the_variable_is_not_set(tmp_path: Path) -> None:
    told = {"segments": [], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": True}}
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(told))
    assert read_memory_snapshot(tmp_path / "a.pickle").settings == "expandable_segments:True"


@pytest.mark.parametrize("whole_below_bytes", [0, 1 << 26])
def test_pools_and_streams(whole_below_bytes: int, tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 1024)
    allocator.segment(4096, 1024, (0, 3), 5)
    allocator.fail(500, 7, pool_id=[0, 3])
    allocator.fail(500, 7)
    snapshot = _read(tmp_path / "a.pickle", allocator.pickled(), whole_below_bytes)
    assert [(segment.pool, segment.stream) for segment in snapshot.segments] == [((0, 0), 0), ((0, 3), 5)]
    assert snapshot.events[0].failed == {2: FailedRequest((0, 3), 0), 3: FailedRequest(None, 0)}


@pytest.mark.parametrize("pool", [7, (1,), (1, 2, 3), "ab", (1, "x")])
def test_a_pool_that_is_no_pair_of_numbers_is_refused(pool: Any, tmp_path: Path) -> None:
    segment = {"address": 0, "total_size": 512, "blocks": [], "segment_pool_id": pool}
    with pytest.raises(DataError, match="is not a memory snapshot"):
        _read(tmp_path / "a.pickle", pickle.dumps([segment]))


def test_python_frames_behind_many_c_frames_are_read(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 1024)
    allocator.alloc(0, 512, "forward, all")
    snapshot = _read(tmp_path / "a.pickle", allocator.pickled())
    assert [frame.function for frame in snapshot.stacks[-1]] == ["_call_impl", "train"]


_FRAMES = st.lists(
    st.builds(
        StackFrame,
        st.sampled_from(
            ["torch::unwind::unwind", "torch::autograd::Engine::thread_main", "_PyEval", "forward", "c10d::x"]
        ),
        st.sampled_from(["??", "", "a.cpp", "model.py", "<string>"]),
        st.integers(0, 3),
    ),
    max_size=120,
)


@given(_FRAMES)
def test_the_informative_frames_are_those_of_python_in_their_order(frames: list[StackFrame]) -> None:
    found = informative_frames(frames)
    python = [frame for frame in frames if is_python(frame)]
    kept = [frame for frame in found if is_python(frame)]
    assert kept == python[: len(kept)]
    assert len(kept) >= min(len(python), 46)
    assert len(found) <= 48
    assert any(map(is_autograd_thread, found)) == any(map(is_autograd_thread, frames)) or len(python) == len(frames)


def test_a_trace_is_named_with_the_command_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    with pytest.raises(DataError, match=r"is a trace of torch\.profiler.*stepscope analyze"):
        read_memory_snapshot(tmp_path / "trace.json")
