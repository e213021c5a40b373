"""Where are all threads when one of them keeps Python's lock for ever, so that no Python of ours can run to look?

A kernel timer, pushed back again and again while Python runs, sends a signal to the thread that pushes it, where
faulthandler's handler in C then writes the stacks without the lock. faulthandler's own timer would do the same, but a
process has only one, which may be the user's.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import threading
from io import FileIO
from pathlib import Path
from typing import Any

_CLOCK_MONOTONIC = 1
_SIGEV_THREAD_ID = 4
_NUM_SPARED = 4  # debuggers and runtimes like the very last signals


class _SignalEvent(ctypes.Structure):
    """struct sigevent of Linux, 64 bytes."""

    _fields_ = [
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread_id", ctypes.c_int),
        ("unused", ctypes.c_byte * 44),
    ]


class _TimerSpecification(ctypes.Structure):
    """struct itimerspec: once after so long."""

    _fields_ = [
        ("interval_seconds", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("ns", ctypes.c_long),
    ]


class FrozenPythonNet:
    """Writes all stacks to a file when the thread that made it has not pushed the net back in time.

    Raises:
        OSError: the kernel has no timer for us, or every signal is taken.
    """

    def __init__(self, file: FileIO) -> None:
        self._owner = threading.current_thread()
        self._signal = _free_signal()
        self._library: Any = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._library, "timer_create"):
            raise OSError("this C library has no timers")
        self._timer = ctypes.c_void_p()
        event = _SignalEvent(
            number=self._signal, notify=_SIGEV_THREAD_ID, thread_id=threading.get_native_id()
        )  # fmt: skip
        faulthandler.register(self._signal, file=file, all_threads=True, chain=False)
        if self._library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            faulthandler.unregister(self._signal)
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def push_back(self, seconds: float) -> None:
        """Not before so many seconds from now."""
        whole = int(seconds)
        when = _TimerSpecification(0, 0, whole, int((seconds - whole) * 1e9))
        self._library.timer_settime(self._timer, 0, ctypes.byref(when), None)

    def close(self) -> None:
        """Take the net away, once the thread that made it has ended; else a late signal could end the process."""
        self.push_back(0)  # means never
        if not self._owner.is_alive() or self._owner is threading.current_thread():
            self._library.timer_delete(self._timer)
            faulthandler.unregister(self._signal)


def _free_signal() -> int:
    """A real-time signal that nobody in this process handles, ignores or has blocked."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    taken = 0
    for mask in re.findall(r"^Sig(?:Cgt|Ign|Blk):\s*([0-9a-f]+)$", status, re.MULTILINE):
        taken |= int(mask, 16)
    for number in range(signal.SIGRTMAX - _NUM_SPARED, signal.SIGRTMIN, -1):
        if not taken >> (number - 1) & 1:
            return number
    raise OSError("every signal is taken")
