"""A run in a comparison: its figures with their noise, and the checks whether two sides are comparable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.analyzer.compare.statistics import RunFigure, correlation_of_blocks, summarise_steps
from stepscope.core.documents.analysis import Analysis, MeshSizes, StepLedger
from stepscope.core.documents.run_directory import RunManifest
from stepscope.core.vocabulary import Notice, TimeCategory

_BOOTSTRAP_WIDTH = 2 * 1.6449
"""Standard deviations between the 5th and 95th percentiles, which root-cause intervals give."""

_WIDTH_OF_TWO = 2.0
"""The same for two steps: a quarter of the resamples draw one step twice, so the interval ends at the steps themselves,
which are two standard deviations of their mean apart."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of a comparison: its analysis, and what else is compared.

    Attributes:
        name: display name.
        analysis: analysis of its profiled steps.
        manifest: its run.json; None if it has none.
        unprofiled_ms: durations of its settled unprofiled steps, in order; empty without telemetry.
        parts_ms: by name, what recorded phases, waits and pauses take of each of these steps.
        tokens: median tokens per step, if the training loop reported them.
        memory_bytes: largest value of each memory figure that the training loop reported.
    """

    name: str
    analysis: Analysis
    manifest: RunManifest | None = None
    unprofiled_ms: Sequence[float] = ()
    parts_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    tokens: float | None = None
    memory_bytes: Mapping[str, float] = field(default_factory=dict)

    @property
    def step_ms(self) -> float:
        """Median profiled step, ms: the scale of all parts; without a trace the median unprofiled one."""
        return float(np.median(captured_steps(self.analysis) or self.unprofiled_ms))

    @property
    def num_steps(self) -> int:
        """Profiled steps of the job, the divisor of totals of collectives; at least 1, for damaged analyses."""
        return max(self.analysis.job.num_steps, 1)

    @property
    def num_rank_steps(self) -> int:
        """Profiled steps of all ranks together, the divisor of totals of kernels."""
        return sum(len(rank.steps) for rank in self.analysis.ranks)


def _whole_steps(analysis: Analysis) -> list[list[StepLedger]]:
    """Each step of all ranks, without a rank's last one, which ends with the trace; a single step is kept."""
    by_index: dict[int, list[StepLedger]] = defaultdict(list)
    for rank in analysis.ranks:
        for step in rank.steps[: max(len(rank.steps) - 1, 1)]:
            by_index[step.index].append(step)
    return [by_index[index] for index in sorted(by_index)]


def captured_steps(analysis: Analysis) -> list[float]:
    """Comparison: duration of each whole profiled step of a run, ms; the median over ranks, which wait together."""
    return [float(np.median([step.ms for step in steps])) for steps in _whole_steps(analysis)]


def category_figure(analysis: Analysis, category: TimeCategory) -> RunFigure:
    """Milliseconds per step of a run in a time category: its share of all ranks' time in each whole step.

    The categories add up to the mean step.
    """
    parts = []
    for steps in _whole_steps(analysis):
        length = [step.ms for step in steps]
        in_category = sum(step.ledger.get(category, 0.0) * step.ms for step in steps)
        parts.append(in_category / sum(length) * float(np.median(length)) if any(length) else 0.0)
    return summarise_steps(parts, np.mean)


def cause_figure(analysis: Analysis, cause: str) -> RunFigure:
    """Milliseconds per step of a run attributed to a cause; its noise is that of the bootstrap over steps.

    The causes add up to the mean whole step, as the time categories do.
    """
    row = next((row for row in analysis.root_causes if row.cause == cause), None)
    steps = captured_steps(analysis)
    scale = float(np.mean(steps)) if steps else 0.0
    total = sum(row.ms_per_step or 0.0 for row in analysis.root_causes)
    if row is None or (total > 0 and row.ms_per_step is None):
        return RunFigure(0.0)  # absent, or only in the last step, which ends with the trace
    value = scale * (row.fraction if row.ms_per_step is None else row.ms_per_step / total)
    num_steps = len(steps)
    if num_steps < 2:
        return RunFigure(value)
    if row.ms_interval is not None and total > 0:
        width = (row.ms_interval[1] - row.ms_interval[0]) / total * scale
    elif row.interval is not None:
        width = (row.interval[1] - row.interval[0]) * scale
    else:
        return RunFigure(value)
    return RunFigure(value, _variance_of(width, num_steps), num_steps - 1.0)


