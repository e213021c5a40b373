"""Embedded backend of the metric history: DuckDB as engine over its Parquet files and open segments."""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepscope.core.documents.jobs import Share
from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.core.metrics import MetricKind
from stepscope.core.metrics.agent import JOB_FACTS
from stepscope.store.history.catalog import (
    CATALOG,
    EVENTS,
    HOUR_MS,
    RAW,
    SEGMENTS,
    TIER_MS,
    Catalog,
    MetricEntry,
    StoredFile,
    catalog_content,
    decode_catalog,
    entity_id,
    file_choice,
    metric_entry,
)
from stepscope.store.history.grouping import NONE, Floats, Indices, grouped, is_present, only_one
from stepscope.store.history.maintenance import newest_events, segment_number, segment_path
from stepscope.store.history.parquet import decode_events, entities_of, load_pyarrow
from stepscope.store.history.places import LocalPlace, Place, UrlPlace, place_of
from stepscope.store.history.questions import (
    GROUP_LABELS,
    GroupBy,
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
from stepscope.store.history.resolution import COUNTER_PARTS, GAUGE_PARTS
from stepscope.store.history.samples import TableRows
from stepscope.store.history.segments import Segment, SegmentDecoder, crc32

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_CELLS = 20_000_000
"""Series x steps of one question; 160 MB an array."""
WITHIN_NS = 300 * 10**9
"""A target or series without any sample for so long is gone, as in Prometheus."""
_MS = 1_000_000
_ATTEMPTS = 5
UP = "up"
TARGET = "instance"
JOB_OF_GPU = "stepscope_gpu_job_info"
FACTS_OF_JOB = "stepscope_job_info"
_BY_JOB = {GroupBy.JOB, GroupBy.USER, GroupBy.TEAM}
_JOB = GROUP_LABELS[GroupBy.JOB]
_GPU = GROUP_LABELS[GroupBy.GPU]
_DEVICE = ("instance", "uuid", "gpu_instance")
_OF_JOB = frozenset({*_JOB, *JOB_FACTS})
"""Labels that a series has of its job, if not of its own."""


def load_duckdb() -> ModuleType:
    """duckdb.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise UsageError("metric history needs duckdb", what_next='run: pip install "stepscope[history]"') from error
    return duckdb


def history_at(location: str | Path) -> EmbeddedHistory:
    """The metric history in a directory or at an fsspec URL.

    Raises:
        UsageError: a package is missing.
        DataError: there is no history, or a newer stepscope wrote it.
        UnreachableError: the URL does not answer.
    """
    return EmbeddedHistory(place_of(location))


@dataclass(frozen=True, slots=True)
class _State:
    """What the history holds at one moment."""

    catalog: Catalog
    segments: Mapping[int, Segment]

    def open_rows(self, metric: str) -> list[TableRows]:
        return [rows for segment in self.segments.values() for rows in segment.tables if metric in rows.columns]

    def entry(self, metric: str) -> MetricEntry:
        return self.catalog.metrics.get(metric) or metric_entry(metric)

    def names(self) -> set[str]:
        found = {name for segment in self.segments.values() for rows in segment.tables for name in rows.columns}
        return found.union(*self.catalog.columns)


class _FileGoneError(Exception):
    """A file that the catalog names is gone: it was replaced in the meantime."""


class EmbeddedHistory:
    """Metric history in Parquet files; a MetricHistory. Threads may share it; other processes may write meanwhile."""

    def __init__(self, place: Place) -> None:
        load_pyarrow()
        self._place = place
        self._decoder = SegmentDecoder()
        self._segments: dict[int, Segment | None] = {}
        self._entities: dict[str, tuple[tuple[int, ...], tuple[Labels, ...]]] = {}
        self._checked: dict[str, tuple[tuple[int, int], bool]] = {}
        self._known: tuple[bytes, Catalog] | None = None
        self._texts: dict[bytes, tuple[tuple[int, ...], tuple[Labels, ...]]] = {}
        self._guard = threading.Lock()
        duckdb = load_duckdb()
        self._duckdb_error: type[Exception] = duckdb.Error
        self._connection = duckdb.connect(
            ":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        self._connection.execute("SET temp_directory = ''")
        if isinstance(place, UrlPlace):
            self._connection.register_filesystem(place.file_system)
        self._state()

    def metrics(self) -> Sequence[HistoryMetric]:
        """See MetricHistory."""
        state = self._state()
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

    # -- the state of the files

    def _answer(self, ask: Callable[[_State], _T]) -> _T:
        for _ in range(_ATTEMPTS):
            try:
                return ask(self._state())
            except _FileGoneError:
                continue
        raise DataError("files change faster than they can be read", where=self._place.location, what_next="try again")

    def _state(self) -> _State:
        with self._guard:
            for _ in range(_ATTEMPTS):
                catalog = self._read_catalog()
                segments = self._open_segments(catalog)
                if self._read_catalog().compacted == catalog.compacted:
                    break
            if not catalog.change and not segments and not self._is_there():
                raise DataError(
                    "is not a metric history", where=self._place.location, what_next="check the path, or record one"
                )
            return _State(catalog, segments)

    def _read_catalog(self) -> Catalog:
        content = catalog_content(self._place)
        if self._known is None or self._known[0] != content:
            self._known = content, decode_catalog(content, self._place.path(CATALOG))
        return self._known[1]

    def _is_there(self) -> bool:
        try:
            return bool(self._place.sizes(""))
        except OSError as error:
            raise UnreachableError(f"cannot be read ({error})", where=self._place.location) from error

    def _open_segments(self, catalog: Catalog) -> dict[int, Segment]:
        """Segments that are not in files yet. A listing may lack names while others are added and removed, so that each
        number up to the first one that is not there is tried."""
        try:
            listed = [segment_number(name) for name in self._place.sizes(SEGMENTS)]
        except OSError as error:
            raise UnreachableError(f"cannot be read ({error})", where=self._place.location) from error
        newest = max((number for number in (*listed, *self._segments) if number is not None), default=0)
        newest = max(newest, catalog.compacted)
        found = {number: one for number, one in self._segments.items() if number > catalog.compacted}
        new = [number for number in range(catalog.compacted + 1, newest + 1) if number not in found]
        try:
            for number, content in zip(new, self._place.read_many([segment_path(one) for one in new]), strict=True):
                if content is not None:
                    found[number] = self._segment(number, content)
            number = newest
            while isinstance(self._place, LocalPlace) and (number := number + 1):
                found[number] = self._segment(number, self._place.read(segment_path(number)))
        except FileNotFoundError:  # not written yet
            pass
        except OSError as error:
            raise UnreachableError(f"cannot be read ({error})", where=self._place.location) from error
        self._segments = found
        return {number: segment for number, segment in sorted(found.items()) if segment is not None}

    def _segment(self, number: int, content: memoryview) -> Segment | None:
        try:
            return self._decoder.decode(content, self._place.path(segment_path(number)))
        except DataError as error:
            _LOG.warning("%s", error)
            return None

    def _files(self, state: _State, metric: str, tiers: Sequence[str], start_ms: int, end_ms: int) -> list[StoredFile]:
        """Files with rows of a metric in (start, end]."""
        has = [metric in columns for columns in state.catalog.columns]
        near = [
            file
            for file in state.catalog.files
            if file.span_ms < end_ms and file.span_ms + file.hours * HOUR_MS > start_ms
        ]
        there = {file.path for file in state.catalog.files}
        while True:
            choice = [
                file
                for file in file_choice(near, tiers, there)
                if has[file.columns] and file.first_ms - TIER_MS[file.tier] < end_ms and (file.last_ms or 0) > start_ms
            ]
            damaged = [file for file in choice if not self._is_whole(file)]
            if not damaged:
                return choice
            near = [file for file in near if file not in damaged]  # another resolution may stand in
            there.difference_update(file.path for file in damaged)

    def _is_whole(self, file: StoredFile) -> bool:
        """Whether a file is what was written; each is read once to tell. Object stores do so themselves."""
        if not isinstance(self._place, LocalPlace):
            return True
        try:
            status = Path(self._place.path(file.path)).stat()
            stamp = status.st_size, status.st_mtime_ns
            known = self._checked.get(file.path)
            if known is None or known[0] != stamp:
                is_whole = stamp[0] == file.bytes and crc32(self._place.read(file.path)) == file.crc32
                known = self._checked[file.path] = (stamp, is_whole)
                if not is_whole:
                    _LOG.warning("%s is damaged; left out", self._place.path(file.path))
        except FileNotFoundError as error:
            if file in self._read_catalog().files:
                if file.path not in self._checked:
                    _LOG.warning("%s is missing; left out", self._place.path(file.path))
                self._checked[file.path] = ((0, 0), False)
                return False
            raise _FileGoneError from error
        except OSError as error:
            _LOG.warning("%s cannot be read (%s); left out", self._place.path(file.path), error)
            return False
        return known[1]

    def _entities_of(self, file: StoredFile) -> tuple[tuple[int, ...], tuple[Labels, ...]]:
        known = self._entities.get(file.path)
        if known is None:
            pa, parquet = load_pyarrow()
            path = self._place.path(file.path)
            try:
                if isinstance(self._place, UrlPlace):
                    with self._place.file_system.open(path) as source:
                        metadata = parquet.read_metadata(source).metadata
                else:
                    metadata = parquet.read_metadata(path).metadata
            except FileNotFoundError as error:
                raise _FileGoneError from error
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"cannot be read ({error})", where=path) from error
            metadata = metadata or {}
            text = metadata.get(b"stepscope.labels", b"") + metadata.get(b"stepscope.entities", b"")
            known = self._texts.get(text)  # the same in most files of a table
            if known is None:
                entities = entities_of(metadata, path)
                known = self._texts[text] = tuple(map(entity_id, entities)), entities
            self._entities[file.path] = known
        return known

    # -- questions

    def _check(self, state: _State, question: Question) -> None:
        names = state.names()
        if question.metric not in names:
            close = difflib.get_close_matches(question.metric, names, 3)
            hint = f"did you mean {', '.join(close)}?" if close else "list the metrics of the history"
            raise UsageError(f"the history has no metric {question.metric}", what_next=hint)

    def _range(self, state: _State, question: Question, time: TimeRange, ends: Indices) -> SeriesAnswer:
        self._check(state, question)
        start_ms, step_ms = time.start_ns // _MS, max(time.step_ns // _MS, 1)
        if time.step_ns % _MS or time.start_ns % _MS:
            raise UsageError("steps and times of the history are whole milliseconds")
        if len(ends) > MAX_CELLS:
            raise _too_many(1, len(ends))
        end_ms = start_ms + step_ms * len(ends)
        tiers = [name for name, width in TIER_MS.items() if width and step_ms % width == start_ms % width == 0]
        scan = _Scan(self, state, question.metric, tiers, start_ms, end_ms)
        series = scan.series()
        jobs = self._jobs(state, tiers, ends // _MS) if _needs_jobs(question, series) else None
        chosen = _Grouping(question, series, jobs, len(ends))
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

    def _latest(self, state: _State, question: Question, at_ms: int, within_ms: int) -> LatestAnswer:
        self._check(state, question)
        times = np.array([at_ms], np.int64)
        scan = _Scan(self, state, question.metric, [], at_ms - within_ms, at_ms)
        series = scan.series()
        jobs = self._jobs(state, [], times) if _needs_jobs(question, series) else None
        chosen = _Grouping(question, series, jobs, 1)
        if not chosen.ids:
            return LatestAnswer((), np.empty(0, np.int64), np.empty(0))
        row, newest_ms, value = scan.newest(chosen)
        values, newest = np.full((len(chosen.ids), 1), np.nan), np.full((len(chosen.ids), 1), NONE, np.int64)
        values[row, 0], newest[row, 0] = value, newest_ms
        pages = self._pages(state, [], times, within_ms)
        page = _page_of(chosen.labels, newest, pages)
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

    def _events(self, state: _State, start_ns: int, end_ns: int) -> list[HistoryEvent]:
        found: list[HistoryEvent] = []
        for file in state.catalog.files:
            if (
                file.tier == EVENTS
                and file.first_ms <= end_ns // _MS
                and (file.last_ms is None or file.last_ms >= start_ns // _MS)
                and self._is_whole(file)
            ):
                try:
                    found += decode_events(self._place.read(file.path), self._place.path(file.path))
                except FileNotFoundError as error:
                    raise _FileGoneError from error
        for segment in state.segments.values():
            found += segment.events
        return newest_events(found)

    # -- jobs

    def _newest(
        self, state: _State, metric: str, tiers: Sequence[str], times: Indices, within_ms: int
    ) -> tuple[list[Labels], Indices]:
        """Labels of the series of a metric, and the time of the newest sample of each up to each of some times."""
        if metric not in state.names() or not len(times):
            return [], np.empty((0, len(times)), np.int64)
        step_ms = int(times[1] - times[0]) if len(times) > 1 else within_ms
        start_ms = int(times[0]) - step_ms
        scan = _Scan(self, state, metric, tiers, start_ms - within_ms, int(times[-1]))
        series = scan.series()
        row, step, newest = scan.newest_of_steps(list(series), start_ms, step_ms)
        answer = np.full((len(series), len(times) + 1), NONE, np.int64)
        np.maximum.at(answer, (row, np.maximum(step, 0)), newest)
        return list(series.values()), np.maximum.accumulate(answer, axis=1)[:, 1:]

    def _pages(self, state: _State, tiers: Sequence[str], times: Indices, within_ms: int) -> dict[str, Indices]:
        """Time of the newest page of each target up to each of some times."""
        labels, newest = self._newest(state, UP, tiers, times, within_ms)
        return _newest_by_target(labels, newest)

    def _jobs(self, state: _State, tiers: Sequence[str], times: Indices) -> _Jobs:
        within = WITHIN_NS // _MS
        labels, newest = self._newest(state, JOB_OF_GPU, tiers, times, within)
        pages = self._pages(state, tiers, times, within)
        present = is_present(newest, _page_of(labels, newest, pages), times, within)
        is_alone = [dict(one).get("share", Share.EXCLUSIVE) == Share.EXCLUSIVE for one in labels]
        present &= np.array(is_alone, np.bool_)[:, None]
        facts, newest_fact = self._newest(state, FACTS_OF_JOB, tiers, times, within)
        return _Jobs(labels, present, facts, newest_fact)


def _newest_by_target(labels: Sequence[Labels], newest: Indices) -> dict[str, Indices]:
    pages: dict[str, Indices] = {}
    for one, times in zip(labels, newest, strict=True):
        target = dict(one).get(TARGET, "")
        pages[target] = np.maximum(pages[target], times) if target in pages else times
    return pages


def _page_of(labels: Sequence[Labels], newest: Indices, pages: Mapping[str, Indices]) -> Indices:
    """Newest page of each series' target; of one without `up` what its other series say."""
    known = {**_newest_by_target(labels, newest), **pages}
    if not labels:
        return newest
    return np.stack([known[dict(one).get(TARGET, "")] for one in labels])


def _too_many(series: int, steps: int) -> UsageError:
    return UsageError(
        f"{series:,} series x {steps:,} steps are more than {MAX_CELLS:,}",
        what_next="ask for longer steps, or for fewer",
    )


def _needs_jobs(question: Question, series: Mapping[int, Labels]) -> bool:
    if _BY_JOB.intersection(question.by):
        return True
    names = {tuple(name for name, _ in labels) for labels in series.values()}
    return any(key not in one for key in _OF_JOB.intersection(question.where) for one in names)


class _Jobs:
    """Which job has which GPU when, and what is known of the jobs."""

    def __init__(
        self,
        labels: Sequence[Labels],
        present: np.ndarray[Any, np.dtype[np.bool_]],
        facts: Sequence[Labels],
        newest: Indices,
    ) -> None:
        index: dict[Labels, int] = {}
        devices: dict[Labels, int] = {}
        device, job = [], []
        self.extra: dict[int, dict[str, str]] = {}
        for one in labels:
            device.append(devices.setdefault(_device(one), len(devices)))
            job.append(index.setdefault(_some(one, _JOB), len(index)))
            self.extra.setdefault(job[-1], {}).update(pair for pair in one if pair[0] not in _GPU)
        for place in np.argsort(newest[:, -1], kind="stable") if newest.size else ():
            one = facts[place]
            self.extra.setdefault(index.setdefault(_some(one, _JOB), len(index)), {}).update(
                pair for pair in one if pair[0] not in ("instance", "rack")
            )
        self.labels = list(index)
        self.index, self._devices = index, devices
        self._owner = only_one(present, device, job, len(devices))

    def of(self, labels: Labels, num_steps: int) -> Indices:
        """Job of a series at each step: that of its labels, or of its GPU."""
        own = _some(labels, _JOB)
        if len(own) == len(_JOB):
            if own not in self.index:
                self.index[own] = len(self.labels)
                self.labels.append(own)
            return np.full(num_steps, self.index[own], np.int64)
        device = self._devices.get(_device(labels))
        return np.full(num_steps, NONE, np.int64) if device is None else self._owner[device]

    def fact(self, job: int, name: str) -> str | None:
        """A label of a job."""
        return dict(self.labels[job]).get(name) or self.extra.get(job, {}).get(name)


def _device(labels: Labels) -> Labels:
    """What identifies a GPU or MIG instance: its UUID, which series of its ranks have too, else its number."""
    uuid = _some(labels, _DEVICE)
    return uuid if any(name == "uuid" for name, _ in uuid) else _some(labels, _GPU)


def _some(labels: Labels, names: Iterable[str]) -> Labels:
    return tuple(pair for pair in labels if pair[0] in names)


class _Grouping:
    """Series that a question is about, and the group of each.

    Attributes:
        ids, labels: of the series.
        group: index into `groups` of each series, or of each series and step; NONE where it has none.
        num_series: that the metric has.
    """

    def __init__(self, question: Question, series: Mapping[int, Labels], jobs: _Jobs | None, num_steps: int) -> None:
        self.num_series = len(series)
        self.ids: list[int] = []
        self.labels: list[Labels] = []
        for number, labels in series.items():
            own = dict(labels)
            of_job = [name for name in question.where if name in _OF_JOB and name not in own]
            is_own = all(
                is_one_of(own.get(name), values) for name, values in question.where.items() if name not in of_job
            )
            if is_own and (jobs or not of_job):
                self.ids.append(number)
                self.labels.append(labels)
        names = {name for by in question.by if by not in _BY_JOB for name in GROUP_LABELS[by]}
        index: dict[Labels, int] = {}
        if jobs is None:
            self.group: Indices = np.array(
                [index.setdefault(_some(one, names), len(index)) for one in self.labels], np.int64
            )
        else:
            self.group = np.full((len(self.ids), num_steps), NONE, np.int64)
            for row, labels in enumerate(self.labels):
                job_at = jobs.of(labels, num_steps)
                for job in np.unique(job_at).tolist():
                    group = _with_job(question, labels, names, jobs, job)
                    if group is not None:
                        self.group[row, job_at == job] = index.setdefault(group, len(index))
        self.groups: list[Labels] = list(index)


def _with_job(question: Question, labels: Labels, names: set[str], jobs: _Jobs, job: int) -> Labels | None:
    """Group of a series while a job has it; None if it is in no group then."""
    own = dict(labels)
    for name, values in question.where.items():
        if name in _OF_JOB and name not in own:
            fact = None if job == NONE else jobs.fact(job, name)
            if fact is None or not is_one_of(fact, values):
                return None
    group = dict(_some(labels, names))
    for by in question.by:
        if by in _BY_JOB:
            for name in GROUP_LABELS[by]:
                fact = own.get(name) or (None if job == NONE else jobs.fact(job, name))
                if fact is None:
                    return None
                group[name] = fact
    return tuple(sorted(group.items()))


@dataclass(frozen=True, slots=True)
class _Form:
    """How rows of each form become samples, as SQL. `{t}` is the time in ms, `{v}` the value, `{mean}` and so on those
    of lower resolution; a sample without `key` is none."""

    raw: str
    lower: str
    key: str
    query: str


_MEANS = _Form(
    "{t} AS sampled, {v} AS value, 1.0 AS number",
    "{t} AS sampled, {mean} * {count} AS value, {count} AS number",
    "value",
    "SELECT s, k, sum(value) / sum(number) AS v FROM samples GROUP BY s, k",
)
_LOWEST = _Form(
    "{t} AS sampled, {v} AS value",
    "{t} AS sampled, {min} AS value",
    "value",
    "SELECT s, k, min(value) AS v FROM samples GROUP BY s, k",
)
_HIGHEST = _Form(
    "{t} AS sampled, {v} AS value",
    "{t} AS sampled, {max} AS value",
    "value",
    "SELECT s, k, max(value) AS v FROM samples GROUP BY s, k",
)
_RATES = _Form(
    "{t} AS sampled, {v} AS first, {v} AS last, {t} AS first_at, {t} AS last_at, 0.0 AS increase",
    "{t} AS sampled, {first} AS first, {last} AS last,"
    " {t} - {first_age_ms} AS first_at, {t} - {last_age_ms} AS last_at, {increase} AS increase",
    "first",
    """SELECT s, k, sum(increase + CASE WHEN before IS NULL THEN 0.0 WHEN first >= before THEN first - before
                                        ELSE first END) / ((max(last_at) - min(first_at)) / 1000.0) AS v
       FROM (SELECT s, k, first, first_at, last_at, increase,
                    lag(last) OVER (PARTITION BY s, k ORDER BY first_at) AS before FROM samples)
       GROUP BY s, k HAVING max(last_at) > min(first_at)""",
)
_NEWEST = "SELECT s, max(sampled), arg_max(value, sampled) FROM samples GROUP BY s"
_NEWEST_GAUGE = _Form("{t} AS sampled, {v} AS value", "{last_t} AS sampled, {mean} AS value", "value", _NEWEST)
_NEWEST_COUNTER = _Form(
    "{t} AS sampled, {v} AS value", "{t} - {last_age_ms} AS sampled, {last} AS value", "value", _NEWEST
)
_PRESENT = "SELECT s, k, max(sampled) FROM samples GROUP BY s, k"
_PRESENCE = _Form("{t} AS sampled, {v} AS value", "{last_t} AS sampled, nullif({count}, 0) AS value", "value", _PRESENT)
_PARTS = tuple(dict.fromkeys((*GAUGE_PARTS, *COUNTER_PARTS)))


class _Scan:
    """SQL over the rows of one metric in (start, end], from files of any resolution and open segments."""

    def __init__(
        self, history: EmbeddedHistory, state: _State, metric: str, tiers: Sequence[str], start_ms: int, end_ms: int
    ) -> None:
        self._history = history
        self._metric = metric
        self._is_counter = state.entry(metric).kind is MetricKind.COUNTER
        self._tables = state.catalog.tables
        self._start_ms, self._end_ms = start_ms, end_ms
        self._files = history._files(state, metric, tiers, start_ms, end_ms)
        self._rows = [
            rows for rows in state.open_rows(metric) if rows.times_ms.max() > start_ms and rows.times_ms.min() <= end_ms
        ]
        self._ids = {
            id(rows.entities): np.array([entity_id(one) for one in rows.entities], np.int64)
            for rows in {id(rows.entities): rows for rows in self._rows}.values()
        }

    def series(self) -> dict[int, Labels]:
        """Labels of all series by their number."""
        found: dict[int, Labels] = {}
        for file in self._files:
            found.update(zip(*self._history._entities_of(file), strict=True))
        for rows in {id(rows.entities): rows for rows in self._rows}.values():
            found.update(zip(self._ids[id(rows.entities)].tolist(), rows.entities, strict=True))
        return found

    def steps(
        self, chosen: _Grouping, step_ms: int, statistic: Statistic, *, in_groups: bool
    ) -> tuple[Indices, Indices, Floats]:
        """Series or group, step (from 1) and value of each step with a value."""
        form = {Statistic.MIN: _LOWEST, Statistic.MAX: _HIGHEST}.get(statistic, _MEANS)
        form = _RATES if self._is_counter else form
        if in_groups:
            function = {Statistic.MEAN: "avg"}.get(statistic, statistic.value)
            query = f"SELECT g, k, {function}(v) FROM ({form.query}) JOIN series USING (s) GROUP BY g, k"
            form = replace(form, query=query)
        return self._run(form, chosen.ids, self._start_ms, step_ms, chosen)

    def newest(self, chosen: _Grouping) -> tuple[Indices, Indices, Floats]:
        """Series, time and value of the newest sample of each."""
        form = _NEWEST_COUNTER if self._is_counter else _NEWEST_GAUGE
        return self._run(form, chosen.ids, self._start_ms, self._end_ms - self._start_ms, chosen)

    def newest_of_steps(self, ids: Sequence[int], start_ms: int, step_ms: int) -> tuple[Indices, Indices, Indices]:
        """Series, step (0 and less: before the first) and time of the newest sample in each step."""
        row, step, newest = self._run(_PRESENCE, ids, start_ms, step_ms)
        return row, step, newest.astype(np.int64)

    def _run(
        self, form: _Form, ids: Sequence[int], start_ms: int, step_ms: int, chosen: _Grouping | None = None
    ) -> tuple[Indices, Indices, NDArray[Any]]:
        parts, bound = self._parts(form, chosen)
        if not parts or not ids:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        sql = f"""
            WITH samples AS (
                SELECT s, (sampled - $start + $step - 1) // $step AS k, * EXCLUDE (s)
                FROM ({" UNION ALL ".join(parts)}) JOIN series USING (entity) WHERE {form.key} IS NOT NULL)
            {form.query}"""
        pa, _ = load_pyarrow()
        cursor = self._history._connection.cursor()
        try:
            series = {"entity": np.array(ids, np.int64), "s": np.arange(len(ids))}
            if chosen is not None and chosen.group.ndim == 1:
                series["g"] = chosen.group
            cursor.register("series", pa.table(series))
            if self._rows:
                cursor.register("open_rows", self._open_table())
            found = cursor.execute(sql, {**bound, "start": start_ms, "step": step_ms}).fetchnumpy()
        except self._history._duckdb_error as error:
            raise self._trouble(error) from error
        finally:
            cursor.close()
        first, second, third = map(np.ma.getdata, found.values())
        return first, second, third

    def _parts(self, form: _Form, chosen: _Grouping | None) -> tuple[list[str], dict[str, Any]]:
        """SELECT of the files of each resolution and of the open rows, and the parameters in them."""
        by_tier: dict[str, list[str]] = {}
        for file in self._files:
            by_tier.setdefault(file.tier, []).append(self._history._place.path(file.path))
        column = _quoted(self._metric)
        lower = {part: _quoted(f"{self._metric}.{part}") for part in _PARTS}
        parts: list[str] = []
        bound: dict[str, Any] = {}
        edges = f"> make_timestamptz({self._start_ms}000) AND time <= make_timestamptz({self._end_ms}000)"
        if by_tier and chosen is not None and (targets := self._targets(chosen)) is not None:
            edges += " AND instance BETWEEN $first_target AND $last_target"
            bound |= {"first_target": targets[0], "last_target": targets[1]}
        for tier, paths in by_tier.items():
            select = form.raw if tier == RAW else form.lower
            select = select.format(t="epoch_ms(time)", last_t="epoch_ms(last_time)", v=column, **lower)
            parts.append(f"SELECT entity, {select} FROM read_parquet($files_{tier}) WHERE time {edges}")
            bound[f"files_{tier}"] = paths
        if self._rows:
            select = form.raw.format(t="time", v="value")
            parts.append(
                f"SELECT entity, {select} FROM open_rows WHERE time > {self._start_ms} AND time <= {self._end_ms}"
            )
        return parts, bound

    def _targets(self, chosen: _Grouping) -> tuple[str, str] | None:
        """First and last target of the series, where they spare most of the files: files are sorted by it."""
        if any(TARGET not in self._tables[file.table] for file in self._files):
            return None
        asked = {dict(labels).get(TARGET, "") for labels in chosen.labels}
        if 2 * len(chosen.ids) > chosen.num_series:
            return None
        return min(asked), max(asked)

    def _open_table(self) -> Any:
        pa, _ = load_pyarrow()
        return pa.Table.from_batches(
            [
                pa.record_batch(
                    {
                        "entity": self._ids[id(rows.entities)][rows.entity],
                        "time": rows.times_ms,
                        "value": pa.array(rows.columns[self._metric], from_pandas=True),
                    }
                )
                for rows in self._rows
            ]
        )

    def _trouble(self, error: Exception) -> Exception:
        """The error to raise; a file that was damaged or went away meanwhile is left out at the next attempt."""
        if not all(self._history._is_whole(file) for file in self._files):
            return _FileGoneError()
        return DataError(f"cannot be read ({' '.join(str(error).split())[:300]})", where=self._history._place.location)


def _quoted(name: str) -> str:
    """A column's name in SQL; metrics that no file has never come here."""
    return '"' + name.replace('"', '""') + '"'
