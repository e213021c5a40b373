"""Steps that are slow for no recorded reason: what they have in common, and how to profile one."""

from __future__ import annotations

import itertools

from stepscope.analyzer.job_time.loss import Loss
from stepscope.analyzer.job_time.step_losses import SlowSteps
from stepscope.analyzer.job_time.steps import JobSteps
from stepscope.analyzer.job_time.training_time import TrainingTime
from stepscope.core.vocabulary import Evidence, Reason

RULE_TIMES = 3
"""Slow steps in a row at which `slow_step()` requests a capture."""
EARLIEST = 8
"""Step from which on a capture is suggested, if there is a slow one that late: earlier ones are not settled."""


def evidence_of(training: TrainingTime, loss: Loss) -> list[Evidence]:
    """How much longer steps get, or what the slow ones share."""
    slow, trend = training.slow, training.trend
    if Reason.STEPS_GET_LONGER in loss.reasons and trend is not None:
        return [Evidence("longer_at_the_end", trend.last_ms / trend.first_ms - 1.0, "ratio")]
    evidence = [Evidence("slow_steps", float(slow.is_slow.sum()), "steps", ranks=slow.late_ranks)]
    if slow.every is not None:
        evidence.append(Evidence("slow_step_every", float(slow.every), "steps"))
    return evidence


def action_for(steps: JobSteps, slow: SlowSteps) -> str:
    """How to see what slow steps do: a capture on request misses those that come alone, as it follows slow ones."""
    rows = [len(list(row)) for is_slow, row in itertools.groupby(slow.is_slow.tolist()) if is_slow]
    if not rows or max(rows) >= RULE_TIMES:
        return "profile(capture_when=slow_step()) profiles these steps"
    if slow.every is not None:
        indices = steps.index[slow.is_slow]
        late = indices[indices >= EARLIEST]
        index = int(late[0] if len(late) else indices[-1])
        wait = max(index - 2, 0)  # a step of warm-up and one beside it are profiled before
        return f"profile(schedule=once(wait={wait})) profiles step {index}, as they come every {slow.every} steps"
    return 'prof.phase("name") around what only some steps run shows which part makes these slow'
