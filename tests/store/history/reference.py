"""Answers to questions straight from recorded pages, by the definitions in `questions.py`, one value at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from benchmarks.history.servers import RecordedPage, Series
from stepscope.core.metrics.agent import JOB_FACTS
from stepscope.store.history.questions import (
    GROUP_LABELS,
    GroupBy,
    Labels,
    Question,
    Statistic,
    TimeRange,
    Where,
    is_one_of,
)

_LOOKBACK_MS = 300_000
_AGGREGATIONS: Mapping[Statistic, Callable[[Sequence[float]], float]] = {
    Statistic.MEAN: fmean,
    Statistic.MIN: min,
    Statistic.MAX: max,
    Statistic.SUM: sum,
    Statistic.COUNT: len,
}


def expected_range(
    pages: Iterable[RecordedPage], question: Question, time: TimeRange
) -> dict[Labels, dict[int, float]]:
    """Values by group and end of step (ms since the epoch)."""
    history = _History(pages)
    found: dict[Labels, dict[int, float]] = {}
    for end_ns in time.step_ends().tolist():
        end_ms, step_ms = end_ns // 10**6, time.step_ns // 10**6
        members: dict[Labels, list[float]] = {}
        for (target, series), samples in history.samples.items():
            inside = [sample for sample in samples if end_ms - step_ms < sample[0] <= end_ms]
            value = _step_value(question, inside) if series[0] == question.metric else None
            labels = history.labels(target, series, end_ms, step_ms)
            if value is not None and labels is not None and _has(labels, question.where):
                group = _group(labels, question.by)
                if group is not None:
                    members.setdefault(group, []).append(value)
        for group, values in members.items():
            found.setdefault(group, {})[end_ms] = float(_AGGREGATIONS[question.statistic](values))
    return found


def expected_latest(
    pages: Iterable[RecordedPage], question: Question, at_ms: int, within_ms: int
) -> dict[Labels, tuple[int, float]]:
    """Time (ms since the epoch) and value of each group."""
    history = _History(pages)
    members: dict[Labels, list[tuple[int, float]]] = {}
    for (target, series), samples in history.samples.items():
        page = history.page(target, at_ms)
        if series[0] != question.metric or page is None or series not in (page.values or {}):
            continue
        labels = history.labels(target, series, at_ms, 0)
        newest = [sample for sample in samples if sample[0] <= at_ms][-1]
        if newest[0] > at_ms - within_ms and labels is not None and _has(labels, question.where):
            group = _group(labels, question.by)
            if group is not None:
                members.setdefault(group, []).append(newest)
    return {
        group: (max(at for at, _ in samples), float(_AGGREGATIONS[question.statistic]([value for _, value in samples])))
        for group, samples in members.items()
    }


class _History:
    def __init__(self, pages: Iterable[RecordedPage]) -> None:
        self._pages = sorted(pages, key=lambda page: page.time_ms)
        self.samples: dict[tuple[Labels, Series], list[tuple[int, float]]] = {}
        for page in self._pages:
            for series, value in (page.values or {}).items():
                self.samples.setdefault((page.target, series), []).append((page.time_ms, value))

    def page(self, target: Labels, at_ms: int) -> RecordedPage | None:
        """The page of a target that is current."""
        latest = [page for page in self._pages if page.target == target and page.time_ms <= at_ms]
        return latest[-1] if latest and latest[-1].time_ms > at_ms - _LOOKBACK_MS else None

    def _recent(self, target: Labels, at_ms: int, step_ms: int) -> set[Series]:
        """Series of a target's pages in the step or the lookback."""
        after_ms = at_ms - max(step_ms, _LOOKBACK_MS)
        pages = [page for page in self._pages if page.target == target and after_ms < page.time_ms <= at_ms]
        return {series for page in pages for series in page.values or ()}

    def labels(self, target: Labels, series: Series, at_ms: int, step_ms: int) -> dict[str, str] | None:
        """Labels of a series, its target, its job and the job's facts."""
        labels = {**dict(target), **dict(series[1])}
        page = self.page(target, at_ms)
        on_page = (page.values if page else None) or {}
        if "job_id" not in labels and "uuid" in labels:
            key = ("uuid", "gpu_instance")
            holders = {
                (one["job_kind"], one["job_id"])
                for name, pairs in on_page
                if name == "stepscope_gpu_job_info"
                and (one := dict(pairs)).get("share", "exclusive") == "exclusive"
                and all(one.get(label) == labels.get(label) for label in key)
            }
            if len(holders) == 1:
                labels["job_kind"], labels["job_id"] = holders.pop()
        if "job_id" in labels:
            for fact in JOB_FACTS:
                known = {
                    one[fact]
                    for name, pairs in self._recent(target, at_ms, step_ms)
                    if name == "stepscope_job_info"
                    and (one := dict(pairs)).get(fact)
                    and (one["job_kind"], one["job_id"]) == (labels["job_kind"], labels["job_id"])
                }
                if len(known) == 1 and fact not in labels:
                    labels[fact] = known.pop()
        return labels


def _step_value(question: Question, inside: Sequence[tuple[int, float]]) -> float | None:
    if not inside:
        return None
    values = [value for _, value in inside]
    if not question.metric.endswith("_total"):
        choose = {Statistic.MIN: min, Statistic.MAX: max}.get(question.statistic, fmean)
        return float(choose(values))
    if len(inside) < 2:
        return None
    increase = sum(after - before if after >= before else after for before, after in pairwise(values))
    return increase / ((inside[-1][0] - inside[0][0]) / 1e3)


def _has(labels: Mapping[str, str], where: Where) -> bool:
    of_job = {"job_kind", "job_id", *JOB_FACTS}
    return all(
        is_one_of(labels.get(label), values) and (label in labels or label not in of_job)
        for label, values in where.items()
    )


def _group(labels: Mapping[str, str], by: Sequence[GroupBy]) -> Labels | None:
    """Labels of the group; None: the series belongs to no job or user, and so to no group."""
    of_jobs = [group for group in (GroupBy.JOB, GroupBy.USER, GroupBy.TEAM) if group in by]
    if any(GROUP_LABELS[group][-1] not in labels for group in of_jobs):
        return None
    names = {name for group in by for name in GROUP_LABELS[group]}
    return tuple(sorted((name, labels[name]) for name in names if name in labels))
