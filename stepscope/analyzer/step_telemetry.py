"""Reports on steps, as the training loop recorded them or a log has them: durations, waits, outlying gradients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from stepscope.analyzer.long_waits import StepWaits, long_waits
from stepscope.core.documents.steps import (
    LoggedSteps,
    RankSteps,
    Step,
    StepReport,
    StepRow,
    StepTime,
    TrainingLog,
)
from stepscope.core.text.numbers import counted, ranks_words
from stepscope.core.vocabulary import Notice


def step_report(ranks: Sequence[RankSteps], source: str = "stepscope") -> StepReport:
    """Join the ranks' steps by their index. The first step is not settled: compilation and caches are in it."""
    by_index: dict[int, list[tuple[int, Step]]] = defaultdict(list)
    for rank in ranks:
        for step in rank.steps:
            by_index[step.index].append((rank.rank, step))
    rows = [_row(index, by_index[index]) for index in sorted(by_index)]
    settled = {row.index: row for row in rows[1:] if not row.captured}
    of_settled = [step for rank in ranks for step in rank.steps if step.index in settled]
    names = sorted({name for step in of_settled for name in step.phases})
    return StepReport(
        ranks=[rank.rank for rank in ranks],
        num_steps=len(rows),
        num_settled=len(settled),
        step_ms=_times(list(settled.values())),
        data_wait=_share(of_settled, [step.data_wait_ns for step in of_settled]),
        phases={name: _share(of_settled, [step.phases.get(name, 0) for step in of_settled]) or 0.0 for name in names},
        steps=rows,
        longest_data_wait=_share_of_rows(list(settled.values()), [row.data_wait_ms for row in settled.values()]),
        long_waits=long_waits([_waits(row, by_index[index]) for index, row in settled.items()]),
        source=source,
    )


_EQUALLY_LONG = 0.01
"""Share of a step: ranks that wait for each other end it within less."""


def _row(index: int, steps: Sequence[tuple[int, Step]]) -> StepRow:
    slowest_rank, slowest = max(steps, key=lambda entry: entry[1].end_ns - entry[1].start_ns)
    longest_ns = slowest.end_ns - slowest.start_ns
    others_ns = [step.end_ns - step.start_ns for rank, step in steps if rank != slowest_rank]
    is_slower = not others_ns or longest_ns - median(others_ns) > _EQUALLY_LONG * longest_ns
    waiting_rank, waiting = max(steps, key=lambda entry: entry[1].data_wait_ns)
    figures: dict[str, list[float]] = defaultdict(list)
    phases: dict[str, int] = {}
    for _, step in steps:
        for name, value in step.figures.items():
            figures[name].append(value)
        for name, duration in step.phases.items():
            phases[name] = max(phases.get(name, 0), duration)
    return StepRow(
        index=index,
        ms=longest_ns / 1e6,
        slowest_rank=slowest_rank if is_slower else None,
        data_wait_ms=waiting.data_wait_ns / 1e6,
        phases_ms={name: duration / 1e6 for name, duration in phases.items()},
        figures={name: sum(value / len(values) for value in values) for name, values in figures.items()},
        captured=any(step.captured for _, step in steps),
        anomalies=sorted({name for _, step in steps for name in step.anomalies}),
        data_wait_rank=waiting_rank if waiting.data_wait_ns else None,
    )


def _waits(row: StepRow, steps: Sequence[tuple[int, Step]]) -> StepWaits:
    phases: dict[str, dict[int | None, float]] = {
        name: {rank: step.phases.get(name, 0) / 1e6 for rank, step in steps} for name in row.phases_ms
    }
    return StepWaits(row.index, row.ms, {rank: step.data_wait_ns / 1e6 for rank, step in steps}, phases)


def _times(rows: Sequence[StepRow]) -> StepTime:
    """Quantiles over the steps; a row of several counts as often."""
    if not rows:
        return StepTime(None, None, None)
    ms = np.array([row.ms for row in rows])
    weights = np.array([row.num_steps for row in rows], dtype=np.float64)
    if (weights == weights[0]).all():
        p50, p95, longest = np.percentile(ms, (50, 95, 100))
    else:
        order = np.argsort(ms)
        reached = np.cumsum(weights[order]) / weights.sum()
        p50, p95 = (ms[order][min(int(np.searchsorted(reached, share)), len(ms) - 1)] for share in (0.5, 0.95))
        longest = ms.max()
    return StepTime(float(p50), float(p95), float(longest))


def _share(steps: Iterable[Step], part_ns: Iterable[int]) -> float | None:
    whole_ns = sum(step.end_ns - step.start_ns for step in steps)
    return sum(part_ns) / whole_ns if whole_ns else None


