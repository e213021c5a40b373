"""Recorded parts of the steps of compared runs: phases, waits and pauses in all unprofiled steps, and the rest.

A phase (checkpoint, evaluation, one of the training code) is made by the code at steps of its choice: whether a run has
one, and what it takes, is not noise of a step. It is compared by its number and its duration, so that a checkpoint
every fiftieth step is seen, which makes some blocks of steps several times longer than others. All other time is
compared by blocks of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.compare import statistics
from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.analyzer.compare.statistics import Effect, RunFigure
from stepscope.core.documents.comparison import RecordedDifference

EVENT_SPREAD = 0.1
"""Assumed relative standard deviation between runs of what a phase takes: disks and caches differ more than kernels."""
_BOUNDARY = 0.6
"""Standard deviation of the number of phases in a run: it may end just before one, or after. One phase alone is then no
certain difference, two are."""
RUN_DELAY = "run_delay"
"""Time that threads were ready to run and had no CPU: the machine's, not a figure of the code."""
COLD_CACHES = 0.5
MOST_COLD = 0.1
PREEMPTED = 0.04
"""Standard error of a step by others' work beside it: this part of the time without a CPU up to a tenth of the step, as
what runs in between leaves caches cold, and a smaller part of all of that time, of which the kernel tells not all.
Pairs of runs of the same code on two cores with two to nine busy processes differ by less than twice that
(benchmarks/accuracy/compare_pairs.py)."""
NOTABLE_DELAY = 0.02
"""Share of the step from which on the time without a CPU is not counted."""
UNSCHEDULED = ("data_loading", "garbage_collection", "compilation", RUN_DELAY)
"""Recorded parts that come by chance, or in every step."""
REST = "rest"
"""All time of a step without the recorded parts."""

Floats = npt.NDArray[np.float64]
Sides = tuple[Sequence[RunRecord], Sequence[RunRecord]]
_PartOf = Callable[[RunRecord], Floats]


def _steps(run: RunRecord) -> Floats:
    return np.asarray(run.unprofiled_ms, dtype=float)


def _part(name: str) -> _PartOf:
    """The part of each step of a run that has this name, ms; 0 where it has none."""
    return lambda run: np.asarray(run.parts_ms.get(name, np.zeros(len(run.unprofiled_ms))), dtype=float)


def _phases(run: RunRecord) -> Floats:
    """What all phases take of each step of a run, ms."""
    return sum((_part(name)(run) for name in run.parts_ms if name not in UNSCHEDULED), np.zeros(len(_steps(run))))


def _delay(run: RunRecord) -> Floats:
    """Time of each step for which threads had no CPU, ms; 0 in steps with a phase, which has it already."""
    return np.where(_phases(run) > 0, 0.0, _part(RUN_DELAY)(run))


def _without(names: Sequence[str]) -> _PartOf:
    """Each step of a run without these parts, ms."""

    def rest(run: RunRecord) -> Floats:
        parts = (_delay(run) if name == RUN_DELAY else _part(name)(run) for name in names)
        return np.maximum(_steps(run) - sum(parts, np.zeros(1)), 0.0)

    return rest


def phases_of(sides: Sides) -> list[str]:
    """Names of the phases of either side, sorted."""
    return sorted({name for side in sides for run in side for name in run.parts_ms} - set(UNSCHEDULED))


def is_machine_shared(sides: Sides) -> bool:
    """Whether the steps of a CPU job lost a notable part to waiting for a CPU, which is not a figure of the code."""
    runs = [run for side in sides for run in side]
    if not all(run.unprofiled_ms and run.analysis.job.device_kind == "cpu" for run in runs):
        return False
    return any(float(np.mean(_delay(run))) > NOTABLE_DELAY * float(np.mean(_steps(run))) for run in runs)


def undelayed_steps(run: RunRecord) -> Floats:
    """Unprofiled steps of a run without the time for which threads waited for a CPU, ms."""
    return _without([RUN_DELAY])(run)


def error_of_machine_ms(sides: Sides, average: statistics.Average) -> float:
    """Standard error of the difference of two steps by what other processes took from them.

    On a CPU, where that time is not counted: who takes a core leaves its caches cold. On a GPU queued work may hide the
    time, so that it is all in doubt.
    """
    a, b = (float(np.mean([average(_delay(run)) for run in side])) for side in sides)
    step_ms = float(np.mean([average(undelayed_steps(run)) for run in sides[0]]))
    error = min(COLD_CACHES * max(a, b), MOST_COLD * step_ms) + PREEMPTED * max(a, b)
    return error if is_machine_shared(sides) else math.hypot(b - a, error)


