"""Which steps have all their figures? Some come late from the GPU; a step's line waits for them, training does not."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from stepscope.training.listeners import SettledListener, SettledListeners
from stepscope.training.telemetry import StepRecord

logger = logging.getLogger(__name__)

_MOST_WAITING = 1000
"""Steps that wait for the GPU; CUDA lets the host run a thousand launches ahead, a step is hardly ever only one."""

_LONGEST_WAIT_SECONDS = 10.0
"""At the end: a GPU that has not passed the last step by then hangs."""


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

    def add(self, record: StepRecord) -> None:
        """Take a finished step, and pass on those that are settled by now."""
        self._waiting.append(record)
        while self._waiting and (len(self._waiting) > _MOST_WAITING or _is_settled(self._waiting[0])):
            self._pass_on(self._waiting.popleft())

    def close(self) -> None:
        """Wait a while for what is late, and pass all on."""
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        try:
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
        record.late.clear()
        self._listeners.step_settled(record)
        self._write(record)


def _is_settled(record: StepRecord) -> bool:
    return all(late.are_there() for late in record.late)
