"""Jobs and runs in the metric history: which jobs had which GPUs when, and which runs they were.

A job and a run meet where a rank of the run was connected to the agent of a GPU that the job had; or, of a run
directory, by the scheduler's job that its ranks recorded, or by a GPU that both had at one time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stepscope.core.documents.history import JobsReport, RecordedJob
from stepscope.core.errors import UsageError
from stepscope.core.metrics.agent import JOB, TRAINING
from stepscope.core.metrics.readings import GPU
from stepscope.store.history.questions import GroupBy, Labels, MetricHistory, Question, Statistic, TimeRange
from stepscope.store.rank_places import read_rank_places
from stepscope.store.runs import RunStore

_HOLDS, _FACTS, _TRAINING = GPU + "job_info", JOB + "info", TRAINING + "info"
_MAX_STEPS = 1500
_LEAST_STEP_NS = 60 * 10**9
_LIVE_STEPS = 2
"""A job is live if it was there in one of so many last steps."""


@dataclass(slots=True)
class _Job:
    """What is gathered of one job."""

    gpus: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)


def jobs_of_history(history: MetricHistory, start_ns: int, end_ns: int, *, runs: str | None = None) -> JobsReport:
    """Jobs that had a GPU in a span of time, the latest first.

    Args:
        runs: a folder of run directories, which are joined with the jobs as well.

    Raises:
        UsageError: the history does not say which jobs had GPUs.
        UnreachableError, DataError: as the history's methods; the folder cannot be read.
    """
    known = {metric.name for metric in history.metrics()}
    if _HOLDS not in known:
        what_next = "record agents with stepscope history run"
        raise UsageError(f"the history has no {_HOLDS}: it does not say which jobs had GPUs", what_next=what_next)
    step_ns = _LEAST_STEP_NS * max(1, -(-(end_ns - start_ns) // (_LEAST_STEP_NS * _MAX_STEPS)))
    covered = TimeRange.covering(start_ns, end_ns, step_ns)
    time = TimeRange(covered.start_ns - (covered.start_ns - covered.end_ns) % step_ns, covered.end_ns, step_ns)
    ends = time.step_ends()
    jobs: dict[tuple[str, str], _Job] = defaultdict(_Job)
    for labels, present in _present(history, _HOLDS, (GroupBy.GPU, GroupBy.JOB), time):
        job = jobs[labels["job_kind"], labels["job_id"]]
        job.gpus.add(labels.get("uuid") or f"{labels['instance']}/{labels.get('gpu', '')}")
        job.nodes.add(labels["instance"])
        job.steps.update(present)
    if _TRAINING in known:
        for labels, _ in _present(history, _TRAINING, (GroupBy.RANK, GroupBy.GPU, GroupBy.JOB), time):
            jobs[labels["job_kind"], labels["job_id"]].runs.add(labels["run"])
    if runs is not None:
        _join_runs(jobs, runs, ends)
    facts: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for by in (GroupBy.USER, GroupBy.TEAM) if _FACTS in known else ():
        for labels, _ in _present(history, _FACTS, (GroupBy.JOB, by), time):
            facts[labels["job_kind"], labels["job_id"]].update(labels)
    rows = [
        RecordedJob(
            kind,
            number,
            facts[kind, number].get("user"),
            facts[kind, number].get("team"),
            sorted(job.nodes),
            len(job.gpus),
            int(ends[min(job.steps)]) - step_ns,
            min(int(ends[max(job.steps)]), end_ns),
            max(job.steps) >= len(ends) - _LIVE_STEPS,
            sorted(job.runs),
        )
        for (kind, number), job in jobs.items()
        if job.steps
    ]
    return JobsReport(time.start_ns, end_ns, step_ns, sorted(rows, key=lambda row: (-row.last_ns, row.kind, row.id)))


def _join_runs(jobs: dict[tuple[str, str], _Job], folder: str, ends_ns: np.ndarray) -> None:
    for run in RunStore(folder).list_runs():
        places, _ = read_rank_places(Path(run.path))
        for place in places:
            own = jobs.get((place.job_kind or "", place.job_id or ""))
            step = int(np.searchsorted(ends_ns, place.start_ns))
            at_once = [job for job in jobs.values() if place.gpu_uuid in job.gpus and {step, step + 1} & job.steps]
            for job in [own] if own is not None else at_once:
                job.runs.add(run.id)


def _present(
    history: MetricHistory, metric: str, by: tuple[GroupBy, ...], time: TimeRange
) -> Sequence[tuple[dict[str, str], list[int]]]:
    """Labels of each group, and the steps in which it has a series."""
    answer = history.range(Question(metric, by, Statistic.COUNT), time)
    rows: list[tuple[Labels, list[int]]] = [
        (group, np.flatnonzero(np.nan_to_num(values) > 0).tolist())
        for group, values in zip(answer.groups, answer.values, strict=True)
    ]
    return [(dict(group), steps) for group, steps in rows if steps]
