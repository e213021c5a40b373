"""Parts of the step that changed: by category, root cause, kernel and collective.

Parts are tested one by one at 5 % only where the step time itself changed: they explain it. Where it did not, each
table shares the 5 % among its rows, so that looking at many rows finds no change where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyzer.compare.run_record import RunRecord, cause_figure, heading_figure
from stepscope.analyzer.compare.statistics import (
    LEVEL,
    MIN_EFFECT,
    Estimate,
    Figures,
    RunFigure,
    estimate,
    judge,
    summarise_steps,
    unknown,
)
from stepscope.core.documents.analysis import Collective, KernelTime
from stepscope.core.documents.comparison import (
    CategoryDifference,
    CauseDifference,
    Change,
    CollectiveDifference,
    Difference,
    KernelDifference,
)
from stepscope.core.vocabulary.categories import TimeCategory
from stepscope.core.vocabulary.causes import Cause

KERNEL_SPREAD = 0.03
"""Assumed of one kernel's time between runs, where they are too few to measure it."""

COLLECTIVE_SPREAD = 0.05
"""The same of a transfer: it shares links and competes with compute for the GPU's memory."""

MIN_KERNEL_EFFECT = 0.002
"""A kernel whose time changed by a smaller share of the step is not called changed."""

Sides = tuple[Sequence[RunRecord], Sequence[RunRecord]]
RateFigure = Callable[[RunRecord], RunFigure | None]


@dataclass(frozen=True, slots=True)
class ComparisonBasis:
    """What all parts are judged on.

    Attributes:
        step_ms: a's captured step.
        step_changed: whether the step time itself changed.
        assumed_spread: of a run's step between runs, as a share of it.
    """

    step_ms: float
    step_changed: bool
    assumed_spread: float

    def level(self, num_rows: int) -> float:
        return LEVEL if self.step_changed else LEVEL / max(num_rows, 1)


def compare_headings(sides: Sides, ground: ComparisonBasis) -> list[CategoryDifference]:
    """All headings that either side has, the largest change first."""
    present = {h: pair for h in TimeCategory if _is_there(pair := heading_figures(sides, h))}
    level = ground.level(len(present))
    rows = [CategoryDifference(h, _part(pair, ground, level)) for h, pair in present.items()]
    return sorted(rows, key=lambda row: -abs(row.ms.change or 0.0))


def compare_causes(sides: Sides, ground: ComparisonBasis) -> list[CauseDifference]:
    """All causes that either side has, the largest change first."""
    present = {c: pair for c in Cause if _is_there(pair := cause_figures(sides, c))}
    level = ground.level(len(present))
    rows = [
        CauseDifference(c, _part(pair, ground, level), _culprits(sides[0], c), _culprits(sides[1], c))
        for c, pair in present.items()
    ]
    return sorted(rows, key=lambda row: -abs(row.ms.change or 0.0))


def compare_kernels(sides: Sides, ground: ComparisonBasis) -> list[KernelDifference]:
    """All kernels of either side by name, the largest change first."""
    tables = [[{k.name: k for k in run.analysis.roofline.kernels} for run in side] for side in sides]
    names = dict.fromkeys(name for side in tables for table in side for name in table)
    rows = [_kernel(name, sides, tables, ground, ground.level(len(names))) for name in names]
    return sorted(rows, key=lambda row: -abs(row.ms.change or 0.0))


def compare_calls(sides: Sides, ground: ComparisonBasis) -> list[KernelDifference]:
    """Kernel time by operator and the shapes it was called with, where every run has the call.

    An analysis lists its largest calls alone, so that one that is missing from a list need not be gone.
    """
    tables = [[{k.name: k for k in run.analysis.roofline.by_call} for run in side] for side in sides]
    every = [table for side in tables for table in side]
    names = [name for name in every[0] if all(name in table for table in every)]
    rows = [_kernel(name, sides, tables, ground, ground.level(len(names))) for name in names]
    return sorted(rows, key=lambda row: -abs(row.ms.change or 0.0))


def compare_collectives(sides: Sides, ground: ComparisonBasis) -> list[CollectiveDifference]:
    """All collectives of either side by group, kind and size, the largest change first."""
    tables = [[{_key(row): row for row in run.analysis.collectives} for run in side] for side in sides]
    keys = dict.fromkeys(key for side in tables for table in side for key in table)
    rows = [_collective(key, sides, tables, ground, ground.level(2 * len(keys))) for key in keys]
    return sorted(rows, key=lambda row: -(abs(row.transfer_ms.change or 0.0) + abs(row.wait_ms.change or 0.0)))


def compare_rates(sides: Sides, figure: RateFigure, spread: float) -> Difference:
    """A figure where more is better; `spread` is a share of it."""
    found = estimate_rates(sides, figure, spread)
    if found is not None:
        return judge(found, smallest=MIN_EFFECT * abs(found.a), rose=Change.HIGHER, fell=Change.LOWER)
    known = [[rate.value for run in side if (rate := figure(run)) is not None] for side in sides]
    return unknown(*(_mean(side) if side else None for side in known))


def estimate_rates(sides: Sides, figure: RateFigure, spread: float) -> Estimate | None:
    """The difference of a rate over the runs that know it; None where a side has none."""
    a, b = ([rate for run in side if (rate := figure(run)) is not None] for side in sides)
    if not a or not b:
        return None
    return estimate(a, b, assumed_spread=spread * _mean(rate.value for rate in a))


