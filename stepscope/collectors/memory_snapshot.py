"""CUDA memory snapshots of PyTorch (`torch.cuda.memory._dump_snapshot`), and the notes that training writes.

Small snapshots are unpickled at once, large ones streamed, so that memory stays below the file's size. Supported:
torch 1.13 to 2.14 as a pickle of any protocol, also gzipped, and the bare list of segments of
torch.cuda.memory_snapshot(). Blocks without an address follow each other. The notes are memory/rank{r}-oom.json and
memory/step{n}/rank{r}.json.
"""

from __future__ import annotations

import gzip
import json
import mmap
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import dropwhile
from pathlib import Path
from typing import IO, Any

from stepscope.collectors.inputs import malformed_as_data_error, open_input
from stepscope.collectors.safe_pickle.loading import Content, load_plain
from stepscope.collectors.safe_pickle.streaming import KeyPath, stream_plain
from stepscope.core.documents import memory
from stepscope.core.documents.hang import StackFrame
from stepscope.core.errors import DataError

WHOLE_BELOW_BYTES = 64 << 20
"""Smaller pickles are loaded at once by Python's unpickler, which takes up to ten times their size."""
_MAX_FRAMES = 48
_LOOKED_AT_BYTES = 1 << 16
_MAX_UNPACKED_BYTES, _MAX_COMPRESSION = 1 << 28, 100
"""Of a gzipped one: recorded snapshots shrink to a twentieth, files made to fill a disk to a thousandth."""
_ACTIONS = {
    "alloc": memory.AllocatorAction.ALLOC,
    "free": memory.AllocatorAction.FREE_REQUESTED,
    "free_requested": memory.AllocatorAction.FREE_REQUESTED,
    "free_completed": memory.AllocatorAction.FREE_COMPLETED,
    "segment_alloc": memory.AllocatorAction.SEGMENT_ALLOC,
    "segment_free": memory.AllocatorAction.SEGMENT_FREE,
    "segment_map": memory.AllocatorAction.SEGMENT_MAP,
    "segment_unmap": memory.AllocatorAction.SEGMENT_UNMAP,
    "oom": memory.AllocatorAction.OOM,
}
_BLOCK_ACTIONS = (
    memory.AllocatorAction.ALLOC,
    memory.AllocatorAction.FREE_REQUESTED,
    memory.AllocatorAction.FREE_COMPLETED,
)
_EXPANDABLE = "expandable_segments:True"
_GRANULE_BYTES = 512
"""torch's c10/cuda/CUDACachingAllocator.h, kMinBlockSize."""
_MAX_BLOCKS = 1 << 24
_STEP = "Optimizer.step#"
_WHAT_NEXT = "give a file of torch.cuda.memory._dump_snapshot()"


def read_memory_snapshot(path: Path, *, whole_below_bytes: int = WHOLE_BELOW_BYTES) -> memory.MemorySnapshot:
    """Read a CUDA memory snapshot, also a gzipped one, into columns; one below `whole_below_bytes` is loaded at once.

    Raises:
        UnsafePickleError: it would do more than hold data.
        DataError: it is not a snapshot.
    """
    where = str(path)
    builder = _SnapshotBuilder(where)

    def take(path: KeyPath, items: list[Any]) -> bool:
        with _malformed_as_data_error(where):
            return builder.take(path, items)

    try:
        with _open_pickle(path, whole_below_bytes) as content:
            if len(content) < whole_below_bytes:
                _refuse_trace(bytes(content[:_LOOKED_AT_BYTES]), where)
                document = load_plain(bytes(content), where=where)
            else:
                _refuse_trace(bytes(content[:_LOOKED_AT_BYTES]), where)
                document = stream_plain(content, take, where=where)
    except (EOFError, zlib.error) as error:
        raise DataError(f"cannot be read ({error})", where=where, what_next="check the file") from None
    with _malformed_as_data_error(where):
        return builder.finish(document)


def _malformed_as_data_error(where: str) -> AbstractContextManager[None]:
    return malformed_as_data_error("is not a memory snapshot of torch", where=where, what_next=_WHAT_NEXT)


def _refuse_trace(beginning: bytes, where: str) -> None:
    if beginning.lstrip()[:1] in (b"{", b"[") and b'"traceEvents"' in beginning:
        what_next = f"run: stepscope analyze {where}"
        raise DataError("is a trace of torch.profiler, not a memory snapshot", where=where, what_next=what_next)


