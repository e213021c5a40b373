"""How do two sides differ, all told? Runs of both sides in, the whole comparison out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.analyzer.compare.estimate import MIN_EFFECT, Average, Estimate, estimate, judge, summarise_steps
from stepscope.analyzer.compare.findings import how_much_is_known, micro_batch_trap, stall_notice, summarise
from stepscope.analyzer.compare.gates import Condition, judge_gate
from stepscope.analyzer.compare.likeness import unlikeness
from stepscope.analyzer.compare.parts import (
    COLLECTIVE_SPREAD,
    Ground,
    Sides,
    compare_calls,
    compare_causes,
    compare_collectives,
    compare_headings,
    compare_kernels,
    compare_rates,
)
from stepscope.analyzer.compare.run_record import RunRecord, bandwidth_figure, captured_steps, mfu_figure
from stepscope.core.analysis import Notice
from stepscope.core.comparison import Change, ComparedSide, Comparison, MemoryDifference

RUN_SPREAD = 0.015
"""Assumed standard deviation of the step time between runs of the same code on the same kind of node, as a share.

Six runs of a host-bound GPT on one node of 2 x H100 differed by 1.9 % beyond their own noise (docs/compare.md); kernels
that keep the GPU busy differ less, other nodes more."""

UNPROFILED, CAPTURED = "unprofiled", "captured"


def compare(
    a: Sequence[RunRecord],
    b: Sequence[RunRecord],
    *,
    names: tuple[str, str],
    conditions: Sequence[Condition] = (),
    assumed_spread: float = RUN_SPREAD,
    notices: Sequence[Notice] = (),
) -> Comparison:
    """Compare two sides.

    Args:
        a, b: runs, at least one a side.
        names: what the sides are called.
        conditions: what `--fail-on` asks.
        assumed_spread: of the step between runs, as a share of it; used while the runs are too few to measure it.
        notices: what was found while the runs were read.
    """
    sides: Sides = (a, b)
    source = UNPROFILED if all(run.unprofiled_ms for run in (*a, *b)) else CAPTURED
    steps = [[_steps(run, source) for run in side] for side in sides]
    median, mean = (_estimate(steps, average, assumed_spread) for average in (np.median, np.mean))
    step_time, step_time_mean = (judge(found, smallest=MIN_EFFECT * found.a) for found in (median, mean))
    changed = step_time.state is not Change.NOT_SEEN or step_time_mean.state is not Change.NOT_SEEN
    ground = Ground(float(np.mean([run.step_ms for run in a])), changed, assumed_spread)
    causes = compare_causes(sides, ground)
    spread = median.run_spread / median.a if median.is_measured else assumed_spread
    counts = [len(run) for side in steps for run in side]
    known = how_much_is_known(sides, step_time, spread=spread, source=source, num_steps=counts)
    return Comparison(
        a=_side(names[0], a, source, steps[0]),
        b=_side(names[1], b, source, steps[1]),
        summary=summarise(step_time, causes),
        step_time=step_time,
        step_time_mean=step_time_mean,
        run_spread=spread,
        run_spread_source="measured" if median.is_measured else "assumed",
        mfu=compare_rates(sides, mfu_figure, assumed_spread),
        busbw_gbs=compare_rates(sides, bandwidth_figure, COLLECTIVE_SPREAD),
        headings=compare_headings(sides, ground),
        causes=causes,
        kernels=compare_kernels(sides, ground),
        calls=compare_calls(sides, ground),
        collectives=compare_collectives(sides, ground),
        memory=_memory(sides),
        gates=[judge_gate(condition, sides, ground, median, mean) for condition in conditions],
        findings=[known, *stall_notice(step_time, step_time_mean), *micro_batch_trap(sides, step_time)],
        warnings=[*notices, *unlikeness(a, b)],
    )


def _steps(run: RunRecord, source: str) -> Sequence[float]:
    return run.unprofiled_ms if source == UNPROFILED else captured_steps(run.analysis)


def _estimate(steps: list[list[Sequence[float]]], average: Average, assumed_spread: float) -> Estimate:
    a, b = ([summarise_steps(run, average) for run in side] for side in steps)
    return estimate(a, b, assumed_spread=assumed_spread * float(np.mean([run.value for run in a])))


def _side(name: str, runs: Sequence[RunRecord], source: str, steps: Sequence[Sequence[float]]) -> ComparedSide:
    every = np.concatenate([np.asarray(run, dtype=float) for run in steps])
    return ComparedSide(
        name=name,
        runs=[run.name for run in runs],
        step_source=source,
        num_steps=[len(run) for run in steps],
        median_ms=float(np.median(every)),
        mean_ms=float(np.mean(every)),
        p95_ms=float(np.quantile(every, 0.95)),
    )


def _memory(sides: Sides) -> list[MemoryDifference]:
    a, b = (_largest_memory(side) for side in sides)
    return [MemoryDifference(name, a[name], b[name]) for name in sorted(a.keys() & b.keys())]


def _largest_memory(side: Sequence[RunRecord]) -> dict[str, float]:
    """Bytes by the figure's name, over all runs of a side."""
    names = {name for run in side for name in run.memory_bytes}
    return {name: max(run.memory_bytes.get(name, 0.0) for run in side) for name in names}