def mean_step(sides: Sides, *, assumed_spread: float) -> Effect:
    """Difference of the mean unprofiled step: of its phases, and of the rest by blocks of steps.

    Args:
        assumed_spread: of the rest between runs, ms, for when it cannot be measured.
    """
    phases = phases_of(sides)
    delay = [RUN_DELAY] if is_machine_shared(sides) else []
    rest = _by_blocks(sides, _without([*phases, *delay]), assumed_spread)
    if rest.is_measured or not phases:
        return _by_blocks(sides, _without(delay), assumed_spread)
    events = [_phase_effect(sides, name) for name in phases]
    a, b = (float(np.mean([np.mean(_without(delay)(run)) for run in side])) for side in sides)
    error = math.sqrt(rest.error**2 + sum(event.error**2 for event in events))
    freedom = rest.freedom * (error / rest.error) ** 4 if rest.error else math.inf
    return Effect(a, b, error, freedom, error, is_measured=False)


def _by_blocks(sides: Sides, part: _PartOf, assumed_spread: float) -> Effect:
    a, b = ([part(run) for run in side] for side in sides)
    return statistics.estimate_steps(a, b, np.mean, assumed_spread=assumed_spread)


def _phase_effect(sides: Sides, name: str) -> Effect:
    """Difference of what a phase takes of a mean step: with four runs or more by their spread, else by its number."""
    figures = [[_phase_figure(_part(name)(run)) for run in side] for side in sides]
    if sum(map(len, figures)) >= statistics.MIN_RUNS_TO_MEASURE:
        return statistics.estimate_difference(*figures, assumed_spread=0.0)
    a, b = (float(np.mean([run.value for run in side])) for side in figures)
    within = sum(run.variance / len(side) ** 2 for side in figures for run in side)
    between = sum((EVENT_SPREAD * value) ** 2 / len(side) for value, side in zip((a, b), figures, strict=True))
    error = math.sqrt(within + between)
    return Effect(a, b, error, math.inf, error, is_measured=False)


def _phase_figure(values: Floats) -> RunFigure:
    """Mean per step of a phase that some steps have, with the noise of its number and of its duration."""
    times = values[values > 0]
    if not len(times):
        return RunFigure(0.0)
    spread = float(np.var(times, ddof=1)) if len(times) > 1 else 0.0
    variance = (len(times) * spread + (_BOUNDARY * float(times.mean())) ** 2) / len(values) ** 2
    return RunFigure(float(times.sum()) / len(values), variance)


def recorded_effect(sides: Sides, name: str, *, assumed_spread: float) -> Effect | None:
    """Difference of a recorded part of the mean step; None where the records of a run are missing.

    Args:
        assumed_spread: of the part between runs, ms.
    """
    if not all(run.unprofiled_ms for side in sides for run in side):
        return None
    if name in UNSCHEDULED:
        return _by_blocks(sides, _part(name), assumed_spread)
    return _phase_effect(sides, name)


def compare_recorded(sides: Sides, *, assumed_spread: float) -> list[RecordedDifference]:
    """Differences of the recorded parts of a mean step and of the rest, the largest first; empty without any.

    Args:
        assumed_spread: relative standard deviation of a part between runs.
    """
    if not all(run.unprofiled_ms for side in sides for run in side):
        return []
    step_ms = float(np.mean([np.mean(_steps(run)) for run in sides[0]]))
    present = {name for side in sides for run in side for name, values in run.parts_ms.items() if any(values)}
    waits = [name for name in UNSCHEDULED if name in present]
    phases = [name for name in phases_of(sides) if name in present]
    if not waits and not phases:
        return []
    effects = {name: _phase_effect(sides, name) for name in phases}
    effects |= {name: _by_blocks(sides, _part(name), assumed_spread * step_ms) for name in waits}
    effects[REST] = _by_blocks(sides, _without([*phases, *waits]), assumed_spread * step_ms)
    machine_ms = error_of_machine_ms(sides, np.mean)
    effects |= {name: effects[name].less_certain(machine_ms) for name in (*waits, REST) if name != RUN_DELAY}
    smallest = statistics.MIN_EFFECT * step_ms
    rows = [
        RecordedDifference(name, statistics.judge_difference(effect, smallest=smallest))
        for name, effect in effects.items()
    ]
    return sorted(rows, key=lambda row: -abs(row.ms.change or 0.0))
