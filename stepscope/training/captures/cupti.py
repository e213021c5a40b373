"""CUPTI detachment: after a capture CUPTI leaves the process, so that training runs as fast as before it.

While CUPTI is attached every CUDA call takes longer, also when nothing is recorded: on an H200 the steps of small
models took 1.2 to 1.4 times as long for the rest of the run (pytorch#144455). torch's profiler (Kineto) detaches it
only if TEARDOWN_CUPTI=1 when a recording ends. A thread of Kineto then waits for the next CUDA call and has CUPTI
finalised at its exit. A recording that begins before that loses its kernels (kineto#1554), so every start waits for it.
Kineto attaches CUPTI again only if the variable still stands, which is why it is set from the first capture on.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

logger = logging.getLogger(__name__)

DETACH_VARIABLE = "TEARDOWN_CUPTI"
"""Kineto's environment variable: 1 detaches CUPTI after each recording."""

FIRST_SAFE_CUDA = (12, 6)
"""In older ones a process with CUDA graphs crashes when CUPTI is attached again."""

_WAIT_SECONDS = 0.5
_CHECK_SECONDS = 0.001
_ATTACHED = "CUPTI stays attached to the process after the capture, which slows later steps: %s"


def why_not_detachable(cuda: str | None) -> str | None:
    """Why CUPTI of this CUDA version stays attached after a recording; None where it can be detached."""
    if cuda is None:
        return None  # no CUDA, no CUPTI
    if _version(cuda) < FIRST_SAFE_CUDA:
        return f"detaching it is not safe before CUDA 12.6, and torch is built for CUDA {cuda}"
    return None


class CuptiDetachment:
    """Detaches CUPTI after the recordings of this process, where that is safe and the user has not decided."""

    def __init__(self) -> None:
        self._is_ours = self._has_warned = False
        self._pending: set[str] = set()

    def allow(self) -> None:
        """Have CUPTI detached after the recordings that begin from now on; a reason against it is logged once."""
        import torch

        if self._is_ours or not torch.cuda.is_available() or torch.version.cuda is None:
            return
        choice = os.environ.get(DETACH_VARIABLE)
        reason = why_not_detachable(torch.version.cuda)
        if reason is None and choice is None:
            os.environ[DETACH_VARIABLE] = "1"
            self._is_ours = True
            return
        if choice != "1" and not self._has_warned:
            self._has_warned = True
            logger.warning(_ATTACHED, reason or f"{DETACH_VARIABLE}={choice} is set")

    def restore(self) -> None:
        """Take our choice back, after the last recording of the process is detached."""
        self.wait()
        if self._is_ours:
            self._is_ours = False
            os.environ.pop(DETACH_VARIABLE, None)

    @contextmanager
    def ending_recording(self) -> Iterator[None]:
        """Around the call that ends a recording: remembers Kineto's thread that is going to detach CUPTI."""
        if os.environ.get(DETACH_VARIABLE) != "1":
            yield
            return
        before = _thread_ids()
        try:
            yield
        finally:
            self._pending = _thread_ids() - before

    @contextmanager
    def kept_attached(self) -> Iterator[None]:
        """Around the end of a recording that another one follows at once: its kernels would be lost."""
        if not self._is_ours:
            yield
            return
        os.environ[DETACH_VARIABLE] = "0"
        try:
            yield
        finally:
            os.environ[DETACH_VARIABLE] = "1"

    def wait(self) -> None:
        """Wait until CUPTI of the recording before is detached, at most half a second."""
        pending, self._pending = self._pending, set()
        until = time.monotonic() + _WAIT_SECONDS
        while pending & _thread_ids() and time.monotonic() < until:
            _call_cuda()
            time.sleep(_CHECK_SECONDS)


def _thread_ids() -> set[str]:
    """Threads of this process."""
    try:
        return set(os.listdir("/proc/self/task"))
    except OSError:
        return set()


def _call_cuda() -> None:
    """Make a CUDA call that changes nothing, at whose exit Kineto's thread detaches CUPTI."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # a CUDA error of training, which training sees itself
            torch.cuda.current_device()


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
