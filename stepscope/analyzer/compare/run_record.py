"""What does a comparison need of one run, and how do its figures read, step by step?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.analyzer.compare.estimate import RunFigure, correlation_of_blocks, summarise_steps
from stepscope.core.analysis import Analysis, StepLedger
from stepscope.core.headings import Heading
from stepscope.core.run_layout import RunManifest

_BOOTSTRAP_WIDTH = 2 * 1.6449
"""Standard deviations between the 5th and the 95th percentile, which root-cause intervals give."""

_WIDTH_OF_TWO = 2.0
"""The same of two steps: a quarter of the resamples draw one twice, so that the interval ends at the steps themselves,
which lie two standard deviations of their mean apart."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run.

    Attributes:
        name: what to call it.
        analysis: its captured steps.
        manifest: its run.json; None where it has none.
        unprofiled_ms: its settled steps outside of captures, in order; empty without telemetry.
        tokens: median tokens a step, where the training loop told them.
        memory_bytes: largest value of each figure about memory that the training loop told.
    """

    name: str
    analysis: Analysis
    manifest: RunManifest | None = None
    unprofiled_ms: Sequence[float] = ()
    tokens: float | None = None
    memory_bytes: Mapping[str, float] = field(default_factory=dict)

    @property
    def step_ms(self) -> float:
        """The captured step, the scale of all parts."""
        return float(np.median(captured_steps(self.analysis)))

    @property
    def num_steps(self) -> int:
        """Captured steps of the job: what totals of collectives are divided by. A damaged analysis may tell none."""
        return max(self.analysis.job.num_steps, 1)

    @property
    def num_rank_steps(self) -> int:
        """Captured steps of all ranks together: what totals of kernels are divided by."""
        return sum(len(rank.steps) for rank in self.analysis.ranks)


def whole_steps(steps: Sequence[StepLedger]) -> Sequence[StepLedger]:
    """The last step ends with the trace, not with the next one's beginning; it counts only when it is alone."""
    return steps[:-1] if len(steps) > 1 else steps


def captured_steps(analysis: Analysis) -> list[float]:
    """Milliseconds of each whole captured step: the median over ranks, which wait for each other at every step."""
    by_index: dict[int, list[float]] = defaultdict(list)
    for rank in analysis.ranks:
        for step in whole_steps(rank.steps):
            by_index[step.index].append(step.ms)
    return [float(np.median(by_index[index])) for index in sorted(by_index)]


def heading_figure(analysis: Analysis, heading: Heading) -> RunFigure:
    """Milliseconds a step under a heading: its share of all ranks' time in each whole step, so that headings add up to
    the mean step."""
    by_index: dict[int, list[StepLedger]] = defaultdict(list)
    for rank in analysis.ranks:
        for step in whole_steps(rank.steps):
            by_index[step.index].append(step)
    parts = []
    for index in sorted(by_index):
        length = [step.ms for step in by_index[index]]
        booked = sum(step.ledger.get(heading, 0.0) * step.ms for step in by_index[index])
        parts.append(booked / sum(length) * float(np.median(length)) if any(length) else 0.0)
    return summarise_steps(parts, np.mean)


def cause_figure(analysis: Analysis, cause: str) -> RunFigure:
    """Milliseconds a step charged to a cause, so that causes add up to the mean whole step, as headings do; its noise
    is that of the bootstrap over steps."""
    row = next((row for row in analysis.root_causes if row.cause == cause), None)
    steps = captured_steps(analysis)
    scale = float(np.mean(steps)) if steps else 0.0
    told = sum(row.ms_per_step or 0.0 for row in analysis.root_causes)
    if row is None or (told > 0 and row.ms_per_step is None):
        return RunFigure(0.0)  # nothing, or in the cut last step alone
    value = scale * (row.fraction if row.ms_per_step is None else row.ms_per_step / told)
    number = len(steps)
    if number < 2:
        return RunFigure(value)
    if row.ms_interval is not None and told > 0:
        width = (row.ms_interval[1] - row.ms_interval[0]) / told * scale
    elif row.interval is not None:
        width = (row.interval[1] - row.interval[0]) * scale
    else:
        return RunFigure(value)
    return RunFigure(value, _variance_of(width, number), number - 1.0)


def _variance_of(width: float, num_steps: int) -> float:
    """Variance of a mean over steps whose bootstrap gave an interval so wide, allowing for steps being alike."""
    correlation = correlation_of_blocks(num_steps)
    if num_steps == 2:
        return (width / _WIDTH_OF_TWO) ** 2 * correlation
    # resamples of few steps vary less than new steps would: by n - 1 of n in variance
    return (width / _BOOTSTRAP_WIDTH) ** 2 * num_steps / (num_steps - 1) * correlation


def mfu_figure(run: RunRecord) -> RunFigure | None:
    """MFU; it varies as the captured step does, whose time it is divided by."""
    mfu = run.analysis.job.mfu
    if mfu is None:
        return None
    step = summarise_steps(captured_steps(run.analysis), np.mean)
    return RunFigure(mfu, (mfu / step.value) ** 2 * step.variance, step.freedom)


def bandwidth_figure(run: RunRecord) -> RunFigure | None:
    """Bus bandwidth of all collectives, GB/s, each weighted by the time of its transfers."""
    rows = [(c.busbw_gbs, c.transfer_ms) for c in run.analysis.collectives if c.busbw_gbs and c.transfer_ms]
    time = sum(transfer for _, transfer in rows)
    return RunFigure(sum(bandwidth * transfer for bandwidth, transfer in rows) / time) if time else None
