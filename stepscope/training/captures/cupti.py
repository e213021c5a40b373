"""CUPTI detachment: after a capture CUPTI leaves the process, so that training runs as fast as before it.

While CUPTI is attached every CUDA call takes longer, also when nothing is recorded: on an H200 the steps of small
models took 1.2 to 1.4 times as long for the rest of the run (pytorch#144455). torch's profiler (Kineto) detaches it
only if TEARDOWN_CUPTI=1 when a recording ends: a thread of Kineto waits for the next CUDA call, at whose exit CUPTI is
finalised. Seen on an H200 with torch 2.11, each of which loses all kernels of a recording or hangs the process:
a recording that begins before the thread is done (kineto#1554); the variable set while one is prepared after another
profiler has left CUPTI attached; a process that exits while the thread waits. So the variable stands from the end of a
recording until the thread is done, which every start and the end of the run wait for.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stepscope.core.cupti import DETACH_VARIABLE, why_attached

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 0.5
_CHECK_SECONDS = 0.001


class CuptiDetachment:
    """Detaches CUPTI when a recording ends, where that is safe and the user has not decided otherwise."""

    def __init__(self) -> None:
        self._is_variable_ours = self._has_warned = False
        self._threads: set[str] = set()
        self._give_up_at = 0.0

    @contextmanager
    def ending_recording(self) -> Iterator[None]:
        """Around the call that ends a recording, after which CUPTI is detached; a reason against it is logged once."""
        if not self._may_detach():
            yield
            return
        if DETACH_VARIABLE not in os.environ:
            os.environ[DETACH_VARIABLE] = "1"
            self._is_variable_ours = True
        before = _thread_ids()
        try:
            yield
        finally:
            self._threads = _thread_ids() - before
            self._give_up_at = time.monotonic() + _WAIT_SECONDS

    def check(self) -> None:
        """Remove the variable when CUPTI is detached; costs nothing between recordings."""
        if self._is_variable_ours and not self._is_pending():
            self._is_variable_ours = False
            os.environ.pop(DETACH_VARIABLE, None)

    def wait(self) -> None:
        """Wait until CUPTI is detached, at most half a second from the end of the recording."""
        while self._threads and self._is_pending():
            _call_cuda()
            time.sleep(_CHECK_SECONDS)
        self.check()

    def _is_pending(self) -> bool:
        if not self._threads & _thread_ids() or time.monotonic() >= self._give_up_at:
            self._threads = set()
        return bool(self._threads)

    def _may_detach(self) -> bool:
        import torch

        if not torch.cuda.is_available() or torch.version.cuda is None:
            return False
        reason = why_attached(torch.version.cuda, os.environ.get(DETACH_VARIABLE))
        if reason is not None and not self._has_warned:
            self._has_warned = True
            logger.warning("CUPTI stays attached to the process after the capture, which slows later steps: %s", reason)
        return reason is None


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
