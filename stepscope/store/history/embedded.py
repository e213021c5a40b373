"""Embedded backend of the metric history: DuckDB as engine over its Parquet files and open segments."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from stepscope.core.documents.jobs import Share
from stepscope.core.errors import DataError, UsageError
from stepscope.store.history.catalog import EVENTS, TIER_MS
from stepscope.store.history.event_records import newest_events
from stepscope.store.history.grouping import NONE, Indices, grouped, is_present
from stepscope.store.history.job_groups import Grouping, Jobs, needs_jobs, newest_by_target, page_of
from stepscope.store.history.parquet import decode_events, load_pyarrow
from stepscope.store.history.places import Place, place_of
from stepscope.store.history.questions import (
    HistoryEvent,
    HistoryMetric,
    Labels,
    LatestAnswer,
    Question,
    SeriesAnswer,
    Statistic,
    TimeRange,
    Where,
    is_one_of,
)
from stepscope.store.history.scans import Engine, Scan
from stepscope.store.history.stored_files import FileGoneError, HistoryFiles, HistoryState

_T = TypeVar("_T")

MAX_CELLS = 20_000_000
"""Series x steps of one question; 160 MB an array."""
WITHIN_NS = 300 * 10**9
"""A target or series without any sample for so long is gone, as in Prometheus."""
_MS = 1_000_000
_ATTEMPTS = 5
UP = "up"
JOB_OF_GPU = "stepscope_gpu_job_info"
FACTS_OF_JOB = "stepscope_job_info"


def history_at(location: str | Path) -> EmbeddedHistory:
    """The metric history in a directory or at an fsspec URL.

    Raises:
        UsageError: a package is missing.
        DataError: there is no history, or a newer stepscope wrote it.
        UnreachableError: the URL does not answer.
    """
    return EmbeddedHistory(place_of(location))


class EmbeddedHistory:
    """Metric history in Parquet files; a MetricHistory. Threads may share it; other processes may write meanwhile."""

    def __init__(self, place: Place) -> None:
        load_pyarrow()
        self._engine = Engine()
        self._files = HistoryFiles(place)
        self._files.state()

    def metrics(self) -> Sequence[HistoryMetric]:
        """See MetricHistory."""
        state = self._files.state()
        return [HistoryMetric(name, state.entry(name).kind, state.entry(name).unit) for name in sorted(state.names())]

    def range(self, question: Question, time: TimeRange) -> SeriesAnswer:
        """See MetricHistory."""
        ends = time.step_ends()
        return self._answer(lambda state: self._range(state, question, time, ends))

    def latest(self, question: Question, *, at_ns: int, within_ns: int = WITHIN_NS) -> LatestAnswer:
        """See MetricHistory."""
        return self._answer(lambda state: self._latest(state, question, at_ns // _MS, within_ns // _MS))

    def events(self, start_ns: int, end_ns: int, *, where: Where | None = None) -> Sequence[HistoryEvent]:
        """See MetricHistory."""
        found = self._answer(lambda state: self._events(state, start_ns, end_ns))
        wanted = (where or {}).items()
        return [
            event
            for event in found
            if event.start_ns <= end_ns
            and (event.end_ns is None or event.end_ns >= start_ns)
            and all(is_one_of(dict(event.labels).get(name), values) for name, values in wanted)
        ]

    def _answer(self, ask: Callable[[HistoryState], _T]) -> _T:
        for _ in range(_ATTEMPTS):
            try:
                return ask(self._files.state())
            except FileGoneError:
                continue
        raise DataError(
            "files change faster than they can be read", where=self._files.place.location, what_next="try again"
        )

    # -- questions

    def _check(self, state: HistoryState, question: Question) -> None:
        names = state.names()
        if question.metric not in names:
            close = difflib.get_close_matches(question.metric, names, 3)
            hint = f"did you mean {', '.join(close)}?" if close else "list the metrics of the history"
            raise UsageError(f"the history has no metric {question.metric}", what_next=hint)

    def _range(self, state: HistoryState, question: Question, time: TimeRange, ends: Indices) -> SeriesAnswer:
        self._check(state, question)
        start_ms, step_ms = time.start_ns // _MS, max(time.step_ns // _MS, 1)
        if time.step_ns % _MS or time.start_ns % _MS:
            raise UsageError("steps and times of the history are whole milliseconds")
        if len(ends) > MAX_CELLS:
            raise _too_many(1, len(ends))
        end_ms = start_ms + step_ms * len(ends)
        tiers = [name for name, width in TIER_MS.items() if width and step_ms % width == start_ms % width == 0]
        scan = Scan(self._engine, self._files, state, question.metric, tiers, start_ms, end_ms)
        series = scan.series()
        jobs = self._jobs(state, tiers, ends // _MS) if needs_jobs(question, series) else None
        chosen = Grouping(question, series, jobs, len(ends))
        if not chosen.ids or not len(ends):
            return SeriesAnswer((), ends, np.empty((0, len(ends))))
        if len(chosen.ids) * len(ends) > MAX_CELLS:
            raise _too_many(len(chosen.ids), len(ends))
        if chosen.group.ndim == 1:
            row, step, value = scan.steps(chosen, step_ms, question.statistic, in_groups=True)
            answer = np.full((len(chosen.groups), len(ends)), np.nan)
            answer[row, step - 1] = value
        else:
            row, step, value = scan.steps(chosen, step_ms, question.statistic, in_groups=False)
            values = np.full((len(chosen.ids), len(ends)), np.nan)
            values[row, step - 1] = value
            answer = grouped(values, chosen.group, len(chosen.groups), question.statistic)
        order = sorted(range(len(chosen.groups)), key=chosen.groups.__getitem__)
        order = [place for place in order if not np.isnan(answer[place]).all()]
        return SeriesAnswer(tuple(chosen.groups[place] for place in order), ends, answer[order])

    def _latest(self, state: HistoryState, question: Question, at_ms: int, within_ms: int) -> LatestAnswer:
        self._check(state, question)
        times = np.array([at_ms], np.int64)
        scan = Scan(self._engine, self._files, state, question.metric, [], at_ms - within_ms, at_ms)
        series = scan.series()
        jobs = self._jobs(state, [], times) if needs_jobs(question, series) else None
        chosen = Grouping(question, series, jobs, 1)
        if not chosen.ids:
            return LatestAnswer((), np.empty(0, np.int64), np.empty(0))
        row, newest_ms, value = scan.newest(chosen)
        values, newest = np.full((len(chosen.ids), 1), np.nan), np.full((len(chosen.ids), 1), NONE, np.int64)
        values[row, 0], newest[row, 0] = value, newest_ms
        pages = self._pages(state, [], times, within_ms)
        page = page_of(chosen.labels, newest, pages)
        values[~is_present(newest, page, times, within_ms)] = np.nan
        answer = grouped(values, chosen.group, len(chosen.groups), question.statistic)[:, 0]
        known = np.where(np.isnan(values), np.nan, newest.astype(np.float64))
        newest_of_group = grouped(known, chosen.group, len(chosen.groups), Statistic.MAX)[:, 0]
        order = [
            place
            for place in sorted(range(len(chosen.groups)), key=chosen.groups.__getitem__)
            if not np.isnan(answer[place])
        ]
        times_ns = newest_of_group[order].astype(np.int64) * _MS
        return LatestAnswer(tuple(chosen.groups[place] for place in order), times_ns, answer[order])

    def _events(self, state: HistoryState, start_ns: int, end_ns: int) -> list[HistoryEvent]:
        found: list[HistoryEvent] = []
        for file in state.catalog.files:
            if (
                file.tier == EVENTS
                and file.first_ms <= end_ns // _MS
                and (file.last_ms is None or file.last_ms >= start_ns // _MS)
                and self._files.is_whole(file)
            ):
                found += decode_events(self._files.content(file), file.path)
        for segment in state.segments.values():
            found += segment.events
        return newest_events(found)

    # -- jobs

    def _newest(
        self, state: HistoryState, metric: str, tiers: Sequence[str], times: Indices, within_ms: int
    ) -> tuple[list[Labels], Indices]:
        """Labels of the series of a metric, and the time of the newest sample of each up to each of some times."""
        if metric not in state.names() or not len(times):
            return [], np.empty((0, len(times)), np.int64)
        step_ms = int(times[1] - times[0]) if len(times) > 1 else within_ms
        start_ms = int(times[0]) - step_ms
        scan = Scan(self._engine, self._files, state, metric, tiers, start_ms - within_ms, int(times[-1]))
        series = scan.series()
        row, step, newest = scan.newest_of_steps(list(series), start_ms, step_ms)
        answer = np.full((len(series), len(times) + 1), NONE, np.int64)
        np.maximum.at(answer, (row, np.maximum(step, 0)), newest)
        return list(series.values()), np.maximum.accumulate(answer, axis=1)[:, 1:]

    def _pages(self, state: HistoryState, tiers: Sequence[str], times: Indices, within_ms: int) -> dict[str, Indices]:
        """Time of the newest page of each target up to each of some times."""
        labels, newest = self._newest(state, UP, tiers, times, within_ms)
        return newest_by_target(labels, newest)

    def _jobs(self, state: HistoryState, tiers: Sequence[str], times: Indices) -> Jobs:
        within = WITHIN_NS // _MS
        labels, newest = self._newest(state, JOB_OF_GPU, tiers, times, within)
        pages = self._pages(state, tiers, times, within)
        present = is_present(newest, page_of(labels, newest, pages), times, within)
        is_alone = [dict(one).get("share", Share.EXCLUSIVE) == Share.EXCLUSIVE for one in labels]
        present &= np.array(is_alone, np.bool_)[:, None]
        facts, newest_fact = self._newest(state, FACTS_OF_JOB, tiers, times, within)
        return Jobs(labels, present, facts, newest_fact)


def _too_many(series: int, steps: int) -> UsageError:
    return UsageError(
        f"{series:,} series x {steps:,} steps are more than {MAX_CELLS:,}",
        what_next="ask for longer steps, or for fewer",
    )
