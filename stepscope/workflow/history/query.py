"""One question to the metric history, answered with what a person or a script needs: figures, deviations, events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.core.documents.history import AskedGroup, AskedMetric, HistoryReport, PastEvent
from stepscope.core.errors import UsageError
from stepscope.core.metrics import MetricKind, Unit
from stepscope.core.text.numbers import unknown_name
from stepscope.core.vocabulary import Notice
from stepscope.store.history.deviations import deviations_of
from stepscope.store.history.questions import (
    GroupBy,
    HistoryEvent,
    MetricHistory,
    Question,
    SeriesAnswer,
    Statistic,
    TimeRange,
)

_OF_JOB = (GroupBy.GPU, GroupBy.NODE)
"""Groups that are compared with the others of their job."""
_JOBS = {GroupBy.JOB, GroupBy.USER, GroupBy.TEAM}
_NICE_STEPS_SECONDS = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_STEPS = 60
"""About how many steps an answer has unless asked for otherwise."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """A question and what is wanted of its answer.

    Attributes:
        top: so many groups, by their deviation; None: all.
        with_events: also the events of this time.
    """

    question: Question
    time: TimeRange
    top: int | None = None
    with_events: bool = False


def step_of(span_ns: int) -> int:
    """Step, ns, for a span of time that an answer then has some 60 of."""
    wanted = span_ns / 1e9 / _STEPS
    seconds = next((step for step in _NICE_STEPS_SECONDS if step >= wanted), None)
    days = -(-int(wanted) // 86400)
    return (seconds or days * 86400) * 10**9


def ask_history(history: MetricHistory, request: HistoryRequest) -> HistoryReport:
    """Ask, and work the answer out.

    Raises:
        UsageError: the history does not have the metric, or the question makes no sense.
        UnreachableError: it does not answer.
        DataError: it cannot be read.
    """
    question, time = request.question, request.time
    known = {metric.name: metric for metric in history.metrics()}
    if question.metric not in known:
        if not known:
            raise UsageError("has no metrics yet", where="the history", what_next="record some: stepscope history run")
        raise unknown_name("metric", question.metric, known, listing="it may not have been recorded")
    compares = request.top is not None
    jobs = compares and GroupBy.JOB not in question.by and set(question.by) & set(_OF_JOB)
    by = (*question.by, GroupBy.JOB) if jobs else question.by
    answer = history.range(Question(question.metric, by, question.statistic, question.where), time)
    if jobs and not answer.groups:  # no job has any: all are compared with each other
        answer = history.range(question, time)
    groups = groups_of(answer, compares=compares)
    if compares:
        groups.sort(key=lambda group: -abs(group.deviation) if group.deviation is not None else 1.0)
    events = None
    if request.with_events:
        found = history.events(time.start_ns, time.end_ns, where=question.where or None)
        events = [past_event(event) for event in found]
    metric = known[question.metric]
    return HistoryReport(
        AskedMetric(metric.name, metric.kind, unit_of_values(metric.kind, metric.unit, question.statistic)),
        [str(one) for one in question.by],
        question.statistic.value,
        {name: [value] if isinstance(value, str) else list(value) for name, value in question.where.items()},
        time.start_ns,
        time.end_ns,
        time.step_ns,
        answer.times_ns.tolist(),
        groups[: request.top],
        len(groups),
        events,
        [] if groups else [Notice("no_values", _no_values(question))],
    )


def _no_values(question: Question) -> str:
    if depends_on_jobs(question.by):
        return f"no GPU with a value of {question.metric} was one job's alone at the end of a step"
    return f"no series of {question.metric} has a value in this time"


def depends_on_jobs(by: Sequence[GroupBy]) -> bool:
    """Whether groups follow from jobs: the values of a step belong to the job that has the GPU at its end."""
    return not _JOBS.isdisjoint(by)


def unit_of_values(kind: MetricKind | None, unit: Unit | None, statistic: Statistic) -> str | None:
    """Unit of the values of an answer; None where the history does not know it."""
    if statistic is Statistic.COUNT:
        return ""
    if kind is MetricKind.COUNTER and unit is not None:
        return f"{unit.value} per second".strip()
    return None if unit is None else unit.value


def past_event(event: HistoryEvent) -> PastEvent:
    """The event in a document."""
    return PastEvent(event.kind.value, event.start_ns, event.end_ns, dict(event.labels), event.code, event.text)


def groups_of(answer: SeriesAnswer, *, compares: bool) -> list[AskedGroup]:
    """The groups of an answer with their figures; `compares`: and how they deviate from their job."""
    deviations = deviations_of(answer) if compares else [None] * len(answer.groups)
    groups = []
    for labels, values, found in zip(answer.groups, answer.values, deviations, strict=True):
        known = values[~np.isnan(values)]
        shown = [None if value != value else value for value in values.tolist()]
        last, mean, least, most = (
            map(float, (known[-1], known.mean(), known.min(), known.max())) if len(known) else [None] * 4
        )
        deviation, ratio = (found.difference, found.ratio) if found else (None, None)
        groups.append(AskedGroup(dict(labels), shown, last, mean, least, most, deviation, ratio))
    return groups
