"""Worker thread: runs posted calls one after another, and a periodic look after each and in between."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

_AFTER_ERROR_SECONDS = 0.25


class WorkerThread:
    """A daemon thread. A context manager: it runs while it is open.

    Errors of calls and looks are logged, and the thread goes on.

    Args:
        look: called after each posted call and periodically; returns the seconds until the next time.
        name: of the thread, also in the log.
        log: takes the errors.
    """

    def __init__(self, look: Callable[[], float], *, name: str, log: logging.Logger) -> None:
        self._look = look
        self._log = log
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> WorkerThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self.wake()
        self._thread.join()

    def post(self, call: Callable[[], object]) -> None:
        """Run `call` on the thread; from any thread, without waiting for it."""
        self._calls.put(call)

    def wake(self) -> None:
        """Look at once; from any thread."""
        self.post(lambda: None)

    def _run(self) -> None:
        seconds = 0.0
        while not self._closing:
            try:
                call = self._calls.get(timeout=seconds)
            except queue.Empty:
                call = None
            try:
                if call is not None:
                    call()
                seconds = self._look()
            except Exception:  # the thread's edge
                self._log.exception("%s failed; it continues", self._thread.name)
                time.sleep(_AFTER_ERROR_SECONDS)