@contextmanager
def _open_pickle(path: Path, whole_below_bytes: int) -> Iterator[Content]:
    """The pickle, mapped where it is large; a gzipped one is unpacked into a temporary file first."""
    with open_input(path, what_next=_WHAT_NEXT) as file:
        if file.read(2) != b"\x1f\x8b":
            with _mapped(file, whole_below_bytes) as content:
                yield content
            return
        max_bytes = _MAX_UNPACKED_BYTES + _MAX_COMPRESSION * file.seek(0, 2)
        file.seek(0)
        with gzip.open(file) as packed, tempfile.TemporaryFile() as unpacked:
            while part := packed.read(1 << 20):
                if unpacked.tell() > max_bytes:
                    raise DataError(f"unpacks to more than {max_bytes:,} bytes", where=str(path), what_next=_WHAT_NEXT)
                unpacked.write(part)
            unpacked.flush()
            with _mapped(unpacked, 0) as content:
                yield content


@contextmanager
def _mapped(file: IO[bytes], whole_below_bytes: int) -> Iterator[Content]:
    """A small file is read: it may be rewritten meanwhile, and a mapped file that shrinks ends the process."""
    if file.seek(0, 2) < max(whole_below_bytes, 1):
        file.seek(0)
        yield file.read(whole_below_bytes)
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


class _SnapshotBuilder:
    """Builds a `MemorySnapshot` from its parts in any order."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._num_blocks = 0
        self._snapshot = memory.MemorySnapshot()
        self._stacks: dict[tuple[StackFrame, ...], int] = {(): memory.NO_STACK}
        self._known: dict[tuple[StackFrame, ...], int] = {}
        self._frames: dict[tuple[str, str, int], StackFrame] = {}

    def take(self, path: KeyPath, items: list[Any]) -> bool:
        """Add items of one of the long lists; False where the list is another, to be kept."""
        match path:
            case ("segments",) | () if all(isinstance(item, dict) and "blocks" in item for item in items):
                for item in items:
                    self._segment(item)
            case ("device_traces", int(device)):
                for item in items:
                    self._event(device, item)
            case _:
                return False
        return True

    def finish(self, document: Any) -> memory.MemorySnapshot:
        """Add all that was not taken before; a document of another kind raises one of Python's own errors."""
        if isinstance(document, list):
            document = {"segments": document}
        for item in document["segments"]:
            self._segment(item)
        for device, trace in enumerate(document.get("device_traces") or ()):
            for item in trace:
                self._event(device, item)
        allocator = document.get("allocator_settings") or {}
        settings = str(allocator.get("PYTORCH_CUDA_ALLOC_CONF") or allocator.get("PYTORCH_ALLOC_CONF") or "")
        if allocator.get("expandable_segments") is True and _EXPANDABLE not in settings:  # set while it ran
            settings = f"{settings},{_EXPANDABLE}".lstrip(",")
        ends = sorted(
            int(note["time_us"])
            for note in document.get("external_annotations") or ()
            if note.get("stage") == "END" and str(note.get("name", "")).startswith(_STEP)
        )
        made = self._snapshot
        return memory.MemorySnapshot(made.segments, made.events, list(self._stacks), settings, ends)

    def _segment(self, segment: dict[str, Any]) -> None:
        address = int(segment["address"])
        blocks, block_address = [], address
        self._num_blocks += len(segment["blocks"])
        if self._num_blocks > _MAX_BLOCKS:  # many segments may refer to the same list
            raise DataError(f"has more than {_MAX_BLOCKS:,} blocks", where=self._where, what_next=_WHAT_NEXT)
        for block in segment["blocks"]:
            block_address = int(block.get("address", block_address))
            size, state = int(block["size"]), block["state"]
            frames = block.get("frames")
            if frames is None and block.get("history"):
                frames = block["history"][0].get("frames")
            blocks.append(
                memory.MemoryBlock(
                    block_address, size, state == "active_allocated", state in _AWAITING_FREE, self._stack(frames)
                )
            )
            block_address += size
        self._snapshot.segments.append(
            memory.MemorySegment(
                int(segment.get("device", 0)),
                address,
                int(segment["total_size"]),
                bool(segment.get("is_expandable")),
                tuple(blocks),
                _pool(segment.get("segment_pool_id")) or memory.SHARED_POOL,
                int(segment.get("stream") or 0),
            )
        )

    def _event(self, device: int, event: dict[str, Any]) -> None:
        action = _ACTIONS.get(event["action"], memory.AllocatorAction.OTHER)
        if action is memory.AllocatorAction.OTHER:
            return
        events = self._snapshot.events.setdefault(device, memory.AllocatorEvents())
        if action is memory.AllocatorAction.OOM:
            failed = memory.FailedRequest(_pool(event.get("pool_id")), _int_or_none(event.get("stream")))
            events.failed[len(events.actions)] = failed
        events.actions.append(action)
        events.addresses.append(int(event["device_free"] if action is memory.AllocatorAction.OOM else event["addr"]))
        size = int(event["size"])
        if action in _BLOCK_ACTIONS:  # as requested; what is allocated is a multiple
            size += -size % _GRANULE_BYTES
        events.sizes.append(size)
        events.times_us.append(int(event.get("time_us") or 0))
        events.stacks.append(self._stack(event.get("frames")))

    def _stack(self, raw_frames: Any) -> int:
        if not raw_frames:
            return memory.NO_STACK
        frames = tuple(self._frame(frame) for frame in raw_frames[:_MAX_RAW_FRAMES])
        stack = self._known.get(frames)
        if stack is None:
            stack = self._known[frames] = self._stacks.setdefault(informative_frames(frames), len(self._stacks))
        return stack

    def _frame(self, raw: dict[str, Any]) -> StackFrame:
        key = str(raw["name"]), str(raw["filename"]), int(raw["line"])
        frame = self._frames.get(key)
        if frame is None:
            frame = StackFrame(*key)
            if not memory.is_python(frame):
                frame = StackFrame(_ARGUMENTS.sub("", key[0]), *key[1:])
            self._frames[key] = frame
        return frame


