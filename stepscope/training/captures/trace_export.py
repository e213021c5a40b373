"""How does a finished recording become a trace file while training goes on?"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.training.captures.unlocked_recording import empty_recording, save_recording
from stepscope.training.run.run_directory import compress_trace, partial_path

_LOWEST_PRIORITY = 19
_LOOK_EVERY_SECONDS = 0.25
_GIVES_UP_SECONDS = 10.0
_GIVES_UP_AGAIN_SECONDS = 1.0
"""Without a moment in which the writing thread ran: it waits for a disk that does not answer."""

_PROBE_BYTES = 1 << 20


class TraceWriter:
    """Writes one trace at a time on a thread of its own, at the lowest priority.

    A thread that a disk holds is not waited for without end, neither by training nor by Python's exit.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._gives_up_seconds = _GIVES_UP_SECONDS

    @property
    def is_writing(self) -> bool:
        """Whether a trace is not whole yet."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def write(self, make_file: Callable[[], None]) -> None:
        """Run `make_file` on the writing thread, after what it writes now.

        Raises:
            Exception: what the trace before this one failed with.
        """
        self.finish()
        self._gives_up_seconds = _GIVES_UP_SECONDS
        self._thread = threading.Thread(target=self._run, args=(make_file,), name="stepscope-trace-writer", daemon=True)
        atexit.register(self.wait)
        try:
            self._thread.start()
        except RuntimeError:  # Python is about to end and starts no thread any more
            self._thread = None
            self._run(make_file)

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            TimeoutError: the disk does not answer.
            Exception: what writing failed with.
        """
        if not self.wait():
            raise TimeoutError("the disk does not answer; the trace is not whole")
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait until everything is written or has failed; False when the time is over, or the thread gets nowhere."""
        thread, began = self._thread, time.monotonic()
        if thread is None:
            return True
        moved, ran = began, b""
        while thread.is_alive():
            now = time.monotonic()
            if now - began >= seconds:
                return False
            if now - moved >= self._gives_up_seconds:
                self._gives_up_seconds = _GIVES_UP_AGAIN_SECONDS
                return False
            thread.join(min(_LOOK_EVERY_SECONDS, seconds - (now - began)))
            ran, before = _how_often_it_ran(thread), ran
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
        except Exception as error:  # told to the training thread, which says it once
            self._error = error


def _how_often_it_ran(thread: threading.Thread) -> bytes:
    """What the kernel counts of a thread's time; it stands still while a disk does not answer."""
    folder = Path(f"/proc/self/task/{thread.native_id}")
    for name in ("schedstat", "stat"):
        with suppress(OSError):
            return (folder / name).read_bytes()
    return b""


def write_trace(recording: Any, plain: Path, target: Path) -> None:
    """Write torch's result of a recording to `plain`, and that compressed to `target`, which appears when whole.

    Args:
        recording: torch's result, which is empty afterwards; None when `plain` is written already.

    Raises:
        OSError: it cannot be written.
    """
    try:
        plain.parent.mkdir(parents=True, exist_ok=True)
        if recording is not None:
            save_recording(recording, plain)
        compress_trace(plain, target)
    except OSError:
        _raise_what_torch_does_not_say(target)
        raise
    finally:
        with suppress(OSError):
            plain.unlink()
        if recording is not None:
            empty_recording(recording)


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
