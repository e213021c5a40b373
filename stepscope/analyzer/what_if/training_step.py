"""What-if: a prediction for the profiled steps, carried over to the mean step of a job's training time."""

from __future__ import annotations

from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.what_if import PredictedStep
from stepscope.core.vocabulary import Cause

_RECORDED = frozenset({Cause.DATA_LOADING, Cause.CHECKPOINT})
MIN_LOSS_MS = 0.001
"""Least loss in a profiled step of which a fix can be said to recover a part."""


def training_step_ms(prediction: PredictedStep, replayed_step_ms: float, analysis: Analysis) -> float | None:
    """What-if: mean step of training time with a prediction's fix; None where the profiled steps do not show it.

    The fix recovers the same part of its cause's loss in all steps as in the profiled ones; all of a loss that the
    records of the steps measured.

    Args:
        replayed_step_ms: the replay of the profiled steps with nothing changed.
        analysis: of the same job; without records of its steps there is no training time.
    """
    time = analysis.job_time
    row = next((row for row in analysis.root_causes if row.cause is prediction.fix), None)
    if time is None or time.num_settled is None or row is None or (row.ms_per_step or 0.0) < MIN_LOSS_MS:
        return None
    saved_ms = replayed_step_ms - prediction.step_ms
    recovered = min(max(saved_ms / (row.ms_per_step or MIN_LOSS_MS), 0.0), 1.0)
    recovered = 1.0 if prediction.fix in _RECORDED else recovered
    return time.mean_step_ms * (1.0 - recovered * time.breakdown.get(prediction.fix.value, 0.0))
