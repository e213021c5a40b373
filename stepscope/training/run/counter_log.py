"""Counter log of this rank: the agent's samples of its own GPUs and host, appended to metrics/rank{r}.jsonl.

The connection's thread takes them, the background loop writes them, the training thread has no part in it. What an
agent sends too often, and what a disk that does not answer keeps waiting, is left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from stepscope.core.documents.run_counters import counters_line
from stepscope.core.protocol.counters import COUNTERS_SECONDS, Counters
from stepscope.training.run.run_files import WholeLinesFile, run_within

logger = logging.getLogger(__name__)

_MAX_PENDING = 8
_LEAST_SECONDS = COUNTERS_SECONDS / 2
"""Between two messages that are kept."""
_CLOSES_WITHIN_SECONDS = 2.0


class CounterLog:
    """Log of the agent's counters; its file appears with the first message."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: deque[Counters] = deque(maxlen=_MAX_PENDING)
        self._writing = threading.Lock()
        self._file: WholeLinesFile | None = None
        self._taken_at: float | None = None
        self._is_over = False

    def take(self, message: Counters) -> None:
        """Keep a message until it is written; on the connection's thread."""
        now = time.monotonic()
        if self._taken_at is None or now - self._taken_at >= _LEAST_SECONDS:
            self._taken_at = now
            self._pending.append(message)

    def run_task(self) -> None:
        """Once a second, on another thread: write what is kept, however long the disk takes."""
        with self._writing:
            while self._pending and not self._is_over:
                try:
                    if self._file is None:
                        self._file = WholeLinesFile(self._path)
                    with suppress(IndexError):
                        self._file.write(counters_line(self._pending.popleft()))
                except (OSError, ValueError) as error:
                    self._is_over = True
                    logger.warning("counters of the agent are no longer kept in %s: %s", self._path, error)

    def close(self) -> None:
        """Write what is kept and close the file, within seconds; never raises."""
        with suppress(TimeoutError):  # the disk does not answer, which the last steps report
            run_within(_CLOSES_WITHIN_SECONDS, self._close, f"the last counters, {self._path}")

    def _close(self) -> None:
        self.run_task()
        with self._writing:
            self._is_over = True
            if self._file is not None:
                self._file.close()
