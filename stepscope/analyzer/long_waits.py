"""Steps that were long because ranks waited, and which ranks those were.

Ranks that wait for each other at every step take equally long, whichever of them was late: a rank that waits for its
data is named by that wait, and one that is alone in a phase (a checkpoint, an evaluation) by that phase, while the time
of the others passes in the phase where they wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from stepscope.core.documents.steps import DATA_WAIT, LongWait

_MIN_STEPS = 5
"""Fewer settled steps do not show what is usual."""
_MIN_EXCESS = 0.1
"""Least excess of a step over the usual one."""
_MIN_RATIO = 3.0
"""Least ratio of a long wait to the usual one."""
_MIN_SHARE = 0.5
"""Share of a step's excess that a wait must explain, and of a wait that each rank with it must have."""


@dataclass(frozen=True, slots=True)
class StepWaits:
    """Waits within one step, in ms.

    Attributes:
        data: by rank; the rank is None where a log does not say.
        phases: by phase and rank.
    """

    index: int
    ms: float
    data: Mapping[int | None, float]
    phases: Mapping[str, Mapping[int | None, float]]


def long_waits(steps: Sequence[StepWaits]) -> list[LongWait]:
    """Long waits in settled steps, in order."""
    if len(steps) < _MIN_STEPS:
        return []
    usual_ms = median(step.ms for step in steps)
    usual_data = median(max(step.data.values(), default=0.0) for step in steps)
    usual_phases = {
        name: median(median(step.phases[name].values()) if step.phases.get(name) else 0.0 for step in steps)
        for name in {name for step in steps for name in step.phases}
    }
    found = []
    for step in steps:
        if step.ms - usual_ms > max(_MIN_EXCESS * usual_ms, 1.0):
            wait = _data_wait(step, usual_data, usual_ms) or _lone_phase(step, usual_phases, usual_ms)
            if wait is not None:
                found.append(wait)
    return found


def _data_wait(step: StepWaits, usual: float, usual_step_ms: float) -> LongWait | None:
    longest = max(step.data.values(), default=0.0)
    gain = longest - usual
    if longest < _MIN_RATIO * usual or gain < _MIN_SHARE * (step.ms - usual_step_ms):
        return None
    ranks = [rank for rank, wait in step.data.items() if rank is not None and wait - usual >= _MIN_SHARE * gain]
    return LongWait(step.index, DATA_WAIT, sorted(ranks), longest, usual, step.ms, usual_step_ms)


def _lone_phase(step: StepWaits, usual: Mapping[str, float], usual_step_ms: float) -> LongWait | None:
    """The shortest phase, as phases may lie inside one another, that explains the step on fewer than half the ranks."""
    found = []
    for name, by_rank in step.phases.items():
        least = usual[name] + _MIN_SHARE * (step.ms - usual_step_ms)
        ranks = [
            rank for rank, ms in by_rank.items() if rank is not None and ms >= max(least, _MIN_RATIO * usual[name])
        ]
        if ranks and 2 * len(ranks) < len(by_rank):
            longest = max(by_rank.values())
            found.append(LongWait(step.index, name, sorted(ranks), longest, usual[name], step.ms, usual_step_ms))
    return min(found, key=lambda wait: wait.ms, default=None)
