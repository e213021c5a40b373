"""Differences of the parts of a step: time categories, root causes, kernels, calls and collectives.

Significance: where the step time itself changed, each part is tested at 5 %, because the parts explain that change.
Where it did not, the rows of a table share the 5 % (Bonferroni), so that a long table does not find changes by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

import numpy as np

from stepscope.analyzer.compare import statistics
from stepscope.analyzer.compare.run_record import RunRecord, category_figure, cause_figure
from stepscope.core.documents import comparison
from stepscope.core.documents.analysis import Collective, KernelTime
from stepscope.core.vocabulary import Cause, TimeCategory

KERNEL_SPREAD = 0.03
"""Assumed relative standard deviation of one kernel's time between runs, when there are too few runs to measure it."""

COLLECTIVE_SPREAD = 0.05
"""The same for a transfer, which shares links and competes with compute for GPU memory bandwidth."""

MIN_KERNEL_EFFECT = 0.002
"""Smallest share of the step by which a kernel's time must change to be reported as a change."""

Sides = tuple[Sequence[RunRecord], Sequence[RunRecord]]
RateFigure = Callable[[RunRecord], statistics.RunFigure | None]
_Part = TypeVar("_Part", bound=str)
_Row = TypeVar("_Row", comparison.CategoryDifference, comparison.CauseDifference, comparison.KernelDifference)


@dataclass(frozen=True, slots=True)
class ComparisonBasis:
    """Scale and significance level with which the parts of a step of two runs are compared.

    Attributes:
        step_ms: profiled step of side a.
        step_changed: whether the step time itself changed.
        assumed_spread: relative standard deviation of the step between runs.
    """

    step_ms: float
    step_changed: bool
    assumed_spread: float

    def level(self, num_rows: int) -> float:
        """Significance level of one row in a table of `num_rows`."""
        return statistics.LEVEL if self.step_changed else statistics.LEVEL / max(num_rows, 1)


def compare_categories(sides: Sides, basis: ComparisonBasis) -> list[comparison.CategoryDifference]:
    """Compare time categories present on either side, largest change first."""
    differences = _differences(sides, basis, TimeCategory, category_figures)
    return _largest_first([comparison.CategoryDifference(category, ms) for category, ms in differences.items()])


def compare_causes(sides: Sides, basis: ComparisonBasis) -> list[comparison.CauseDifference]:
    """Compare root causes present on either side, largest change first."""
    differences = _differences(sides, basis, Cause, cause_figures)
    return _largest_first(
        [
            comparison.CauseDifference(cause, ms, *(_culprits(side, cause) for side in sides))
            for cause, ms in differences.items()
        ]
    )


def compare_kernels(sides: Sides, basis: ComparisonBasis) -> list[comparison.KernelDifference]:
    """Compare kernels of either side by name, largest change first."""
    tables = [[{k.name: k for k in run.analysis.roofline.kernels} for run in side] for side in sides]
    names = dict.fromkeys(name for side in tables for table in side for name in table)
    return _compare_kernel_times(names, sides, tables, basis)


def compare_calls(sides: Sides, basis: ComparisonBasis) -> list[comparison.KernelDifference]:
    """Compare kernel time by operator and input shapes, for the calls that every run lists.

    An analysis lists only its largest calls, so a call that one run does not list may still have happened there.
    """
    tables = [[{k.name: k for k in run.analysis.roofline.by_call} for run in side] for side in sides]
    every = [table for side in tables for table in side]
    return _compare_kernel_times([name for name in every[0] if all(name in t for t in every)], sides, tables, basis)


def compare_collectives(sides: Sides, basis: ComparisonBasis) -> list[comparison.CollectiveDifference]:
    """Compare collectives of either side by group, kind and size, largest change first."""
    tables = [[{_key(row): row for row in run.analysis.collectives} for run in side] for side in sides]
    keys = dict.fromkeys(key for side in tables for table in side for key in table)
    rows = [_compare_collective(key, sides, tables, basis, basis.level(2 * len(keys))) for key in keys]
    return sorted(rows, key=lambda row: -(abs(row.transfer_ms.change or 0.0) + abs(row.wait_ms.change or 0.0)))


