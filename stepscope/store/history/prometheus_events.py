"""Events that the series of a Prometheus-compatible server tell of: health events, gaps and verdicts.

Their times are those of steps of 15 s, or a 2,000th of the span if that is longer: an event began up to a step later,
and ended up to a step earlier. A target is known to have failed, not why. Health events are followed back to 30 days
before the span.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.core.metrics.agent import GPU_HEALTH, HOST_HEALTH, TRAINING
from stepscope.core.text.episodes import health_event_line, verdict_event_line
from stepscope.store.history.prometheus_api import PrometheusApi
from stepscope.store.history.prometheus_steps import stepped_values
from stepscope.store.history.promql import Dialect, series_selector
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, Labels, Where, is_one_of

SCRAPE_FAILED, NOT_SCRAPED = "scrape_failed", "not_scraped"
"""Codes of gaps: the target did not answer; the server did not ask it, or did not keep what it said."""

_SHORTEST_STEP_MS, _MAX_STEPS = 15_000, 2_000
_BEFORE_MS = 30 * 86_400_000
"""How long before the span a health event that is open at its start may have begun."""
_MISSING_SCRAPES = 3
"""Scrapes that are missing from this many on are a gap; Prometheus may leave out one without more."""
_MAX_REFINED = 20
"""Distinct beginnings before the span that are looked at more closely."""
_TARGET = frozenset({"cluster", "instance", "rack"})
_NOT_OF_DEVICE = frozenset({"job", "code", "action", "severity"})
_NS_PER_MS = 10**6

Flags = NDArray[np.bool_]


def prometheus_events(
    api: PrometheusApi, start_ns: int, end_ns: int, where: Where, *, server: Dialect, deadline: float
) -> list[HistoryEvent]:
    """Events that overlap a span of time, the oldest first.

    Raises:
        UsageError: a name in `where` is not valid.
        UnreachableError: the server does not answer.
        DataError: it does not answer as Prometheus does, or refuses a query.
    """
    span = _Span.of(start_ns // _NS_PER_MS, -(-end_ns // _NS_PER_MS))
    reader = _EventReader(api, server, where, deadline)
    found = [*reader.gaps(span), *reader.health(span), *reader.verdicts(span)]
    return sorted(found, key=lambda event: (event.start_ns, event.kind, event.labels, event.code))


@dataclass(frozen=True, slots=True)
class _Span:
    """Steps that cover a span of time; ms since the epoch, and ms."""

    start_ms: int
    step_ms: int
    times_ms: NDArray[np.int64]

    @classmethod
    def of(cls, start_ms: int, end_ms: int) -> _Span:
        step_ms = max(_SHORTEST_STEP_MS, -(-(end_ms - start_ms) // _MAX_STEPS // 1000) * 1000)
        count = max(-(-(end_ms - start_ms) // step_ms), 1)
        return cls(start_ms, step_ms, start_ms + step_ms * np.arange(1, count + 1, dtype=np.int64))

    def before(self) -> _Span:
        return _Span.of(self.start_ms - _BEFORE_MS, self.start_ms)

    def inside(self, begin_ns: int) -> _Span:
        """Shorter steps in the step that begins then."""
        begin_ms = begin_ns // _NS_PER_MS
        return _Span.of(begin_ms, begin_ms + self.step_ms)

    def episodes(self, holds: Flags) -> Iterator[tuple[int, int, int | None]]:
        """Index of the first step, begin and end (ns since the epoch; None: it lasts) of each run of True."""
        edges = np.diff(np.concatenate(([False], holds, [False])).astype(np.int8))
        for first, after in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            begin = self.start_ms + int(first) * self.step_ms
            end = None if after == len(holds) else self.start_ms + int(after) * self.step_ms
            yield int(first), begin * _NS_PER_MS, None if end is None else end * _NS_PER_MS


class _EventReader:
    """Reader of events from one server."""

    def __init__(self, api: PrometheusApi, server: Dialect, where: Where, deadline: float) -> None:
        self._api, self._server, self._where, self._deadline = api, server, where, deadline
        self._is_silent: dict[tuple[str, str], Flags] = {}

    def gaps(self, span: _Span) -> Iterator[HistoryEvent]:
        """Times in which a target did not answer, or was not asked."""
        of_targets = {label: values for label, values in self._where.items() if label in _TARGET}
        selector = series_selector("up", {"job": "stepscope", **of_targets})
        for labels, lowest in self._read(f"min_over_time({selector}{self._window(span)})", span).items():
            self._is_silent[_place(labels)] = self._silent(labels, span) | ~(lowest > 0.0)
            if not all(is_one_of(dict(labels).get(name), values) for name, values in self._where.items()):
                continue
            target = tuple(pair for pair in labels if pair[0] != "job")
            is_missing = _is_missing(lowest)
            has_failed = _held(lowest == 0.0, np.isnan(lowest)) & ~is_missing
            for flags, code, text in (
                (has_failed, SCRAPE_FAILED, "the target did not answer, or not with a page of metrics"),
                (is_missing, NOT_SCRAPED, "the server has no scrape of the target"),
            ):
                for _, start_ns, end_ns in span.episodes(flags):
                    yield HistoryEvent(HistoryEventKind.GAP, start_ns, end_ns, target, code, text)

    def health(self, span: _Span) -> Iterator[HistoryEvent]:
        """Health events; what was open before a gap stays open until the next page."""
        for metric in (f"{GPU_HEALTH}_event", f"{HOST_HEALTH}_event"):
            selector = series_selector(metric, self._where)
            rows = self._highest(selector, span)
            began_ns = self._began(selector, span, [labels for labels, row in rows.items() if row[0] == 1.0])
            for labels, row in rows.items():
                holds = _held(row == 1.0, self._silent(labels, span))
                for first, start_ns, end_ns in span.episodes(holds):
                    yield _health_event(labels, start_ns if first else began_ns.get(labels, start_ns), end_ns)

    def _began(self, selector: str, span: _Span, of: Sequence[Labels]) -> dict[Labels, int]:
        """When those began that were open before the span, ns since the epoch."""
        began_ns: dict[Labels, int] = {}
        if not of:
            return began_ns
        before = span.before()
        for labels, row in self._highest(selector, before).items():
            *_, (_, start_ns, end_ns) = [(0, 0, 0), *before.episodes(row == 1.0)]
            if end_ns is None and labels in of:
                began_ns[labels] = start_ns
        for start_ns in sorted(set(began_ns.values()))[:_MAX_REFINED]:
            finer = before.inside(start_ns)
            for labels, row in self._highest(selector, finer).items():
                if began_ns.get(labels) == start_ns:
                    began_ns[labels] = next((began for _, began, _ in finer.episodes(row == 1.0)), start_ns)
        return began_ns

    def verdicts(self, span: _Span) -> Iterator[HistoryEvent]:
        """Verdicts of runs, of two in one step that with the larger share; they last until another page of the run."""
        selector = series_selector(f"{TRAINING}bottleneck_ratio", self._where)
        query = f"max by (cluster, instance, run, cause) (last_over_time({selector}{self._window(span)}))"
        of_runs: dict[str, dict[str, NDArray[np.float64]]] = {}
        lasts: dict[str, Flags] = {}
        for labels, row in self._read(query, span).items():
            names = dict(labels)
            run, cause = names.get("run", ""), names.get("cause", "")
            shares = of_runs.setdefault(run, {})
            shares[cause] = np.fmax(shares.get(cause, row), row)
            lasts[run] = lasts.get(run, False) | _held(~np.isnan(row), self._silent(labels, span))
        for run, of_causes in of_runs.items():
            causes, shares_of_run = list(of_causes), np.nan_to_num(np.array(list(of_causes.values())), nan=-1.0)
            is_known = shares_of_run.max(axis=0) >= 0.0
            latest = np.maximum.accumulate(np.where(is_known, np.arange(len(is_known)), -1))
            chosen = np.where((is_known | lasts[run]) & (latest >= 0), shares_of_run.argmax(axis=0)[latest], -1)
            for number, cause in enumerate(causes):
                for first, start_ns, end_ns in span.episodes(chosen == number):
                    text = verdict_event_line(cause, float(shares_of_run[number, first]))
                    yield HistoryEvent(HistoryEventKind.VERDICT, start_ns, end_ns, (("run", run),), cause, text)

    def _silent(self, labels: Labels, span: _Span) -> Flags:
        """Steps in which nothing is known of the target of a series."""
        return self._is_silent.get(_place(labels), np.zeros(len(span.times_ms), np.bool_))

    def _highest(self, selector: str, span: _Span) -> dict[Labels, NDArray[np.float64]]:
        return self._read(f"max_over_time({selector}{self._window(span)})", span)

    def _window(self, span: _Span) -> str:
        return f"[{self._server.window_ms(span.step_ms)}ms]"

    def _read(self, query: str, span: _Span) -> dict[Labels, NDArray[np.float64]]:
        return stepped_values(self._api, query, span.times_ms, span.step_ms, deadline=self._deadline)


def _place(labels: Labels) -> tuple[str, str]:
    names = dict(labels)
    return names.get("cluster", ""), names.get("instance", "")


def _is_missing(lowest: NDArray[np.float64]) -> Flags:
    """Steps without any scrape, between scrapes that lie much further apart than most; not before or after all."""
    asked = np.flatnonzero(~np.isnan(lowest))
    missing = np.zeros(len(lowest), np.bool_)
    distances = np.diff(asked)
    if len(distances):
        usual = float(np.median(distances))
        for place in np.flatnonzero(distances > _MISSING_SCRAPES * usual).tolist():
            missing[asked[place] + 1 : asked[place + 1]] = True
    return missing


def _held(is_open: Flags, is_silent: Flags) -> Flags:
    """Whether something was open, where silent as before."""
    known = np.flatnonzero(is_open | ~is_silent)
    if not len(known):
        return is_open
    latest = np.searchsorted(known, np.arange(len(is_open)), side="right") - 1
    return np.where(latest >= 0, is_open[known[np.maximum(latest, 0)]], False)


def _health_event(labels: Labels, start_ns: int, end_ns: int | None) -> HistoryEvent:
    names = dict(labels)
    device = tuple(pair for pair in labels if pair[0] not in _NOT_OF_DEVICE)
    code = names.get("code", "")
    text = health_event_line(code, names.get("severity", ""), names.get("action", ""))
    return HistoryEvent(HistoryEventKind.HEALTH, start_ns, end_ns, device, code, text)
