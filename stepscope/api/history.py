"""Metric history in the Python API: the same questions to our own files and to a Prometheus server, as frames."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from stepscope.api.inputs import Path as PathName
from stepscope.api.inputs import path_names
from stepscope.api.reports import Report
from stepscope.core.documents.cost import CostReport
from stepscope.core.documents.history import JobsReport
from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import unknown_name
from stepscope.store.history.questions import (
    GROUP_LABELS,
    GroupBy,
    Labels,
    MetricHistory,
    Question,
    Statistic,
    TimeRange,
    Where,
)
from stepscope.workflow.cost import read_cost, read_rates
from stepscope.workflow.history.jobs import jobs_of_history
from stepscope.workflow.history.opening import open_history

Time = str | int | float | datetime | pd.Timestamp
"""A time that pandas reads; a number is seconds since the epoch; "now" and "-2h" are relative to now."""
Duration = str | int | float | timedelta | pd.Timedelta
"""A duration that pandas reads, "1m"; a number is seconds."""
_MAX_STEPS = 1000
"""Of a range whose step is not given."""


def history(location: str, *, token: str = "", ca_file: str = "", headers: Mapping[str, str] | None = None) -> History:
    """Open a metric history: a directory, an fsspec URL, or the http(s) URL of a Prometheus-compatible server.

    Args:
        token, ca_file, headers: for such a server; headers as X-Scope-OrgID for a tenant.

    Raises:
        UsageError: a package is missing.
        DataError: there is no history.
        UnreachableError: it does not answer.
    """
    return History(open_history(location, token=token, ca_file=ca_file, headers=headers), location)


class History:
    """Metric history. Values are in the metric's unit, a counter's in unit a second; unknown is NaN.

    Raises:
        UsageError: from every method, for a question that makes no sense.
        UnreachableError, DataError: the history does not answer, or cannot be read.
    """

    def __init__(self, backend: MetricHistory, location: str) -> None:
        self._backend, self.location = backend, location

    def __repr__(self) -> str:
        return f"History({self.location!r})"

    def metrics(self) -> pd.DataFrame:
        """All metrics that it has: `kind` and `unit` by name."""
        known = self._backend.metrics()
        index = pd.Index([metric.name for metric in known], name="metric", dtype="str")
        kinds = [None if metric.kind is None else metric.kind.value for metric in known]
        units = [None if metric.unit is None else metric.unit.value for metric in known]
        return pd.DataFrame({"kind": kinds, "unit": units}, index, dtype="str")

    def range(
        self,
        metric: str,
        *,
        by: str | Sequence[str] = "gpu",
        start: Time = "-1h",
        end: Time = "now",
        step: Duration | None = None,
        where: Where | None = None,
        statistic: str = "mean",
    ) -> pd.DataFrame:
        """Values over time: a row a step by its end (UTC), a column a group by its labels.

        Args:
            metric: "stepscope_gpu_sm_active_ratio", or without "stepscope_".
            by: gpu, node, job, rack, user, rank, or several of them; none for all together.
            step: None for one that gives about a thousand rows.
            where: values that labels must have: {"job_id": "42", "rack": ["r1", "r2"]}.
            statistic: mean, min, max, sum or count over the series of a group.
        """
        start_ns, end_ns = _span_ns(start, end)
        step_ns = _step_ns(end_ns - start_ns) if step is None else _duration_ns(step)
        if step_ns <= 0:
            raise UsageError("the step is empty", what_next='give "1m", "2h", or seconds')
        question = self._question(metric, by, where, statistic)
        answer = self._backend.range(question, TimeRange.covering(start_ns, end_ns, step_ns))
        times = pd.DatetimeIndex(pd.to_datetime(answer.times_ns, unit="ns", utc=True), name="time")
        return pd.DataFrame(answer.values.T, times, _columns(answer.groups, question.by))

    def latest(
        self,
        metric: str,
        *,
        by: str | Sequence[str] = "gpu",
        at: Time = "now",
        within: Duration = "5m",
        where: Where | None = None,
        statistic: str = "mean",
    ) -> pd.DataFrame:
        """Newest values: `value` and `time` (UTC) by the labels of a group; arguments as of `range`.

        Args:
            within: older values count for nothing.
        """
        question = self._question(metric, by, where, statistic)
        answer = self._backend.latest(question, at_ns=_time_ns(at), within_ns=_duration_ns(within))
        times = pd.to_datetime(answer.times_ns, unit="ns", utc=True)
        return pd.DataFrame({"value": answer.values, "time": times}, _columns(answer.groups, question.by))

    def events(self, *, start: Time = "-1d", end: Time = "now", where: Where | None = None) -> pd.DataFrame:
        """Health events, gaps and verdicts that overlap a time, the oldest first; `end` is NaT where one lasts."""
        found = self._backend.events(*_span_ns(start, end), where=where)
        return pd.DataFrame(
            {
                "kind": pd.Series([event.kind.value for event in found], dtype="str"),
                "start": pd.to_datetime([event.start_ns for event in found], unit="ns", utc=True),
                "end": pd.to_datetime(pd.Series([event.end_ns for event in found], dtype="Int64"), unit="ns", utc=True),
                "code": pd.Series([event.code for event in found], dtype="str"),
                "text": pd.Series([event.text for event in found], dtype="str"),
                "labels": pd.Series([dict(event.labels) for event in found], dtype="object"),
            }
        )

    def cost(
        self,
        *,
        by: str = "job",
        start: Time = "-30d",
        end: Time = "now",
        rates: str | PathLike[str] | None = None,
        runs: PathName | Sequence[PathName] = (),
    ) -> Report[CostReport]:
        """GPU-hours, energy and money by job, user, team or node, as `stepscope cost`.

        Args:
            by: job, user, team or node.
            rates: a rate card (TOML).
            runs: run directories, or folders of them, for the jobs' waste.
        """
        card = None if rates is None else read_rates(Path(rates))
        names = path_names(runs) if runs else []
        return Report(read_cost(self._backend, *_span_ns(start, end), by=by, rates=card, runs=names), "rows")

    def jobs(
        self, *, start: Time = "-1d", end: Time = "now", runs: str | PathLike[str] | None = None
    ) -> Report[JobsReport]:
        """Jobs that had GPUs, live ones first, and their runs, as `stepscope history jobs`.

        Args:
            runs: a folder of run directories to join with the jobs.
        """
        folder = None if runs is None else fspath(runs)
        return Report(jobs_of_history(self._backend, *_span_ns(start, end), runs=folder), "jobs")

    def _question(self, metric: str, by: str | Sequence[str], where: Where | None, statistic: str) -> Question:
        known = {one.name for one in self._backend.metrics()}
        full = next((name for name in (metric, f"stepscope_{metric}") if name in known), None)
        if full is None:
            raise unknown_name("metric", metric, known, listing="metrics() lists those that it has")
        groups = [by] if isinstance(by, str) else list(by)
        return Question(
            full,
            tuple(_member(GroupBy, group, "group") for group in groups),
            _member(Statistic, statistic, "statistic"),
            where or {},
        )


def _step_ns(span_ns: int) -> int:
    """Step of whole seconds, or minutes where it is longer, for about a thousand of them."""
    wanted_ns = max(span_ns // _MAX_STEPS, 1)
    unit_ns = 10**9 if wanted_ns < 60 * 10**9 else 60 * 10**9
    return wanted_ns + -wanted_ns % unit_ns


def _member(kind: Any, word: str, what: str) -> Any:
    if word not in list(kind):
        raise unknown_name(what, word, [member.value for member in kind])
    return kind(word)


def _columns(groups: Sequence[Labels], by: Sequence[GroupBy]) -> pd.Index:
    """Labels of the groups, a level each, "" where unknown; those that no group has are left out, unless it is all."""
    named: list[Mapping[str, str]] = [dict(group) for group in groups]
    wanted = dict.fromkeys(label for one in by for label in GROUP_LABELS[one])
    levels = [label for label in wanted if any(label in group for group in named)] or list(wanted)
    if not levels:
        return pd.Index(["all"] * len(groups), dtype="str")
    columns = [[group.get(level, "") for group in named] for level in levels]
    return pd.MultiIndex.from_arrays(columns, names=levels) if len(levels) > 1 else pd.Index(columns[0], name=levels[0])


def _span_ns(start: Time, end: Time) -> tuple[int, int]:
    start_ns, end_ns = _time_ns(start), _time_ns(end)
    if end_ns <= start_ns:
        raise UsageError("the time is empty", what_next="give start before end")
    return start_ns, end_ns


def _time_ns(time: Time) -> int:
    try:
        if isinstance(time, str) and (time == "now" or time.startswith("-")):
            before = 0 if time == "now" else _duration_ns(time[1:])
            return int(pd.Timestamp.now(tz="UTC").value) - before
        if _is_number(time):
            return int(float(time) * 1e9)
        stamp = pd.Timestamp(time)
        if isinstance(time, bool) or pd.isna(stamp):
            raise ValueError("no date")
        stamp = stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp
        return int(stamp.as_unit("ns").value)
    except (UsageError, ValueError, TypeError, OverflowError) as error:
        what_next = 'give a date, "-2h", "now", or seconds since the epoch'
        raise UsageError(f"{time!r} is not a time ({error})", what_next=what_next) from None


def _duration_ns(duration: Duration) -> int:
    try:
        if _is_number(duration):
            length = int(float(duration) * 1e9)
        elif isinstance(duration, bool) or (isinstance(duration, str) and not _HAS_UNIT.search(duration)):
            raise ValueError("it has no unit")
        else:
            parsed = pd.Timedelta(_DAYS.sub("D", duration) if isinstance(duration, str) else duration)
            if pd.isna(parsed):
                raise ValueError("no duration")
            length = int(parsed.as_unit("ns").value)
        if length < 0:
            raise ValueError("it is negative")
        return length
    except (ValueError, TypeError, OverflowError) as error:
        what_next = 'give "1m", "2h", "7d", or seconds'
        raise UsageError(f"{duration!r} is not a duration ({error})", what_next=what_next) from None


_DAYS = re.compile(r"(?<=\d) ?d(?![A-Za-z])")
"""pandas 3 warns of "7d", which Prometheus and the commands take."""
_HAS_UNIT = re.compile(r"[A-Za-z:]")


def _is_number(value: object) -> TypeGuard[float]:
    """Whether it is a count of seconds, also one of numpy's, whose durations are integers by type."""
    return isinstance(value, Real) and not isinstance(value, (bool, np.timedelta64))
