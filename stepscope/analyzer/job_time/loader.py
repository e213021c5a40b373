"""Data loader of a job by the waits of all its steps: whether workers are too few, and how many would do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.blame.reasons import loader_pattern
from stepscope.analyzer.job_time.loader_queue import MIN_WAIT_SHARE
from stepscope.analyzer.job_time.steps import HostLoss
from stepscope.analyzer.job_time.training_time import TrainingTime
from stepscope.analyzer.knobs import Options
from stepscope.core.vocabulary import Evidence, Reason

STARVED_FACTOR = 1.25
"""Least ratio of the step to the step without waiting for workers that are too few; below it they are nearly enough."""
MIN_WAITING_STEPS = 0.5
"""Least share of steps that wait for workers that are too few, unless waits come at the period of the workers."""
ONE_RANK_SHARE = 0.8
"""Least part of the job's waiting that one rank's waits are for their period to be that of its workers."""
MIN_PERIODS = 8
"""Least number of periods of the waits for it: with few, the waits of a run's first batches count too much."""

MOST_OF_FIRST = 0.5
"""Most of the time between waits that the wait for a run's first batch may take, for batches to differ in length."""


class LoaderFindings(NamedTuple):
    """Findings on the data loader: reasons of its waits with evidence, and the number of workers to set."""

    reasons: list[Reason]
    evidence: list[Evidence]
    action: str


def loader_findings(
    training: TrainingTime,
    rank: int,
    step_ms: float,
    wait_ms: float,
    *,
    num_workers: int | None = None,
    options: Options | None = None,
) -> LoaderFindings:
    """Findings on the loader of the rank that waits longest.

    A loader with w workers that are far too slow delivers w batches at once and then stalls, so only every w-th step
    waits; workers needed = w x step / step without waiting. Workers that take as long as the waits are apart take as
    long for the first batch of all.

    Args:
        step_ms: mean step of the job.
        wait_ms: part of it that is waiting for data.
        num_workers: of the loader that trains, by its settings; None where unknown.
        options: of the job.
    """
    steps = training.steps
    waits_ms = steps.host_ms[HostLoss.DATA_WAIT][training.settled, steps.ranks.index(rank)]
    reasons, evidence = loader_pattern((waits_ms * 1e6).astype(np.int64), rank)
    factor = step_ms / max(step_ms - wait_ms, 1e-9)
    waiting = float(np.mean(waits_ms > MIN_WAIT_SHARE * steps.period_ms[training.settled]))
    workers = next((round(item.value) for item in evidence if item.metric == "period_of_waits"), None)
    column = steps.ranks.index(rank)
    by_turns = float(waits_ms.mean()) < ONE_RANK_SHARE * wait_ms  # of the ranks: the period is not the workers'
    if workers is not None and (by_turns or _begins_sooner(training, column, workers * step_ms)):
        workers = None
    is_seen = waiting >= MIN_WAITING_STEPS if workers is None else len(waits_ms) >= MIN_PERIODS * workers
    if factor > STARVED_FACTOR and is_seen:
        reasons = [Reason.STARVED]
    elif column in training.losses.queues:  # too slow, and in few steps so far: bursts may be all there is to it
        reasons = list(dict.fromkeys([Reason.STARVED, *reasons]))
    evidence = [replace(item, ranks=[rank]) for item in evidence]
    evidence.append(Evidence("waiting_steps", waiting, "ratio", ranks=[rank]))
    if num_workers == 0:
        reasons = [*reasons, Reason.NO_WORKERS]
    if num_workers is not None:
        num_workers = num_workers or 1  # without workers one batch takes as long, and nothing runs beside it
        action = (options or Options()).text("num_workers", math.ceil(num_workers * factor))
    elif workers is None:
        action = f"raise num_workers to {factor:.1f} times what it is, and prefetch_factor"
    else:
        option = (options or Options()).text("num_workers", math.ceil(workers * factor))
        action = f"{option} (now {workers}, by the period of the waits)"
    return LoaderFindings(reasons, evidence, action)


def _begins_sooner(training: TrainingTime, column: int, apart_ms: float) -> bool:
    """Whether a rank waited for its first batch of all less than its workers would have taken for it."""
    first_ms = float(training.steps.host_ms[HostLoss.DATA_WAIT][0, column])
    return MIN_WAIT_SHARE * training.slow.ordinary_ms < first_ms < MOST_OF_FIRST * apart_ms
