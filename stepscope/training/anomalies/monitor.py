"""Anomaly monitor: runs the detectors on every step, adds anomalies to its record and logs them, rate limited."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from stepscope.core.text.numbers import significant
from stepscope.training.anomalies import detectors
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

_LOSS, _GRADIENTS, _SCALE = "loss", ("grad_norm", "local_grad_norm"), "loss_scale"
_OF_ONE_RANK = frozenset({"local_grad_norm", "memory_allocated_bytes", "host_memory_bytes"})
"""Figures that differ between ranks: every rank reports its own; rank 0 alone reports the others."""

_MIB = 1 << 20

LEAST_STEP_CHANGE_MS = 0.1
"""Smallest finding: the host's own work varies by as much, and shorter steps are toys."""


class AnomalyMonitor:
    """Adds anomalies to settled steps, and logs one line for each; of a kind that keeps happening, for some."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        spikes: dict[str, list[detectors.Detector]] = {
            _LOSS: [detectors.NotFiniteDetector("loss_not_finite", _LOSS), detectors.loss_spike_detector()]
        }
        spikes |= {figure: [detectors.gradient_explosion_detector(figure)] for figure in _GRADIENTS}
        self._scaled = spikes | {
            _SCALE: [detectors.ScaleCollapseDetector()]
        }  # infinite gradients are how the scale's limit is found
        infinite = {figure: detectors.NotFiniteDetector("gradient_not_finite", figure) for figure in _GRADIENTS}
        self._unscaled = spikes | {figure: [infinite[figure], *spikes[figure]] for figure in _GRADIENTS}
        self._memory = [
            # A job's own memory is the same at the end of every step but for its batch's shape.
            (
                "memory_allocated_bytes",
                detectors.MemoryGrowthDetector("memory_allocated_bytes", least_bytes=16 * _MIB, least_ratio=0.01),
            ),
            # A process grows by its loaders' queues, logs and caches.
            (
                "host_memory_bytes",
                detectors.MemoryGrowthDetector("host_memory_bytes", least_bytes=64 * _MIB, least_ratio=0.05),
            ),
        ]
        self._step_times = detectors.StepTimeChangeDetector(least=LEAST_STEP_CHANGE_MS)
        self._seldom = LogLimiter()
        self._was_quiet = False

    def steps_settled(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            self._see(record)

    def _see(self, record: StepRecord) -> None:
        figures = record.figures
        chosen = self._scaled if _SCALE in figures else self._unscaled
        found: list[detectors.Anomaly | None] = []
        for name, value in figures.items():
            for detector in chosen.get(name, ()):
                if (anomaly := detector.see(value)) is not None:
                    found.append(anomaly)
        for name, growth in self._memory:
            if name in figures:
                found.append(growth.see(record.index, figures[name]))
        is_quiet = record.state == "wait" and not record.export_ns
        if is_quiet and self._was_quiet:  # the profiler's own time is not a change
            found.append(self._step_times.see(record.duration_ns / 1e6))
        self._was_quiet = is_quiet
        for anomaly in found:
            if anomaly is not None:
                record.anomalies.append(anomaly)
                if self._rank == 0 or anomaly.figure in _OF_ONE_RANK:
                    self._log(record.index, anomaly)

    def close(self) -> None:
        """Log how many anomalies were left out."""
        for (kind, figure), number in self._seldom.unsaid.items():
            logger.warning("rank %d: %s", self._rank, _more(number, kind, figure))

    def _log(self, step: int, anomaly: detectors.Anomaly) -> None:
        num_unsaid = self._seldom.takes((anomaly.kind, anomaly.figure), step)
        if num_unsaid is None:
            return
        more = f"; {_more(num_unsaid, anomaly.kind, anomaly.figure)}" if num_unsaid else ""
        logger.warning("rank %d, step %d: %s%s", self._rank, step, anomaly_text(anomaly), more)


def _more(number: int, kind: str, figure: str) -> str:
    return f"and {number} more {kind} of {figure} before, kept in the steps' lines"


def anomaly_text(anomaly: detectors.Anomaly) -> str:
    """An anomaly as text of its log line."""
    name, value, usual, limit = anomaly.figure, anomaly.value, anomaly.usual, anomaly.limit
    if value is None:
        return f"{name} is not finite ({anomaly.kind})"
    if anomaly.kind == "memory_growth":
        return f"{name} grows by {significant(value / _MIB)} MiB per step ({anomaly.kind})"
    parts = [f"{name} is {significant(value, 4)}"]
    parts += [] if usual is None else [f"usually {significant(usual, 4)}"]
    parts += [] if limit is None else [f"limit {significant(limit, 4)}"]
    return f"{', '.join(parts)} ({anomaly.kind})"


NUM_LOGGED = 5
WITHIN_STEPS = 10_000
"""Most anomalies of a kind that are logged within that many steps: more is the normal state of this training."""

_Key = tuple[str, str]


class LogLimiter:
    """Rate limit of anomalies' log lines by kind and figure, which counts what it leaves out."""

    def __init__(self) -> None:
        self.unsaid: Counter[_Key] = Counter()
        self._said_at: defaultdict[_Key, deque[int]] = defaultdict(lambda: deque(maxlen=NUM_LOGGED))

    def takes(self, key: _Key, step: int) -> int | None:
        """Number of like ones left out since the last line, when this one is logged; else None."""
        said_at = self._said_at[key]
        if len(said_at) == NUM_LOGGED and step - said_at[0] < WITHIN_STEPS:
            self.unsaid[key] += 1
            return None
        said_at.append(step)
        return self.unsaid.pop(key, 0)