def heading_figures(sides: Sides, heading: TimeCategory) -> Figures:
    """Milliseconds a step under a heading, of each run of both sides."""
    a, b = ([heading_figure(run.analysis, heading) for run in side] for side in sides)
    return a, b


def cause_figures(sides: Sides, cause: Cause) -> Figures:
    """Milliseconds a step charged to a cause, of each run of both sides."""
    a, b = ([cause_figure(run.analysis, cause) for run in side] for side in sides)
    return a, b


def _is_there(pair: Figures) -> bool:
    return any(run.value for side in pair for run in side)


def _part(pair: Figures, ground: ComparisonBasis, level: float) -> Difference:
    found = estimate(*pair, assumed_spread=ground.assumed_spread * ground.step_ms)
    return judge(found, smallest=MIN_EFFECT * ground.step_ms, level=level)


def _culprits(side: Sequence[RunRecord], cause: Cause) -> list[int]:
    rows = [row for run in side for row in run.analysis.root_causes if row.cause is cause]
    return list(dict.fromkeys(rank for row in rows for rank in row.ranks))


def _kernel(
    name: str, sides: Sides, tables: list[list[dict[str, KernelTime]]], ground: ComparisonBasis, level: float
) -> KernelDifference:
    found_in = [[[k] if (k := by_name.get(name)) else [] for by_name in by_run] for by_run in tables]
    by_step = have_steps(kernel for side in found_in for run in side for kernel in run)
    times = [kernel_figures(side, own, by_step=by_step) for side, own in zip(sides, found_in, strict=True)]
    calls = [
        _mean(sum(k.count for k in kernels) / run.num_rank_steps for run, kernels in zip(side, own, strict=True))
        for side, own in zip(sides, found_in, strict=True)
    ]
    scale = max(_mean(run.value for run in side) for side in times)
    found = estimate(times[0], times[1], assumed_spread=KERNEL_SPREAD * scale)
    difference = judge(found, smallest=MIN_KERNEL_EFFECT * ground.step_ms, level=level)
    return KernelDifference(name, _came_or_went(difference, calls), calls[0], calls[1])


def kernel_figures(
    side: Sequence[RunRecord], chosen: Sequence[Sequence[KernelTime]], *, by_step: bool
) -> list[RunFigure]:
    """Milliseconds a step of some kernels of each run together; `by_step` with the noise of the run's steps."""
    figures = []
    for run, kernels in zip(side, chosen, strict=True):
        if by_step and kernels:
            figures.append(summarise_steps(np.sum([k.step_ms for k in kernels], axis=0).tolist(), np.mean))
        else:
            figures.append(RunFigure(sum(k.ms for k in kernels) / run.num_rank_steps))
    return figures


def have_steps(kernels: Iterable[KernelTime]) -> bool:
    """Whether the time of all of them is known step by step; analyses before it was kept have none."""
    return all(kernel.step_ms for kernel in kernels)


def _came_or_went(difference: Difference, calls: Sequence[float]) -> Difference:
    """New and gone are no matter of noise: a kernel that is never called on one side was taken away or added."""
    if difference.state is Change.NOT_SEEN or all(calls):
        return difference
    return replace(difference, state=Change.NEW if calls[1] else Change.GONE)


_CollectiveKey = tuple[str, str, int | None, str | None]


def _key(row: Collective) -> _CollectiveKey:
    return row.group, row.kind, row.bytes, row.dimension


def _collective(
    key: _CollectiveKey,
    sides: Sides,
    tables: list[list[dict[_CollectiveKey, Collective]]],
    ground: ComparisonBasis,
    level: float,
) -> CollectiveDifference:
    members = key[0].count(",") + 1
    transfers, waits, bandwidths, calls = [], [], [], []
    for side, by_run in zip(sides, tables, strict=True):
        rows = [(by_key.get(key), run.num_steps) for run, by_key in zip(side, by_run, strict=True)]
        transfers.append([RunFigure((c.transfer_ms or 0.0) / steps if c else 0.0) for c, steps in rows])
        waits.append([RunFigure((c.wait_ms or 0.0) / steps / members if c else 0.0) for c, steps in rows])
        bandwidths.append([RunFigure(c.busbw_gbs) for c, _ in rows if c and c.busbw_gbs is not None])
        calls.append(_mean(c.count / steps if c else 0.0 for c, steps in rows))
    spread = COLLECTIVE_SPREAD * max(_mean(run.value for run in side) for side in transfers)
    moved = judge(
        estimate(transfers[0], transfers[1], assumed_spread=spread),
        smallest=MIN_KERNEL_EFFECT * ground.step_ms,
        level=level,
    )
    waited = _part((waits[0], waits[1]), ground, level)
    return CollectiveDifference(
        *key[:3],
        calls[0],
        calls[1],
        _came_or_went(moved, calls),
        _came_or_went(waited, calls),
        _bandwidth(bandwidths, level),
    )


def _bandwidth(sides: list[list[RunFigure]], level: float) -> Difference:
    if not all(sides):
        means = [_mean(run.value for run in side) if side else None for side in sides]
        return unknown(means[0], means[1])
    spread = COLLECTIVE_SPREAD * max(_mean(run.value for run in side) for side in sides)
    found = estimate(sides[0], sides[1], assumed_spread=spread)
    return judge(found, smallest=MIN_EFFECT * found.a, rose=Change.HIGHER, fell=Change.LOWER, level=level)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
