"""How long were a job's steps, how much of them was waiting for data, and which stand out?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from stepscope.core.steps import RankSteps, Step, StepReport, StepRow, StepTime


def step_report(ranks: Sequence[RankSteps]) -> StepReport:
    """Join the ranks' steps by their index. The first step is not settled: compilation and caches are in it."""
    by_index: dict[int, list[tuple[int, Step]]] = defaultdict(list)
    for rank in ranks:
        for step in rank.steps:
            by_index[step.index].append((rank.rank, step))
    rows = [_row(index, by_index[index]) for index in sorted(by_index)]
    settled = {row.index for row in rows[1:] if not row.captured}
    of_settled = [step for rank in ranks for step in rank.steps if step.index in settled]
    names = sorted({name for step in of_settled for name in step.phases})
    return StepReport(
        ranks=[rank.rank for rank in ranks],
        num_steps=len(rows),
        num_settled=len(settled),
        step_ms=_times([row.ms for row in rows if row.index in settled]),
        data_wait=_share(of_settled, [step.data_wait_ns for step in of_settled]),
        phases={name: _share(of_settled, [step.phases.get(name, 0) for step in of_settled]) or 0.0 for name in names},
        steps=rows,
    )


def _row(index: int, steps: Sequence[tuple[int, Step]]) -> StepRow:
    slowest_rank, slowest = max(steps, key=lambda entry: entry[1].end_ns - entry[1].start_ns)
    told: dict[str, list[float]] = defaultdict(list)
    phases: dict[str, int] = {}
    for _, step in steps:
        for name, value in step.figures.items():
            told[name].append(value)
        for name, duration in step.phases.items():
            phases[name] = max(phases.get(name, 0), duration)
    return StepRow(
        index=index,
        ms=(slowest.end_ns - slowest.start_ns) / 1e6,
        slowest_rank=slowest_rank,
        data_wait_ms=max(step.data_wait_ns for _, step in steps) / 1e6,
        phases_ms={name: duration / 1e6 for name, duration in phases.items()},
        figures={name: sum(value / len(values) for value in values) for name, values in told.items()},
        captured=any(step.captured for _, step in steps),
        anomalies=sorted({name for _, step in steps for name in step.anomalies}),
    )


def _times(milliseconds: list[float]) -> StepTime:
    if not milliseconds:
        return StepTime(None, None, None)
    p50, p95, longest = np.percentile(milliseconds, (50, 95, 100))
    return StepTime(float(p50), float(p95), float(longest))


def _share(steps: Iterable[Step], part_ns: Iterable[int]) -> float | None:
    whole_ns = sum(step.end_ns - step.start_ns for step in steps)
    return sum(part_ns) / whole_ns if whole_ns else None
