"""Answers of the metric history that all viewers share: made in the background, a few seconds old, few of them kept."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from urllib.parse import urlsplit

import numpy as np

from stepscope.core.documents.history import JobsReport, RecordedJob
from stepscope.core.errors import StepscopeError
from stepscope.core.metrics.readings import GPU
from stepscope.dashboard.failures import log_failure
from stepscope.store.history.deviations import Deviation, deviations_of
from stepscope.store.history.questions import GroupBy, HistoryEvent, MetricHistory, Question, TimeRange
from stepscope.workflow.history.cluster import MAP_METRICS, ClusterReader, ClusterState
from stepscope.workflow.history.jobs import jobs_of_history

_T = TypeVar("_T")

_MINUTE_NS = 60 * 10**9
"""Times of questions are whole minutes, so that rows of lower resolution answer them."""
REFRESH_SECONDS = 5.0
_IDLE_SECONDS = 60.0
"""An answer that nobody asked for so long is not made again."""
_COST_FACTOR = 4.0
"""A slow answer is made again after so many times its duration at the earliest."""
_MAX_KEPT = 24
_END_SECONDS = 10.0
FIRST_WAIT_SECONDS = 3.0
"""How long a viewer waits for the first answer of its kind; then the page says that it is being made."""
_WRITE_DELAY_SECONDS = 15.0
"""Samples are in the history so long after they were taken, at most."""
_SM_ACTIVE = GPU + "sm_active_ratio"


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[_T]):
    """An answer, or why there is none.

    Attributes:
        value: the latest one that could be made; None before the first.
        problem: why it could not be made again; None if it could.
        number: grows with each.
    """

    value: _T | None
    problem: str | None
    number: int
    made_ns: int


@dataclass(slots=True)
class _Kept:
    make: Callable[[], Any]
    asked: float
    due: float = 0.0
    snapshot: Snapshot[Any] | None = None


class SharedSnapshots:
    """Snapshots by key, made by one thread that lives as long as somebody asks.

    Args:
        seconds: from one making to the next.
    """

    def __init__(self, *, seconds: float = REFRESH_SECONDS) -> None:
        self._seconds = seconds
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._number = 0
        self._is_closed = False

    def close(self) -> None:
        """Wait for what is being made, and make nothing more: its engine must not run when the process ends."""
        with self._changed:
            self._is_closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(_END_SECONDS)

    def get(self, key: Hashable, make: Callable[[], _T], *, wait: float = FIRST_WAIT_SECONDS) -> Snapshot[_T] | None:
        """The latest snapshot of a key; None while the first is being made for longer than `wait` seconds."""
        now = time.monotonic()
        with self._changed:
            kept = self._kept.get(key)
            if kept is None:
                kept = self._kept[key] = _Kept(make, now)
                while len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
            kept.asked = now
            self._kept.move_to_end(key)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._work, name="stepscope-snapshots", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: kept.snapshot is not None, wait)
            return cast("Snapshot[_T] | None", kept.snapshot)

    def _work(self) -> None:
        while True:
            with self._changed:
                kept = self._next()
                if kept is None:
                    self._thread = None
                    return
                delay = kept.due - time.monotonic()
                if delay > 0:
                    self._changed.wait(delay)
                    continue
            began = time.monotonic()
            value, problem = _made(kept.make)
            now = time.monotonic()
            with self._changed:
                if value is None and kept.snapshot is not None:
                    value = kept.snapshot.value
                self._number += 1
                kept.snapshot = Snapshot(value, problem, self._number, time.time_ns())
                kept.due = began + max(self._seconds, _COST_FACTOR * (now - began))
                self._changed.notify_all()

    def _next(self) -> _Kept | None:
        """The one to make next; None if nobody has asked for any for a while, or at the end."""
        if self._is_closed:
            return None
        now = time.monotonic()
        wanted = [kept for kept in self._kept.values() if now - kept.asked < _IDLE_SECONDS]
        return min(wanted, key=lambda kept: kept.due, default=None)


def _made(make: Callable[[], _T]) -> tuple[_T | None, str | None]:
    try:
        return make(), None
    except StepscopeError as error:
        return None, str(error)
    except Exception as error:  # the thread's edge: the page says so, and it is tried again
        error_id = log_failure(error, doing="reading the metric history")
        return None, f"an unexpected error happened; the dashboard's log has details under the id {error_id}"


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with what its GPUs did.

    Attributes:
        sm_active: mean share of SM activity over the time; None where unknown.
        worst: the GPU that was farthest from the job's median; None where unknown.
    """

    job: RecordedJob
    sm_active: float | None
    worst: Deviation | None