_MAX_RAW_FRAMES = 1024
_ARGUMENTS = re.compile(r"\((?!anonymous namespace\)).*", re.DOTALL)
"""Of a C++ function."""
_RECORDING = (
    *("torch::unwind::", "torch::CapturedTraceback::", "torch::cuda::(anonymous namespace)::gather"),
    *("c10::cuda::CUDACachingAllocator::", "c10::hip::HIPCachingAllocator::"),
)


def informative_frames(frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """Frames of a stack that say who allocates: those of Python, else those of C++ from the node of the backward pass.

    With stacks="all", torch's default, C++ frames come first and between those of Python. What no Python frame tells
    stays as the outermost: a frame of autograd's thread, and one of a library that allocates a workspace.
    """
    kept = [frame for frame in frames if memory.is_python(frame)]
    if len(kept) == len(frames):
        return tuple(frames[:_MAX_FRAMES])
    marks = [next(filter(mark, frames), None) for mark in (memory.is_autograd_thread, memory.is_workspace)]
    if not kept:
        kept = [frame for frame in frames if not frame.function.startswith(_RECORDING)]
        kept = list(dropwhile(lambda frame: not _is_node(frame), kept)) or kept
    del kept[_MAX_FRAMES - len(marks) :]
    return (*kept, *(mark for mark in marks if mark is not None and mark not in kept))


def _is_node(frame: StackFrame) -> bool:
    """Whether a function is of a node of the backward pass, or of torch's collectives: those that it calls say less."""
    is_apply = frame.function.startswith("torch::autograd::") and frame.function.endswith("::apply")
    return is_apply or frame.function.startswith("c10d::")


def _pool(value: Any) -> memory.PoolId | None:
    """The pair of numbers that identifies a pool; None where the snapshot does not say."""
    if value is None:
        return None
    first, second = value
    return int(first), int(second)


_AWAITING_FREE = frozenset(["active_awaiting_free", "active_pending_free"])
"""The state's name now, and in torch up to 2.0."""


_MAX_NOTE_BYTES = 1 << 26
_NOTE_CATEGORIES = ("parameters", "gradients", "optimizer")


def read_out_of_memory_note(snapshot: Path) -> memory.OutOfMemoryNote | None:
    """The note of the same name as a memory snapshot; None without one, or where it cannot be read."""
    unpacked = snapshot.with_suffix("") if snapshot.suffix == ".gz" else snapshot
    path = unpacked.with_suffix(".json")
    try:
        if not path.is_file() or path.stat().st_size > _MAX_NOTE_BYTES:
            return None
        note = json.loads(path.read_bytes())
        return memory.OutOfMemoryNote(
            _int_or_none(note.get("device")),
            _int_or_none(note.get("requested_bytes")),
            _int_or_none(note.get("device_total_bytes")),
            _int_or_none(note.get("device_free_bytes")),
            note.get("training_phase"),
            {
                int(address): category
                for category in _NOTE_CATEGORIES
                for address in ((note.get("categories") or {}).get(category) or {}).get("addresses") or ()
            },
            _int_or_none(note.get("time_ns")),
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _int_or_none(value: Any) -> int | None:
    return value if type(value) is int else None
