"""Step telemetry recorded by the training loop: durations, data waits, outlying gradients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from stepscope.core.documents.run_directory import RankSteps, Step, StepReport, StepRow, StepTimeSummary
from stepscope.core.text.numbers import ranks_words
from stepscope.core.vocabulary import Notice


def step_report(ranks: Sequence[RankSteps]) -> StepReport:
    """Report of step telemetry: all ranks' steps joined by index. The first, with compilation, is not settled."""
    by_index: dict[int, list[tuple[int, Step]]] = defaultdict(list)
    for rank in ranks:
        for step in rank.steps:
            by_index[step.index].append((rank.rank, step))
    rows = [_row(index, by_index[index]) for index in sorted(by_index)]
    settled = {row.index for row in rows[1:] if not row.captured}
    of_settled = [step for rank in ranks for step in rank.steps if step.index in settled]
    names = sorted({name for step in of_settled for name in step.phases})
    milliseconds = [row.ms for row in rows if row.index in settled]
    quantiles = np.percentile(milliseconds, (50, 95, 100)).tolist() if milliseconds else [None] * 3
    return StepReport(
        ranks=[rank.rank for rank in ranks],
        num_steps=len(rows),
        num_settled=len(settled),
        step_ms=StepTimeSummary(*quantiles),
        data_wait=_share(of_settled, [step.data_wait_ns for step in of_settled]),
        phases={name: _share(of_settled, [step.phases.get(name, 0) for step in of_settled]) or 0.0 for name in names},
        steps=rows,
    )


def _row(index: int, steps: Sequence[tuple[int, Step]]) -> StepRow:
    slowest_rank, slowest = max(steps, key=lambda entry: entry[1].end_ns - entry[1].start_ns)
    figures: dict[str, list[float]] = defaultdict(list)
    phases: dict[str, int] = {}
    for _, step in steps:
        for name, value in step.figures.items():
            figures[name].append(value)
        for name, duration in step.phases.items():
            phases[name] = max(phases.get(name, 0), duration)
    return StepRow(
        index=index,
        ms=(slowest.end_ns - slowest.start_ns) / 1e6,
        slowest_rank=slowest_rank,
        data_wait_ms=max(step.data_wait_ns for _, step in steps) / 1e6,
        phases_ms={name: duration / 1e6 for name, duration in phases.items()},
        figures={name: sum(value / len(values) for value in values) for name, values in figures.items()},
        captured=any(step.captured for _, step in steps),
        anomalies=sorted({name for _, step in steps for name in step.anomalies}),
    )


def _share(steps: Iterable[Step], part_ns: Iterable[int]) -> float | None:
    whole_ns = sum(step.end_ns - step.start_ns for step in steps)
    return sum(part_ns) / whole_ns if whole_ns else None


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
    """Notices on ranks whose own gradients, by step telemetry, have outlying norms.

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
