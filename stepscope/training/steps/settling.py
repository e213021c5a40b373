"""Which steps have all their figures? Some come late from the GPU; a step's line waits for them, training does not."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from stepscope.training.steps.listeners import SettledListener, SettledListeners
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

_MOST_WAITING = 1000
"""Steps that wait for the GPU; CUDA lets the host run a thousand launches ahead, a step is hardly ever only one."""

_LONGEST_WAIT_SECONDS = 10.0
"""At the end: a GPU that has not passed the last step by then hangs."""

_LONGEST_HURRY_SECONDS = 1.0


class SettlingSteps:
    """Passes finished steps on in their order, each once its late figures are there.

    Args:
        listeners: are told of each before it is written.
        write: gets each; what it raises comes out of `add` and `close`.
    """

    def __init__(self, listeners: Iterable[SettledListener], write: Callable[[StepRecord], None]) -> None:
        self._listeners = SettledListeners(listeners)
        self._write = write
        self._waiting: deque[StepRecord] = deque()
        self._lock = threading.Lock()

    def add(self, record: StepRecord) -> None:
        """Take a finished step, and pass on those that are settled by now."""
        with self._lock:
            self._waiting.append(record)
            while self._waiting and (len(self._waiting) > _MOST_WAITING or _is_settled(self._waiting[0])):
                self._pass_on(self._waiting.popleft())

    def hurry(self) -> None:
        """Pass all on with the figures that are there; on any thread, when the training thread may not come back.

        Not to be called while training goes on: a question to the GPU from another thread breaks a graph capture.
        """
        if not self._lock.acquire(timeout=_LONGEST_HURRY_SECONDS):
            return
        try:
            while self._waiting:
                for late in self._waiting[0].late:
                    late.are_there()
                self._pass_on(self._waiting.popleft())
        finally:
            self._lock.release()

    def close(self) -> None:
        """Wait a while for what is late, and pass all on."""
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        try:
            with self._lock:
                while self._waiting:
                    while not _is_settled(self._waiting[0]) and time.monotonic() < deadline:
                        time.sleep(0.001)
                    self._pass_on(self._waiting.popleft())
        finally:
            self._listeners.close()

    def _pass_on(self, record: StepRecord) -> None:
        for late in record.late:
            for name, value in late.read().items():
                record.figures.setdefault(name, value)
            late.give_up()  # where it has not come
        record.late.clear()
        self._listeners.step_settled(record)
        self._write(record)


def _is_settled(record: StepRecord) -> bool:
    return all(late.are_there() for late in record.late)
