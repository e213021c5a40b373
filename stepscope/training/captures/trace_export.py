"""Trace export: writes a finished recording to its trace file on another thread while training goes on.

torch saves and frees a recording in C++ but holds the GIL meanwhile, which would stop the training loop: for seconds
to write a large recording, for tenths of a second to free it. The same C++ functions are therefore called through
ctypes, which releases the GIL. Where they cannot be found for certain, torch's own methods are used.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.training.run.run_files import atomic_write, partial_path

_LOWEST_PRIORITY = 19
_CHECK_SECONDS = 0.25
_STALLED_SECONDS = 10.0
_STALLED_AGAIN_SECONDS = 1.0
"""Time in which the writing thread never ran: it waits for a disk that does not answer."""

_PROBE_BYTES = 1 << 20
_COPY_BYTES = 1 << 20
_GZIP_LEVEL = 1  # a trace shrinks 15-fold at level 1 already; level 9 stops training five times as long
_GZIP_FORMAT = 31  # zlib's number for a window of 32 kB with a gzip header


class TraceWriter:
    """Writes one captured trace at a time on a thread of its own, at the lowest priority.

    Neither training nor Python's exit waits without end for a thread that is blocked by a disk.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._stalled_seconds = _STALLED_SECONDS

    @property
    def is_writing(self) -> bool:
        """Whether a trace is not whole yet."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def write(self, make_file: Callable[[], None]) -> None:
        """Run `make_file` on the writing thread, after the present trace.

        Raises:
            Exception: the error of the trace before.
        """
        self.finish()
        self._stalled_seconds = _STALLED_SECONDS
        self._thread = threading.Thread(target=self._run, args=(make_file,), name="stepscope-trace-writer", daemon=True)
        atexit.register(self.wait)
        try:
            self._thread.start()
        except RuntimeError:  # Python is about to exit and starts no thread any more
            self._thread = None
            self._run(make_file)

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            TimeoutError: the disk does not answer.
            Exception: the error of writing.
        """
        if not self.wait():
            raise TimeoutError("the disk does not answer; the trace is not whole")
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait until everything is written or has failed; False after `seconds`, or when the thread is stalled."""
        thread, began = self._thread, time.monotonic()
        if thread is None:
            return True
        moved, ran = began, b""
        while thread.is_alive():
            now = time.monotonic()
            if now - began >= seconds:
                return False
            if now - moved >= self._stalled_seconds:
                self._stalled_seconds = _STALLED_AGAIN_SECONDS
                return False
            thread.join(min(_CHECK_SECONDS, seconds - (now - began)))
            ran, before = _scheduler_counters(thread), ran
            if ran != before:
                moved = time.monotonic()
        if self._thread is thread:
            self._thread = None
        atexit.unregister(self.wait)
        return True

    def _run(self, make_file: Callable[[], None]) -> None:
        with suppress(OSError):  # Linux counts a thread as a process here
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        try:
            make_file()
        except Exception as error:  # raised once on the training thread
            self._error = error


def _scheduler_counters(thread: threading.Thread) -> bytes:
    """The kernel's counters of a thread's time; they stand still while a disk does not answer."""
    folder = Path(f"/proc/self/task/{thread.native_id}")
    for name in ("schedstat", "stat"):
        with suppress(OSError):
            return (folder / name).read_bytes()
    return b""


def write_trace(recording: Any, plain: Path, target: Path) -> None:
    """Write a capture's recording to `plain`, and that compressed to `target`, which appears when whole.

    Args:
        recording: torch's result, which is empty afterwards; None when `plain` is written already.

    Raises:
        OSError: it cannot be written.
    """
    try:
        plain.parent.mkdir(parents=True, exist_ok=True)
        if recording is not None:
            save_recording(recording, plain)
        gzip_trace(plain, target)
    except OSError:
        _raise_write_error(target)
        raise
    finally:
        with suppress(OSError):
            plain.unlink()
        if recording is not None:
            free_recording(recording)


def gzip_trace(plain: Path, target: Path) -> int:
    """Gzip a finished JSON trace to `target`, which appears only when whole; returns the plain size in bytes.

    Raises:
        OSError: the plain file does not end as JSON does (the disk was full), or `target` cannot be written.
    """
    num_bytes, tail = 0, b""
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
    with atomic_write(target) as temporary:
        with plain.open("rb") as source, temporary.open("wb") as out:
            while block := source.read(_COPY_BYTES):
                num_bytes += len(block)
                tail = (tail + block)[-16:]
                out.write(packer.compress(block))
            out.write(packer.flush())
        if not tail.rstrip().endswith(b"}"):
            raise OSError(f"the trace is cut short after {num_bytes} bytes: {plain}")
    return num_bytes


def _raise_write_error(target: Path) -> None:
    """Find the reason of a failure, which torch's writer only logs, by writing a file of our own.

    Raises:
        OSError: it cannot be written either.
    """
    probe = partial_path(target, ".probe")
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    finally:
        with suppress(OSError):
            probe.unlink()


_RESULT = "_ZN5torch8autograd8profiler14ProfilerResult"
"""torch::autograd::profiler::ProfilerResult. Types are part of a function's name: a torch with other types lacks it."""
_SAVE = _RESULT + "4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"  # save(std::string const&)
_DESTRUCT = _RESULT + "D1Ev"
_CONSTRUCT_EMPTY = _RESULT + "C1Ev"
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)


def save_recording(recording: Any, path: Path) -> None:
    """Save the trace of a recording as `recording.save(path)` does, without the GIL where possible."""
    found, address = _native(_SAVE), _address_of(recording)
    if found is None or address is None:
        recording.save(str(path))
        return
    (save,) = found
    name = os.fsencode(path)
    save(ctypes.c_void_p(address), ctypes.byref(_StandardString(name, len(name), len(name), 0)))


def free_recording(recording: Any) -> None:
    """Free the memory of a saved recording without the GIL where possible; otherwise Python frees it.

    An empty result takes the place of the destructed one, for Python to free.
    """
    found, address = _native(_DESTRUCT, _CONSTRUCT_EMPTY), _address_of(recording)
    if found is None or address is None:
        return
    destruct, construct_empty = found
    here = ctypes.c_void_p(address)
    try:
        destruct(here)
    finally:  # always: Python would destruct it once more
        construct_empty(here)


class _StandardString(ctypes.Structure):
    """libstdc++'s std::string under the ABI that the name above calls __cxx11, its characters kept elsewhere."""

    _fields_ = [
        ("characters", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("unused", ctypes.c_size_t),
    ]


def _native(*names: str) -> list[Any] | None:
    """torch's C++ functions of these names; None where one is missing."""
    import torch

    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        functions = [getattr(library, name) for name in names]
    except (OSError, AttributeError):
        return None
    for function in functions:
        function.restype = None
    return functions


def _address_of(recording: Any) -> int | None:
    """Address of the C++ object of a Python object; None when it is not certain.

    pybind11 keeps the pointer right behind the object's header, and the C++ object begins with the start time of the
    trace. Read through /proc, so that a wrong address is an error instead of a crash.
    """
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            address = _word_at(memory, id(recording) + object.__basicsize__)
            return address if _word_at(memory, address) == recording.trace_start_ns() else None
    except (OSError, OverflowError, AttributeError, ValueError):
        return None


def _word_at(memory: Any, address: int) -> int:
    memory.seek(address)
    return int.from_bytes(memory.read(_POINTER_BYTES), "little")
