"""CUDA memory snapshots of PyTorch (`torch.cuda.memory._dump_snapshot`), and the notes that training keeps.

Small snapshots are unpickled at once, large ones streamed, so that memory stays below the file's size. Known forms:
torch 1.13 to 2.14 as a pickle of any protocol, also gzipped, and the bare list of segments of
torch.cuda.memory_snapshot(). Blocks without an address follow each other. The notes are memory/rank{r}-oom.json and
memory/step{n}/rank{r}.json.
"""

from __future__ import annotations

import gzip
import json
import mmap
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from stepscope.collectors.safe_pickle.loading import Content, load_plain
from stepscope.collectors.safe_pickle.streaming import KeyPath as Way
from stepscope.collectors.safe_pickle.streaming import stream_plain
from stepscope.core.documents.hang import StackFrame
from stepscope.core.documents.memory import (
    AllocatorAction,
    AllocatorEvents,
    MemoryBlock,
    MemorySegment,
    MemorySnapshot,
    OutOfMemoryNote,
)
from stepscope.core.errors import DataError, from_os_error

WHOLE_BELOW_BYTES = 64 << 20
"""Smaller pickles are built at once by Python's unpickler, which takes up to ten times their size."""
_MOST_FRAMES = 48
_MOST_UNPACKED_BYTES, _MOST_TIMES_PACKED = 1 << 28, 100
"""Of a gzipped one: recorded snapshots shrink to a twentieth, what is made to fill a disk to a thousandth."""
_ACTIONS = {
    "alloc": AllocatorAction.ALLOC,
    "free": AllocatorAction.FREE_REQUESTED,
    "free_requested": AllocatorAction.FREE_REQUESTED,
    "free_completed": AllocatorAction.FREE_COMPLETED,
    "segment_alloc": AllocatorAction.SEGMENT_ALLOC,
    "segment_free": AllocatorAction.SEGMENT_FREE,
    "segment_map": AllocatorAction.SEGMENT_MAP,
    "segment_unmap": AllocatorAction.SEGMENT_UNMAP,
    "oom": AllocatorAction.OOM,
}
_BLOCK_ACTIONS = (AllocatorAction.ALLOC, AllocatorAction.FREE_REQUESTED, AllocatorAction.FREE_COMPLETED)
_EXPANDABLE = "expandable_segments:True"
_GRANULE_BYTES = 512
"""torch's c10/cuda/CUDACachingAllocator.h, kMinBlockSize."""
_MOST_BLOCKS = 1 << 24
_STEP = "Optimizer.step#"
_FORMAT_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
_WHAT_NEXT = "give a file of torch.cuda.memory._dump_snapshot()"


def read_snapshot(path: Path, *, whole_below_bytes: int = WHOLE_BELOW_BYTES) -> MemorySnapshot:
    """A snapshot's columns.

    Args:
        path: the pickle, also gzipped.
        whole_below_bytes: size up to which it is built at once.

    Raises:
        UnsafePickleError: it would do more than hold data.
        DataError: it is no snapshot.
    """
    where = str(path)
    building = _SnapshotBuilder(where)

    def take(way: Way, items: list[Any]) -> bool:
        with _format_errors_as_data_error(where):
            return building.take(way, items)

    try:
        with _opened_pickle(path, whole_below_bytes) as content:
            if len(content) < whole_below_bytes:
                told = load_plain(bytes(content), where=where)
            else:
                told = stream_plain(content, take, where=where)
    except gzip.BadGzipFile as error:
        raise DataError(f"cannot be read ({error})", where=where, what_next="check the file") from None
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=where) from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"cannot be read ({error})", where=where, what_next="check the file") from None
    with _format_errors_as_data_error(where):
        return building.finish(told)


@contextmanager
def _format_errors_as_data_error(where: str) -> Iterator[None]:
    """What is not as in a snapshot shows as one of Python's own errors, which are many."""
    try:
        yield
    except _FORMAT_ERRORS as error:
        said = " ".join(f"{type(error).__name__} {error}".split())[:120]
        raise DataError(f"is no memory snapshot of torch's ({said})", where=where, what_next=_WHAT_NEXT) from None


@contextmanager
def _opened_pickle(path: Path, whole_below_bytes: int) -> Iterator[Content]:
    """The pickle, mapped where it is large; what is gzipped is unpacked into a temporary file first."""
    if not path.is_file():  # a pipe or a device may never end
        raise DataError("is no file", where=str(path), what_next=_WHAT_NEXT)
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            with _mapped(file, whole_below_bytes) as content:
                yield content
            return
        most_bytes = _MOST_UNPACKED_BYTES + _MOST_TIMES_PACKED * file.seek(0, 2)
        file.seek(0)
        with gzip.open(file) as packed, tempfile.TemporaryFile() as unpacked:
            while part := packed.read(1 << 20):
                if unpacked.tell() > most_bytes:
                    raise DataError(f"unpacks to more than {most_bytes:,} bytes", where=str(path), what_next=_WHAT_NEXT)
                unpacked.write(part)
            unpacked.flush()
            with _mapped(unpacked, 0) as content:
                yield content


@contextmanager
def _mapped(file: IO[bytes], whole_below_bytes: int) -> Iterator[Content]:
    """A small one is read: somebody may write it anew meanwhile, and a map of a file that shrinks ends the process."""
    if file.seek(0, 2) < max(whole_below_bytes, 1):
        file.seek(0)
        yield file.read(whole_below_bytes)
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