def compare_rates(sides: Sides, figure: RateFigure, spread: float) -> comparison.Difference:
    """Comparison of runs: a rate (more is better); `spread` is its relative standard deviation between runs."""
    found = estimate_rates(sides, figure, spread)
    if found is not None:
        return _judge_rate(found)
    known = [[rate.value for run in side if (rate := figure(run)) is not None] for side in sides]
    a, b = (fmean(side) if side else None for side in known)
    return comparison.Difference(a, b)


def estimate_rates(sides: Sides, figure: RateFigure, spread: float) -> statistics.Effect | None:
    """Estimated difference of a rate between two sides of runs; None if no run of a side has it."""
    a, b = ([rate for run in side if (rate := figure(run)) is not None] for side in sides)
    if not a or not b:
        return None
    return statistics.estimate_difference(a, b, assumed_spread=spread * fmean(rate.value for rate in a))


def category_figures(sides: Sides, category: TimeCategory) -> statistics.Figures:
    """Milliseconds per step in a time category, for each run of both compared sides."""
    a, b = ([category_figure(run.analysis, category) for run in side] for side in sides)
    return a, b


def cause_figures(sides: Sides, cause: Cause) -> statistics.Figures:
    """Milliseconds per step attributed to a cause, for each run of both compared sides."""
    a, b = ([cause_figure(run.analysis, cause) for run in side] for side in sides)
    return a, b


def kernel_figures(sides: Sides, chosen: Sequence[Sequence[Sequence[KernelTime]]]) -> statistics.Figures:
    """Milliseconds per step of the chosen kernels, summed, for each run of both compared sides.

    Their noise is that of single steps where all have times for these, which analyses of older versions do not keep.
    """
    by_step = all(kernel.step_ms for side in chosen for kernels in side for kernel in kernels)

    def figure(run: RunRecord, kernels: Sequence[KernelTime]) -> statistics.RunFigure:
        if by_step and kernels:
            return statistics.summarise_steps(np.sum([k.step_ms for k in kernels], axis=0).tolist(), np.mean)
        return statistics.RunFigure(sum(k.ms for k in kernels) / run.num_rank_steps)

    a, b = (list(map(figure, side, own)) for side, own in zip(sides, chosen, strict=True))
    return a, b


def _largest_first(rows: list[_Row]) -> list[_Row]:
    return sorted(rows, key=lambda row: -abs(row.ms.change or 0.0))


def _differences(
    sides: Sides,
    basis: ComparisonBasis,
    parts: Iterable[_Part],
    figures_of: Callable[[Sides, _Part], statistics.Figures],
) -> dict[_Part, comparison.Difference]:
    """comparison.Difference of each part that any run has."""
    figures = {part: figures_of(sides, part) for part in parts}
    present = {part: pair for part, pair in figures.items() if any(run.value for side in pair for run in side)}
    level = basis.level(len(present))
    return {part: _difference(pair, basis, level) for part, pair in present.items()}


def _difference(pair: statistics.Figures, basis: ComparisonBasis, level: float) -> comparison.Difference:
    found = statistics.estimate_difference(*pair, assumed_spread=basis.assumed_spread * basis.step_ms)
    return statistics.judge_difference(found, smallest=statistics.MIN_EFFECT * basis.step_ms, level=level)


def _culprits(side: Sequence[RunRecord], cause: Cause) -> list[int]:
    rows = [row for run in side for row in run.analysis.root_causes if row.cause is cause]
    return list(dict.fromkeys(rank for row in rows for rank in row.ranks))