class FleetQueries:
    """Questions of the pages to the metric history.

    Args:
        open_history: opens it; tried again until it is there.
        location: of the history, as commands on pages name it.
        interval: seconds from one scrape of an agent to the next.
        runs: folder of runs that are joined with jobs.
    """

    def __init__(
        self, open_history: Callable[[], MetricHistory], *, location: str, interval: float, runs: Path | None = None
    ) -> None:
        self._open, self._opened = open_history, cast("MetricHistory | None", None)
        self.location, self.interval = _without_password(location), interval
        self._runs = runs
        self._snapshots = SharedSnapshots()
        self._reader: ClusterReader | None = None

    @property
    def stale_after_ns(self) -> int:
        """Age from which a scrape is not the present: three intervals, and what writing takes."""
        return int((3.0 * self.interval + _WRITE_DELAY_SECONDS) * 1e9)

    def close(self) -> None:
        """End the thread that asks the history."""
        self._snapshots.close()

    def cluster(self, key: str | None) -> Snapshot[ClusterState] | None:
        """The cluster with this metric of the map."""
        known = key if any(metric.key == key for metric in MAP_METRICS) else None
        return self._snapshots.get(("cluster", known), lambda: self._read_cluster(known))

    def jobs(self, span_seconds: int) -> Snapshot[list[JobRow]] | None:
        """Jobs of the last so many seconds, live ones first."""
        return self._snapshots.get(("jobs", span_seconds), lambda: self._read_jobs(span_seconds))

    def events(self, span_seconds: int) -> Snapshot[list[HistoryEvent]] | None:
        """Events of the last so many seconds, the newest first."""

        def read() -> list[HistoryEvent]:
            now_ns = time.time_ns()
            found = self._history().events(now_ns - span_seconds * 10**9, now_ns)
            return sorted(found, key=lambda event: -event.start_ns)

        return self._snapshots.get(("events", span_seconds), read)

    # in the snapshots' thread

    def _history(self) -> MetricHistory:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _read_cluster(self, key: str | None) -> ClusterState:
        if self._reader is None:
            self._reader = ClusterReader(self._history(), stale_after_ns=self.stale_after_ns)
        return self._reader.read(key, time.time_ns(), reuse_ns=int(REFRESH_SECONDS / 2 * 1e9))

    def _read_jobs(self, span_seconds: int) -> list[JobRow]:
        history, end_ns = self._history(), -(-time.time_ns() // _MINUTE_NS) * _MINUTE_NS
        start_ns = end_ns - span_seconds * 10**9
        known = {metric.name for metric in history.metrics()}
        if GPU + "job_info" not in known:
            return []
        report = jobs_of_history(history, start_ns, end_ns, runs=None if self._runs is None else str(self._runs))
        means: dict[tuple[str, str], float] = {}
        worst: dict[tuple[str, str], Deviation] = {}
        if _SM_ACTIVE in known:
            whole = TimeRange(end_ns - report.step_ns * ((end_ns - start_ns) // report.step_ns), end_ns, report.step_ns)
            answer = history.range(Question(_SM_ACTIVE, (GroupBy.JOB,)), whole)
            for group, row in zip(answer.groups, answer.values, strict=True):
                means[_job_of(dict(group))] = float(np.nanmean(row))
            recent = TimeRange(end_ns - 5 * _MINUTE_NS, end_ns, _MINUTE_NS)
            answer = history.range(Question(_SM_ACTIVE, (GroupBy.GPU, GroupBy.JOB)), recent)
            for found in deviations_of(answer):
                if found is not None:
                    job = _job_of(dict(found.labels))
                    if job not in worst or abs(found.difference) > abs(worst[job].difference):
                        worst[job] = found
        return _rows(report, means, worst)


def _rows(
    report: JobsReport, means: dict[tuple[str, str], float], worst: dict[tuple[str, str], Deviation]
) -> list[JobRow]:
    jobs = sorted(report.jobs, key=lambda job: not job.is_live)
    return [
        JobRow(job, means.get((job.kind, job.id)), worst.get((job.kind, job.id)) if job.is_live else None)
        for job in jobs
    ]


def _job_of(labels: dict[str, str]) -> tuple[str, str]:
    return labels.get("job_kind", ""), labels.get("job_id", "")


def _without_password(location: str) -> str:
    if "://" not in location or "@" not in location:
        return location
    parts = urlsplit(location)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