class _SnapshotBuilder:
    """Takes the parts in any order."""

    def __init__(self, where: str) -> None:
        """
        Args:
            where: the file, for errors.
        """
        self._where = where
        self._num_blocks = 0
        self._snapshot = MemorySnapshot()
        self._stacks: dict[tuple[StackFrame, ...], int] = {(): 0}
        self._frames: dict[tuple[str, str, int], StackFrame] = {}

    def take(self, way: Way, items: list[Any]) -> bool:
        """Part of one of the lists that may be long; they are not kept."""
        match way:
            case ("segments",) | () if all(isinstance(item, dict) and "blocks" in item for item in items):
                for item in items:
                    self._segment(item)
            case ("device_traces", int(device)):
                for item in items:
                    self._event(device, item)
            case _:
                return False
        return True

    def finish(self, told: Any) -> MemorySnapshot:
        """All that was not taken before; raises what read_snapshot names where it is no snapshot."""
        if isinstance(told, list):
            told = {"segments": told}
        for item in told["segments"]:
            self._segment(item)
        for device, trace in enumerate(told.get("device_traces") or ()):
            for item in trace:
                self._event(device, item)
        allocator = told.get("allocator_settings") or {}
        settings = str(allocator.get("PYTORCH_CUDA_ALLOC_CONF") or allocator.get("PYTORCH_ALLOC_CONF") or "")
        if allocator.get("expandable_segments") is True and _EXPANDABLE not in settings:  # set while it ran
            settings = f"{settings},{_EXPANDABLE}".lstrip(",")
        ends = sorted(
            int(note["time_us"])
            for note in told.get("external_annotations") or ()
            if note.get("stage") == "END" and str(note.get("name", "")).startswith(_STEP)
        )
        made = self._snapshot
        return MemorySnapshot(made.segments, made.events, list(self._stacks), settings, ends)

    def _segment(self, told: dict[str, Any]) -> None:
        address = int(told["address"])
        blocks, place = [], address
        self._num_blocks += len(told["blocks"])
        if self._num_blocks > _MOST_BLOCKS:  # many segments may refer to the same list
            raise DataError(f"has more than {_MOST_BLOCKS:,} blocks", where=self._where, what_next=_WHAT_NEXT)
        for block in told["blocks"]:
            place = int(block.get("address", place))
            size, state = int(block["size"]), block["state"]
            frames = block.get("frames")
            if frames is None and block.get("history"):
                frames = block["history"][0].get("frames")
            blocks.append(
                MemoryBlock(place, size, state == "active_allocated", state in _AWAITING_FREE, self._stack(frames))
            )
            place += size
        self._snapshot.segments.append(
            MemorySegment(
                int(told.get("device", 0)),
                address,
                int(told["total_size"]),
                bool(told.get("is_expandable")),
                tuple(blocks),
            )
        )

    def _event(self, device: int, told: dict[str, Any]) -> None:
        action = _ACTIONS.get(told["action"], AllocatorAction.OTHER)
        if action is AllocatorAction.OTHER:
            return
        events = self._snapshot.events.setdefault(device, AllocatorEvents())
        events.actions.append(action)
        events.addresses.append(int(told["device_free"] if action is AllocatorAction.OOM else told["addr"]))
        size = int(told["size"])
        if action in _BLOCK_ACTIONS:  # what was asked for; what was given is a multiple
            size += -size % _GRANULE_BYTES
        events.sizes.append(size)
        events.times_us.append(int(told.get("time_us") or 0))
        events.stacks.append(self._stack(told.get("frames")))

    def _stack(self, told: Any) -> int:
        if not told:
            return 0
        frames = tuple(self._frame(frame) for frame in told[:_MOST_FRAMES])
        return self._stacks.setdefault(frames, len(self._stacks))

    def _frame(self, told: dict[str, Any]) -> StackFrame:
        key = str(told["name"]), str(told["filename"]), int(told["line"])
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = StackFrame(*key)
        return frame


_AWAITING_FREE = frozenset(["active_awaiting_free", "active_pending_free"])
"""The state's name now, and in torch up to 2.0."""


_LARGEST_NOTE_BYTES = 1 << 26
_NOTE_CATEGORIES = ("parameters", "gradients", "optimizer")


def read_note(snapshot: Path) -> OutOfMemoryNote | None:
    """The note of the same name as the snapshot; None without one, or where it cannot be read."""
    unpacked = snapshot.with_suffix("") if snapshot.suffix == ".gz" else snapshot
    path = unpacked.with_suffix(".json")
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_NOTE_BYTES:
            return None
        told = json.loads(path.read_bytes())
        return OutOfMemoryNote(
            _int_or_none(told.get("device")),
            _int_or_none(told.get("requested_bytes")),
            _int_or_none(told.get("device_total_bytes")),
            _int_or_none(told.get("device_free_bytes")),
            told.get("training_phase"),
            {
                int(address): category
                for category in _NOTE_CATEGORIES
                for address in ((told.get("categories") or {}).get(category) or {}).get("addresses") or ()
            },
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _int_or_none(told: Any) -> int | None:
    return told if type(told) is int else None


__all__ = ["read_note", "read_snapshot"]