def _variance_of(width: float, num_steps: int) -> float:
    """Variance of a mean over correlated steps, from the width of its bootstrap interval."""
    correlation = correlation_of_blocks(num_steps)
    if num_steps == 2:
        return (width / _WIDTH_OF_TWO) ** 2 * correlation
    # resamples of n steps vary less than new steps would: by (n - 1) / n in variance
    return (width / _BOOTSTRAP_WIDTH) ** 2 * num_steps / (num_steps - 1) * correlation


def mfu_figure(run: RunRecord) -> RunFigure | None:
    """MFU of a compared run; it varies as the captured step does, whose time it is divided by."""
    mfu = run.analysis.job.mfu
    if mfu is None:
        return None
    step = summarise_steps(captured_steps(run.analysis), np.mean)
    return RunFigure(mfu, (mfu / step.value) ** 2 * step.variance, step.freedom)


def bandwidth_figure(run: RunRecord) -> RunFigure | None:
    """Mean bus bandwidth of a compared run's collectives, GB/s, weighted by transfer time."""
    rows = [(c.busbw_gbs, c.transfer_ms) for c in run.analysis.collectives if c.busbw_gbs and c.transfer_ms]
    time = sum(transfer for _, transfer in rows)
    return RunFigure(sum(bandwidth * transfer for bandwidth, transfer in rows) / time) if time else None


_VERSIONS_OF_INTEREST = ("torch", "cuda", "hip", "nccl", "python")
MAX_VARIABLES_SHOWN = 6
MAX_DISTORTION_DIFFERENCE = 0.05
"""Difference in profiling overhead from which profiled figures of two sides are not comparable."""


def comparability_notices(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> list[Notice]:
    """One notice for each difference between the compared sides that the change under test did not cause."""
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
        *(_differs("version_differs", f"{name} version", a, b, _version(name)) for name in _VERSIONS_OF_INTEREST),
    ]
    notices.append(_environment(a, b))
    if without := [run.name for run in (*a, *b) if run.manifest is None]:
        text = f"no run.json beside {_list(without)}: versions and environment cannot be compared"
        notices.append(Notice("no_manifest", text))
    notices += [*_quality(a, "a"), *_quality(b, "b"), _distortion(a, b)]
    return [notice for notice in notices if notice is not None]


def _differs(
    code: str, what: str, a: Sequence[RunRecord], b: Sequence[RunRecord], value: Callable[[RunRecord], object]
) -> Notice | None:
    """Notice of a difference in a property that both sides have."""
    sides = [sorted({str(known) for run in side if (known := value(run)) is not None}) for side in (a, b)]
    if not all(sides) or sides[0] == sides[1]:
        return None
    return Notice(code, f"not like with like: {what} is {_list(sides[0])} in a and {_list(sides[1])} in b")


def _version(name: str) -> Callable[[RunRecord], str | None]:
    return lambda run: run.manifest.versions.get(name) if run.manifest else None


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
    shown = ", ".join(f"{n} ({_values(sides[0], n)} | {_values(sides[1], n)})" for n in apart[:MAX_VARIABLES_SHOWN])
    more = f" and {len(apart) - MAX_VARIABLES_SHOWN} more" if len(apart) > MAX_VARIABLES_SHOWN else ""
    return Notice("environment_differs", f"environment variables differ (a | b): {shown}{more}")


def _values(side: Iterable[dict[str, str]], name: str) -> str:
    return "/".join(sorted({run.get(name, "unset") for run in side}))


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
    if abs(second - first) < MAX_DISTORTION_DIFFERENCE:
        return None
    slowed = f"profiling slowed the step by {first:.0%} in a and {second:.0%} in b: profiled parts differ by that alone"
    return Notice("distortion_differs", slowed)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
