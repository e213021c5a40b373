"""Runs under comparison: their figures step by step, and whether two sides are comparable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.analyzer.compare.statistics import RunFigure, correlation_of_blocks, summarise_steps
from stepscope.core.documents.analysis import Analysis, MeshSizes, StepLedger
from stepscope.core.documents.evidence import Notice
from stepscope.core.documents.run_directory import RunManifest
from stepscope.core.vocabulary.categories import TimeCategory

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


def heading_figure(analysis: Analysis, heading: TimeCategory) -> RunFigure:
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


_VERSIONS_OF_INTEREST = ("torch", "cuda", "hip", "nccl", "python")
_MOST_VARIABLES_NAMED = 6
DISTORTION_APART = 0.05
"""Capturing that slows one side by so much more than the other shifts every captured figure."""


def unlikeness(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> list[Notice]:
    """One notice for each kind of difference that is no result of the change under test."""
    notices = [
        _differs("gpu_differs", "GPU", a, b, lambda run: run.analysis.job.gpu),
        _differs("device_differs", "kind of device", a, b, lambda run: run.analysis.job.device_kind),
        _differs("world_size_differs", "number of ranks", a, b, lambda run: run.analysis.job.world_size),
        _differs("mesh_differs", "mesh", a, b, lambda run: _mesh(run.analysis.job.mesh)),
        _differs(
            "simulated_differs", "simulated compute", a, b, lambda run: run.analysis.job.simulated_compute or None
        ),
        _differs("host_differs", "host", a, b, lambda run: run.manifest.host if run.manifest else None),
        _differs("tokens_differ", "tokens a step", a, b, lambda run: run.tokens),
    ]
    notices += [_version(a, b, name) for name in _VERSIONS_OF_INTEREST]
    notices += [_environment(a, b), _without_manifest(a, b), *_quality(a, "a"), *_quality(b, "b"), _distortion(a, b)]
    return [notice for notice in notices if notice is not None]


def _differs(
    code: str, what: str, a: Sequence[RunRecord], b: Sequence[RunRecord], value: Callable[[RunRecord], object]
) -> Notice | None:
    """Said only where both sides tell."""
    sides = [sorted({str(found) for run in side if (found := value(run)) is not None}) for side in (a, b)]
    if not all(sides) or sides[0] == sides[1]:
        return None
    return Notice(code, f"not like with like: {what} is {_list(sides[0])} in a and {_list(sides[1])} in b")


def _version(a: Sequence[RunRecord], b: Sequence[RunRecord], name: str) -> Notice | None:
    def version(run: RunRecord) -> str | None:
        return run.manifest.versions.get(name) if run.manifest else None

    return _differs("version_differs", f"{name} version", a, b, version)


def _mesh(mesh: MeshSizes) -> str | None:
    named = [f"{name}={size}" for name in MeshSizes.__slots__ if (size := getattr(mesh, name)) is not None]
    return " ".join(named) or None


def _environment(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Notice | None:
    sides = [[run.manifest.environment for run in side if run.manifest] for side in (a, b)]
    if not all(sides):
        return None
    names = sorted({name for side in sides for run in side for name in run})
    apart = [n for n in names if {run.get(n) for run in sides[0]} != {run.get(n) for run in sides[1]}]
    if not apart:
        return None
    shown = ", ".join(f"{n} ({_values(sides[0], n)} | {_values(sides[1], n)})" for n in apart[:_MOST_VARIABLES_NAMED])
    more = f" and {len(apart) - _MOST_VARIABLES_NAMED} more" if len(apart) > _MOST_VARIABLES_NAMED else ""
    return Notice("environment_differs", f"environment variables differ (a | b): {shown}{more}")


def _values(side: Iterable[dict[str, str]], name: str) -> str:
    return "/".join(sorted({run.get(name, "unset") for run in side}))


def _without_manifest(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Notice | None:
    without = [run.name for run in (*a, *b) if run.manifest is None]
    if not without:
        return None
    return Notice("no_manifest", f"no run.json beside {_list(without)}: versions and environment cannot be compared")


def _quality(side: Sequence[RunRecord], name: str) -> list[Notice]:
    notices = []
    for run in side:
        job, quality = run.analysis.job, run.analysis.trace_quality
        doubts = [
            f"{number} {what}"
            for number, what in (
                (len(job.missing_ranks), "ranks without a trace"),
                (quality.truncated_files, "truncated files"),
                (quality.dropped, "events dropped"),
            )
            if number
        ]
        if doubts:
            notices.append(Notice("trace_quality", f"{name}: {run.name} has {', '.join(doubts)}"))
    return notices


def _distortion(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Notice | None:
    sides = [
        [d for run in side if (d := run.analysis.trace_quality.profiler_distortion) is not None] for side in (a, b)
    ]
    if not all(sides):
        return None
    first, second = (sum(side) / len(side) for side in sides)
    if abs(second - first) < DISTORTION_APART:
        return None
    slowed = f"capturing slowed the step by {first:.0%} in a and {second:.0%} in b: captured parts differ by that alone"
    return Notice("distortion_differs", slowed)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
