"""Queued work of a GPU that hides a host's stops: what waits and collections would cost a host that runs ahead.

A host that waits for its GPU in each step, or launches too late, has nothing queued when a batch is late, so the GPU
idles for all of that time. Without that the GPU works on meanwhile. So taking one of the two away gains more than the
time that is its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.job_time.loader_queue import MIN_WAIT_SHARE
from stepscope.analyzer.job_time.recorded_losses import weighted_mean
from stepscope.analyzer.job_time.steps import Floats, HostLoss
from stepscope.analyzer.job_time.training_time import TrainingTime

MOST_WAITING_STEPS = 0.5
"""Share of steps that wait for data from which on the loader is too slow: its batches come no sooner then."""


def hidden_ms(training: TrainingTime, losses: list[HostLoss], queued_ms: float, growth_ms: float) -> float:
    """Mean time of a step in which the GPU would have work while the host is held up.

    Args:
        losses: what holds up the host alone.
        queued_ms: most work that is queued, beyond what is so already.
        growth_ms: by how much more work a step queues than the GPU does meanwhile.
    """
    if queued_ms <= 0 or growth_ms <= 0 or len(training.steps.ranks) > 1:
        return 0.0
    stops = np.zeros(len(training.steps))
    for loss in losses:
        own = training.losses.ms[loss]
        if loss is HostLoss.DATA_WAIT and _waits_often(training, own):
            continue
        stops = stops + np.maximum(own, 0.0)
    return weighted_mean(_hidden(stops, queued_ms, growth_ms), training.weight)


def _waits_often(training: TrainingTime, waits_ms: Floats) -> bool:
    is_waiting = waits_ms[training.settled] > MIN_WAIT_SHARE * training.slow.ordinary_ms
    return float(is_waiting.mean()) >= MOST_WAITING_STEPS


def _hidden(stops_ms: Floats, queued_ms: float, growth_ms: float) -> npt.NDArray[np.float64]:
    """By step, what of a host's stops the queue hides; a stop empties it by as much."""
    hidden = np.zeros(len(stops_ms))
    left = 0.0
    for step, stop in enumerate(stops_ms.tolist()):
        hidden[step] = min(stop, left)
        left = min(left - hidden[step] + growth_ms, queued_ms)
    return hidden
