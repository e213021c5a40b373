"""How is torch's result of a recording written and let go while other threads run?

torch does both in C++ but keeps Python's lock all the while, so that on another thread they would hold the training
loop up just the same: for seconds to write a large recording, for tenths of a second to free it. The same C++ functions
are therefore called through ctypes, which lets go of the lock. Where they cannot be found for certain, torch does it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

_RESULT = "_ZN5torch8autograd8profiler14ProfilerResult"
"""torch::autograd::profiler::ProfilerResult. Types are part of a function's name: a torch in which they differ does not
have it."""
_SAVE = _RESULT + "4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"  # save(std::string const&)
_DESTRUCT = _RESULT + "D1Ev"
_CONSTRUCT_EMPTY = _RESULT + "C1Ev"
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)


def save_recording(recording: Any, path: Path) -> None:
    """What `recording.save(path)` does, other threads running meanwhile where that can be had."""
    found, address = _native(_SAVE), _address_of(recording)
    if found is None or address is None:
        recording.save(str(path))
        return
    (save,) = found
    name = os.fsencode(path)
    save(ctypes.c_void_p(address), ctypes.byref(_StandardString(name, len(name), len(name), 0)))


def empty_recording(recording: Any) -> None:
    """Free all that it holds, other threads running meanwhile; where that cannot be had, nothing: Python will free it.

    In place of what is destructed comes an empty result, for Python to free in its turn.
    """
    found, address = _native(_DESTRUCT, _CONSTRUCT_EMPTY), _address_of(recording)
    if found is None or address is None:
        return
    destruct, construct_empty = found
    here = ctypes.c_void_p(address)
    try:
        destruct(here)
    finally:  # whatever comes between: Python would destruct it once more
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
    """torch's C++ functions of these names; None in a torch that lacks one."""
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