def log_report(log: TrainingLog) -> StepReport:
    """Report on the steps of a log. Its first line is not settled, unless it is the only one."""
    latest: list[LoggedSteps] = []
    for logged in log.steps:
        while latest and latest[-1].index >= logged.index:
            latest.pop()
        latest.append(logged)
    rows = [
        StepRow(
            index=logged.index,
            ms=logged.ms,
            slowest_rank=None,
            data_wait_ms=logged.data_wait_ms or 0.0,
            phases_ms=logged.phases_ms,
            figures=logged.figures,
            captured=False,
            anomalies=[],
            data_wait_rank=logged.data_wait_rank,
            num_steps=logged.num_steps,
        )
        for logged in latest
    ]
    settled = rows[1:] or rows
    has_waits = any(logged.data_wait_ms is not None for logged in latest)
    data_wait = _share_of_rows(settled, [row.data_wait_ms for row in settled]) if has_waits else None
    names = sorted({name for row in settled for name in row.phases_ms})
    return StepReport(
        ranks=[],
        num_steps=sum(row.num_steps for row in rows),
        num_settled=sum(row.num_steps for row in settled),
        step_ms=_times(settled),
        data_wait=data_wait,
        phases={
            name: _share_of_rows(settled, [row.phases_ms.get(name, 0.0) for row in settled]) or 0.0 for name in names
        },
        steps=rows,
        warnings=[*log.notices, *_restarts(log.steps, rows)],
        longest_data_wait=data_wait,
        long_waits=long_waits(
            [StepWaits(row.index, row.ms, {row.data_wait_rank: row.data_wait_ms}, {}) for row in settled]
        ),
        source=log.source,
    )


def _share_of_rows(rows: Sequence[StepRow], parts_ms: Sequence[float]) -> float | None:
    whole = sum(row.ms * row.num_steps for row in rows)
    part = sum(ms * row.num_steps for ms, row in zip(parts_ms, rows, strict=True))
    return part / whole if whole else None


def _restarts(logged: Sequence[LoggedSteps], rows: Sequence[StepRow]) -> list[Notice]:
    num_attempts = max((steps.attempt for steps in logged), default=1)
    if num_attempts == 1:
        return []
    text = f"the log holds {num_attempts} starts of the training"
    repeated = sum(steps.num_steps for steps in logged) - sum(row.num_steps for row in rows)
    if repeated:
        text += f"; {counted(repeated, 'step')} that a later one repeats are left out"
    return [Notice("restarts", text)]


GRADIENT_NORM = "local_grad_norm"
MIN_RANKS = 4
"""Fewer ranks do not show which one differs."""

MIN_RATIO = 2.0
"""Least ratio of an outlier; different batches make norms differ by some ten percent, rarely by this much."""

SIGMAS = 6.0
MIN_STEP_SHARE = 0.5
"""Least share of outlier steps of a rank: a single batch may be an outlier, most steps show the rank."""

MIN_STEPS = 2
_MAD_TO_SIGMA = 1.4826


def gradient_outliers(ranks: Sequence[RankSteps], *, are_alike: bool) -> list[Notice]:
    """Notices on ranks whose own gradients have outlying norms.

    Args:
        are_alike: whether all ranks compute the gradients of the same parameters, as in pure data parallelism; else
            only non-finite ones can be compared.
    """
    finite: dict[int, dict[int, float]] = defaultdict(dict)
    not_finite: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        for step in rank.steps:
            if GRADIENT_NORM in step.non_finite:
                not_finite[step.index].append(rank.rank)
            elif step.figures.get(GRADIENT_NORM, 0.0) > 0:
                finite[step.index][rank.rank] = step.figures[GRADIENT_NORM]
    return [*_first_not_finite(finite, not_finite), *(_far_off(finite.values()) if are_alike else [])]


def _first_not_finite(finite: Mapping[int, Mapping[int, float]], not_finite: Mapping[int, list[int]]) -> list[Notice]:
    for step in sorted(not_finite):
        bad, good = not_finite[step], finite.get(step, {})
        if len(bad) < len(good):
            text = f"step {step}: the gradients that {ranks_words(bad)} computed are not finite, those of others are"
            return [Notice("gradients_not_finite", f"{text}; check its batch and its GPU")]
    return []


def _far_off(steps: Iterable[Mapping[int, float]]) -> list[Notice]:
    ratios: dict[int, list[float]] = defaultdict(list)
    num_steps: dict[int, int] = defaultdict(int)
    for norms in steps:
        if len(norms) < MIN_RANKS:
            continue
        logarithms = {rank: math.log(norm) for rank, norm in norms.items()}
        usual = median(logarithms.values())
        sigma = _MAD_TO_SIGMA * median(abs(value - usual) for value in logarithms.values())
        for rank, value in logarithms.items():
            num_steps[rank] += 1
            if abs(value - usual) > max(math.log(MIN_RATIO), SIGMAS * sigma):
                ratios[rank].append(math.exp(value - usual))
    return [
        Notice(
            "gradient_outlier",
            f"rank {rank}: the gradients that it computed are {median(far):.3g} times the other ranks' in {len(far)} of"
            f" {num_steps[rank]} steps; check its GPU and its data",
        )
        for rank, far in sorted(ratios.items())
        if len(far) >= MIN_STEPS and len(far) > MIN_STEP_SHARE * num_steps[rank]
    ]
