"""How do step metrics leave the process without training waiting for anyone?"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable

from stepscope.core.counting import counted, form
from stepscope.training.exporters.metrics import Exporter
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_LOOK_EVERY_NS = 1_000_000_000
_MOST_WAITING = 10_000
_CLOSES_WITHIN_SECONDS = 5.0


class StepExport:
    """Queues settled steps and exports them on a thread of its own; what finds no place in the queue is counted.

    Args:
        says_what_is_missing: whether to say once that nothing is open to export to; one rank does.
    """

    def __init__(self, exporters: Iterable[Exporter], *, says_what_is_missing: bool) -> None:
        self._exporters = list(exporters)
        self._says_what_is_missing = says_what_is_missing
        self._found: list[Exporter] = []
        self._looked_ns = 0
        self._waiting: deque[StepRecord] = deque()
        self._num_dropped = 0
        self._failed: set[str] = set()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def step_settled(self, record: StepRecord) -> None:
        """Queue the step, where there is something to export it to."""
        if abs(record.end_ns - self._looked_ns) >= _LOOK_EVERY_NS:
            self._looked_ns = record.end_ns
            self._look()
        if not self._found:
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._num_dropped += 1
            return
        self._waiting.append(record)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stepscope-export", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Export what is queued, within seconds."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSES_WITHIN_SECONDS)
        num_lost = self._num_dropped + len(self._waiting)
        if num_lost:
            names = ", ".join(exporter.package for exporter in self._found)
            logger.warning(
                "%s %s not exported to %s, which is too slow",
                counted(num_lost, "step"),
                form(num_lost, "was", "were"),
                names,
            )

    def _look(self) -> None:
        for exporter in self._exporters:
            if exporter.look():
                if exporter not in self._found:
                    self._found = [*self._found, exporter]
            elif exporter not in self._found and self._says_what_is_missing:
                logger.warning("steps are exported to %s once %s is called", exporter.package, exporter.remedy)
        self._says_what_is_missing = False

    def _run(self) -> None:
        while not self._is_closing.wait(_EVERY_SECONDS):
            self._export()
        self._export()

    def _export(self) -> None:
        records = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for exporter in self._found if records else []:
            try:
                exporter.export(records)
            except Exception as error:  # whatever a library or its server raises
                if exporter.package not in self._failed:
                    self._failed.add(exporter.package)
                    name = exporter.package
                    logger.warning("steps are not exported to %s for now: %s: %s", name, type(error).__name__, error)
