"""How does a finished recording become a trace file while training goes on?

torch's own `save` writes in C++ but keeps Python's lock all the while, so that on another thread it would hold the
training loop up just the same: for seconds after a large capture. The same C++ function is therefore called through
ctypes, which lets go of the lock. Where it cannot be found for certain, torch's own method does it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.training.run.run_directory import compress_trace, partial_path

_SAVE = "_ZN5torch8autograd8profiler14ProfilerResult4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
"""torch::autograd::profiler::ProfilerResult::save(std::string const&). The types are part of the name, so a torch in
which they differ does not have it."""

_LOWEST_PRIORITY = 19
_PROBE_BYTES = 1 << 20
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)


class TraceWriter:
    """Writes one trace at a time on a thread of its own, at the lowest priority."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a trace is not whole yet."""
        return self._thread is not None and self._thread.is_alive()

    def write(self, make_file: Callable[[], None]) -> None:
        """Run `make_file` on the writing thread, after what it writes now.

        Raises:
            Exception: what the trace before this one failed with.
        """
        self.finish()
        self._thread = threading.Thread(target=self._run, args=(make_file,), name="stepscope-trace-writer")
        try:
            self._thread.start()
        except RuntimeError:  # Python is about to end and starts no thread any more
            self._thread = None
            self._run(make_file)

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            Exception: what writing failed with.
        """
        self.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait until everything is written or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, make_file: Callable[[], None]) -> None:
        with suppress(OSError):  # Linux counts a thread as a process here
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        try:
            make_file()
        except Exception as error:  # told to the training thread, which says it once
            self._error = error


def write_trace(recording: Any, plain: Path, target: Path) -> None:
    """Write torch's result of a recording to `plain`, and that compressed to `target`, which appears when whole.

    Args:
        recording: torch's result; None when `plain` is written already.

    Raises:
        OSError: it cannot be written.
    """
    try:
        if recording is not None:
            save_recording(recording, plain)
        compress_trace(plain, target)
    except OSError:
        _raise_what_torch_does_not_say(target)
        raise
    finally:
        with suppress(OSError):
            plain.unlink()


def _raise_what_torch_does_not_say(target: Path) -> None:
    """torch's writer tells only its own log why it failed; a file of ours finds out.

    Raises:
        OSError: it cannot be written either.
    """
    probe = partial_path(target, ".probe")
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    finally:
        with suppress(OSError):
            probe.unlink()


def save_recording(recording: Any, path: Path) -> None:
    """What `recording.save(path)` does, other threads running meanwhile where that can be had."""
    save, address = _native_save(), _address_of(recording)
    if save is None or address is None:
        recording.save(str(path))
        return
    name = os.fsencode(path)
    save(address, ctypes.byref(_StandardString(name, len(name), len(name), 0)))


class _StandardString(ctypes.Structure):
    """libstdc++'s std::string under the ABI that the name above calls __cxx11, its characters kept elsewhere."""

    _fields_ = [
        ("characters", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("unused", ctypes.c_size_t),
    ]


def _native_save() -> Any:
    """torch's C++ function; None in a torch that has no such function."""
    import torch

    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        save = getattr(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY), _SAVE)
    except (OSError, AttributeError):
        return None
    save.restype = None
    save.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return save


def _address_of(recording: Any) -> int | None:
    """Where the C++ object is that a Python object stands for; None when it is not surely there.

    pybind11 keeps the pointer right behind the object's header, and the C++ object begins with the time at which the
    trace began. Read through /proc, so that a wrong guess is an error instead of a crash.
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