def _compare_kernel_times(
    names: Iterable[str], sides: Sides, tables: Sequence[Sequence[Mapping[str, KernelTime]]], basis: ComparisonBasis
) -> list[comparison.KernelDifference]:
    """One row per name; `tables` holds the kernels of each run by name."""
    names = list(names)
    level = basis.level(len(names))
    rows = []
    for name in names:
        chosen = [[[k] if (k := table.get(name)) else [] for table in side] for side in tables]
        times = kernel_figures(sides, chosen)
        calls = [
            fmean(sum(k.count for k in kernels) / run.num_rank_steps for run, kernels in zip(side, own, strict=True))
            for side, own in zip(sides, chosen, strict=True)
        ]
        found = statistics.estimate_difference(*times, assumed_spread=KERNEL_SPREAD * larger_mean(times))
        difference = statistics.judge_difference(found, smallest=MIN_KERNEL_EFFECT * basis.step_ms, level=level)
        rows.append(comparison.KernelDifference(name, _new_or_gone(difference, calls), *calls))
    return _largest_first(rows)


def larger_mean(sides: Sequence[Sequence[statistics.RunFigure]]) -> float:
    """The larger of both compared sides' mean figures."""
    return max(fmean(run.value for run in side) for side in sides)


def _new_or_gone(difference: comparison.Difference, calls: Sequence[float]) -> comparison.Difference:
    """A significant change of something that one side never calls is reported as new or gone."""
    if difference.state is comparison.Change.NOT_SEEN or all(calls):
        return difference
    return replace(difference, state=comparison.Change.NEW if calls[1] else comparison.Change.GONE)


_CollectiveKey = tuple[str, str, int | None, str | None]


def _key(row: Collective) -> _CollectiveKey:
    return row.group, row.kind, row.bytes, row.dimension


def _compare_collective(
    key: _CollectiveKey,
    sides: Sides,
    tables: Sequence[Sequence[Mapping[_CollectiveKey, Collective]]],
    basis: ComparisonBasis,
    level: float,
) -> comparison.CollectiveDifference:
    num_members = key[0].count(",") + 1
    transfers, waits, bandwidths, calls = [], [], [], []
    for side, by_run in zip(sides, tables, strict=True):
        rows = [(by_key.get(key), run.num_steps) for run, by_key in zip(side, by_run, strict=True)]
        transfers.append([statistics.RunFigure((c.transfer_ms or 0.0) / steps if c else 0.0) for c, steps in rows])
        waits.append(
            [statistics.RunFigure((c.wait_ms or 0.0) / steps / num_members if c else 0.0) for c, steps in rows]
        )
        bandwidths.append([statistics.RunFigure(c.busbw_gbs) for c, _ in rows if c and c.busbw_gbs is not None])
        calls.append(fmean(c.count / steps if c else 0.0 for c, steps in rows))
    if all(bandwidths):
        spread = COLLECTIVE_SPREAD * larger_mean(bandwidths)
        bandwidth = _judge_rate(statistics.estimate_difference(*bandwidths, assumed_spread=spread), level)
    else:
        a, b = (fmean(run.value for run in side) if side else None for side in bandwidths)
        bandwidth = comparison.Difference(a, b)
    moved = statistics.estimate_difference(*transfers, assumed_spread=COLLECTIVE_SPREAD * larger_mean(transfers))
    return comparison.CollectiveDifference(
        *key[:3],
        calls[0],
        calls[1],
        _new_or_gone(
            statistics.judge_difference(moved, smallest=MIN_KERNEL_EFFECT * basis.step_ms, level=level), calls
        ),
        _new_or_gone(_difference((waits[0], waits[1]), basis, level), calls),
        bandwidth,
    )


def _judge_rate(found: statistics.Effect, level: float = statistics.LEVEL) -> comparison.Difference:
    return statistics.judge_difference(
        found,
        smallest=statistics.MIN_EFFECT * abs(found.a),
        rose=comparison.Change.HIGHER,
        fell=comparison.Change.LOWER,
        level=level,
    )
