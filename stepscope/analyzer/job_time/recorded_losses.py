"""Recorded losses of a job: what the step records name, as far as a GPU can have been idle for it.

A host's pause costs nothing while its GPU has work queued. A floor, the GPU's work of a step, bounds what can be lost;
without one, how steps get longer with the loss.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.analyzer.blame.root_causes import ranks_to_name
from stepscope.analyzer.job_time.loss import BOUND, TELEMETRY, Loss
from stepscope.analyzer.job_time.step_losses import ranks_by_loss
from stepscope.analyzer.job_time.steps import ON_HOST, Floats, HostLoss
from stepscope.analyzer.job_time.training_time import TrainingTime
from stepscope.core.vocabulary import Cause, Reason

CAUSE_OF_LOSS = {
    HostLoss.CHECKPOINT: (Cause.CHECKPOINT, None),
    HostLoss.EVALUATION: (Cause.EVALUATION, None),
    HostLoss.DATA_WAIT: (Cause.DATA_LOADING, None),
    HostLoss.COLLECTION: (Cause.HOST_BOUND, Reason.GC),
    HostLoss.COMPILATION: (Cause.HOST_BOUND, Reason.COMPILE),
    HostLoss.RUN_DELAY: (Cause.CONTENTION, Reason.CPU_LIMITED),
    HostLoss.LATENESS: (Cause.STRAGGLER, None),
}

MAX_QUEUED_STEPS = 4
"""Steps of GPU work behind which a host's pause can hide: a launch queue holds about a thousand launches."""
MOSTLY_EXPOSED = 0.5
"""Least part of a loss measured on the host that the queue cannot have hidden, for its length to be taken as it is."""

NUM_FOLLOWING = 2
"""Steps after a pause that it may affect: a GPU feels it late, and a host that was ahead catches up."""
MIN_FREEDOM = 8
"""Fewer steps beyond the fitted numbers do not show whether they get longer with a loss."""


def recorded_losses(training: TrainingTime, weight: Floats, floor_ms: float | None) -> list[Loss]:
    """Losses that the records of the steps name, in the order in which an instant counts to them.

    Args:
        weight: by step.
        floor_ms: the GPU's work of a step; None where unknown.
    """
    losses, step_ms = [], weighted_mean(training.steps.period_ms, weight)
    for loss, (cause, reason) in CAUSE_OF_LOSS.items():
        by_step = training.losses
        sizes = (weighted_mean(of[loss], weight) for of in (by_step.ms, by_step.alone_ms, by_step.own_ms))
        milliseconds, alone_ms, own_ms = (min(max(size, 0.0), step_ms) for size in sizes)
        ranks = ranks_to_name(ranks_by_loss(training.steps, training.losses, loss, weight))
        reasons = [] if reason is None else [reason]
        losses.append(
            Loss(cause, milliseconds, reasons, ranks, TELEMETRY, recorded=loss, alone_ms=alone_ms, own_ms=own_ms)
        )
    losses = _within(losses, max(step_ms - (floor_ms or 0.0), 0.0))
    if floor_ms is not None:
        return [_bounded(training, weight, loss, floor_ms) for loss in losses]
    if training.steps.on_device:
        return [_bounded_by_length(training, weight, loss) for loss in losses]
    return losses


def weighted_mean(by_step: Floats, weight: Floats) -> float:
    """Mean over steps, each counted by its weight; 0 without any."""
    total = float(weight.sum())
    return float((weight * by_step).sum()) / total if total else 0.0


def _within(losses: list[Loss], idle_ms: float) -> list[Loss]:
    """The losses cut to the time that can be lost, on a GPU its idle time; the first cause is kept longest."""
    kept = []
    for loss in losses:
        own = min(loss.ms, idle_ms)
        idle_ms -= own
        kept.append(loss.limited(own))
    return kept


def _bounded(training: TrainingTime, weight: Floats, loss: Loss, floor_ms: float) -> Loss:
    """A loss that was measured on the host alone: between what the GPU's queue cannot hide, and all of it.

    It counts as measured where most of it is too long to hide, else as the middle of its bounds.
    """
    by_step = _perhaps_hidden(training, loss)
    if by_step is None:
        return loss
    too_long = np.maximum(by_step - MAX_QUEUED_STEPS * floor_ms, 0.0)
    least_ms = min(max(weighted_mean(by_step, weight) - floor_ms, weighted_mean(too_long, weight), 0.0), loss.ms)
    return _at_least(loss, least_ms)


def _bounded_by_length(training: TrainingTime, weight: Floats, loss: Loss) -> Loss:
    """The same without a floor: what the queue hides does not make steps longer, so at least the part by which they get
    longer with it was exposed."""
    by_step = _perhaps_hidden(training, loss)
    if by_step is None:
        return loss
    rows = np.flatnonzero(weight > 0)
    rows = rows[rows >= NUM_FOLLOWING]
    held_up = np.stack([by_step[rows - lag] for lag in range(NUM_FOLLOWING + 1)], axis=1)
    freedom = len(rows) - held_up.shape[1] - 1
    if freedom < MIN_FREEDOM:
        return _at_least(loss, 0.0)
    length = (training.losses.rest_ms + by_step)[rows]
    length, held_up = length - length.mean(), held_up - held_up.mean(axis=0)
    inverse = np.linalg.pinv(held_up.T @ held_up, hermitian=True)
    effects = inverse @ held_up.T @ length
    residual = length - held_up @ effects
    error = float(np.sqrt(max((residual**2).sum() / freedom * inverse.sum(), 0.0)))
    exposed = float(effects.sum()) - 2.0 * error
    return _at_least(loss, min(max(exposed, 0.0), 1.0) * loss.ms)


def _perhaps_hidden(training: TrainingTime, loss: Loss) -> Floats | None:
    """By step, a loss that was measured on the host alone, so that queued work may hide it; None for any other."""
    if loss.recorded not in (*ON_HOST, HostLoss.DATA_WAIT) or loss.recorded not in training.steps.unmeasured:
        return None
    return training.losses.ms[loss.recorded]


def _at_least(loss: Loss, least_ms: float) -> Loss:
    if least_ms >= MOSTLY_EXPOSED * loss.ms:
        return loss
    return replace(loss.limited((least_ms + loss.ms) / 2.0), basis=BOUND, least_ms=least_ms, most_ms=loss.ms)
