"""Check of a job's breakdown by counters: for how much of the unprofiled steps its GPUs were busy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepscope.analyzer.counters.loss_reasons import CountedSteps
from stepscope.analyzer.counters.signal import Signal, Times
from stepscope.analyzer.job_time.job_losses import JobLosses
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause

_IDLE = frozenset({Cause.DATA_LOADING, Cause.HOST_BOUND, Cause.SYNCHRONIZATION, Cause.DEVICE_GAP, Cause.COPY})
"""Causes of time in which no kernel runs. In all others kernels may run, those of communication while they wait."""
_COUNTERS = (("graphics_engine_active_ratio", 0.15, 5), ("utilization_ratio", 0.25, 20))
"""Counters of the share of time with a kernel, the better one first: how far they may be off, and how many samples tell
(GPM's value is a mean since the sample before; NVML's one of a sixth to a whole second somewhere in it)."""
_MIN_COVERED = 0.9
"""Least part of a sample's time in unprofiled steps."""


class BusyShare(NamedTuple):
    """Share of the time of unprofiled steps in which GPUs were busy.

    Where a cause holds up one rank, the others may wait inside of kernels: the least busy GPU has to be as idle as the
    breakdown says, and the busiest one as busy.

    Attributes:
        counted: by counters, of the least busy GPU and of the busiest.
        least, most: by the breakdown.
        tolerance: by how much counters may be off.
    """

    counted: tuple[float, float]
    least: float
    most: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.least - self.tolerance <= self.counted[1] and self.counted[0] <= self.most + self.tolerance

    @property
    def note(self) -> str:
        """How the two differ; empty where they agree."""
        if self.agrees:
            return ""
        counted, by_breakdown = _span(*self.counted), _span(self.least, self.most)
        return f"GPUs busy {counted} of the unprofiled steps, {by_breakdown} by the breakdown"


def _span(least: float, most: float) -> str:
    return f"{most:.0%}" if most - least < _ONE_PERCENT else f"{least:.0%} to {most:.0%}"


_ONE_PERCENT = 0.01


def busy_share(losses: JobLosses, counters: CountedSteps) -> BusyShare | None:
    """Compare the counters with the breakdown of a GPU job; None where too few samples lie in unprofiled steps."""
    for name, tolerance, min_samples in _COUNTERS:
        known = [
            _busy(signals.gpu(name), *counters.step_times(rank)[:2], min_samples)
            for rank, signals in counters.signals.items()
        ]
        shares = [share for share in known if share is not None]
        if shares:
            least, most = busy_bounds(losses)
            return BusyShare((min(shares), max(shares)), least, most, tolerance)
    return None


def busy_bounds(losses: JobLosses) -> tuple[float, float]:
    """Least and most share of training time with a kernel, by the breakdown."""
    work = sum(ms for cause, ms in losses.work_ms.items() if cause in HEALTHY_CAUSES)
    idle = [loss for loss in losses.losses if loss.cause in _IDLE]
    most_idle = sum(loss.ms if loss.most_ms is None else max(loss.most_ms, loss.ms) for loss in idle)
    least_idle = sum(loss.ms if loss.least_ms is None else min(loss.least_ms, loss.ms) for loss in idle)
    more_idle = most_idle - sum(loss.ms for loss in idle)
    least, most = losses.share(work - more_idle), 1.0 - losses.share(least_idle)
    return min(max(least, 0.0), 1.0), min(max(most, 0.0), 1.0)


def _busy(counter: Signal, begins: Times, ends: Times, min_samples: int) -> float | None:
    """Mean of a counter over the samples that lie in the given steps."""
    if not len(counter.corners_ns) or not len(begins):
        return None
    sample_begins, sample_ends = counter.corners_ns[0::2], counter.corners_ns[1::2]
    seconds = (sample_ends - sample_begins) * 1e-9
    steps = Signal.of_intervals(begins, ends, np.ones(len(begins)))
    inside = steps.between(sample_begins, sample_ends) >= _MIN_COVERED * seconds
    if inside.sum() < min_samples:
        return None
    busy = np.diff(counter.total)[0::2]
    return float(busy[inside].sum() / seconds[inside].sum())
