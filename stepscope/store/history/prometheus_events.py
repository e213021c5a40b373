"""Events that the series of a Prometheus-compatible server tell of: health events, gaps and verdicts.

Their times are those of steps of 15 s, or a 2,000th of the span if that is longer: an event began up to a step later,
and ended up to a step earlier. A target is known to have failed, not why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stepscope.core.metrics.agent import GPU_HEALTH, HOST_HEALTH, TRAINING
from stepscope.core.text.episodes import health_event_line, verdict_event_line
from stepscope.store.history.prometheus_api import PrometheusApi
from stepscope.store.history.prometheus_steps import stepped_values
from stepscope.store.history.promql import series_selector
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, Labels, Where

SCRAPE_FAILED, NOT_SCRAPED = "scrape_failed", "not_scraped"
"""Codes of gaps: the target did not answer; the server did not ask it, or did not keep what it said."""

_SHORTEST_STEP_MS, _MAX_STEPS = 15_000, 2_000
_BEFORE_MS = 30 * 86_400_000
"""How long before the span a health event that is open at its start may have begun."""
_NOT_OF_DEVICE = frozenset({"job", "code", "action", "severity"})
_NS_PER_MS = 10**6

Flags = NDArray[np.bool_]


def prometheus_events(
    api: PrometheusApi, start_ns: int, end_ns: int, where: Where, *, deadline: float
) -> list[HistoryEvent]:
    """Events that overlap a span of time, the oldest first.

    Raises:
        UsageError: a name in `where` is not valid.
        UnreachableError: the server does not answer.
        DataError: it does not answer as Prometheus does, or refuses a query.
    """
    span = _Span.of(start_ns // _NS_PER_MS, -(-end_ns // _NS_PER_MS))
    reader = _EventReader(api, where, deadline)
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

    def episodes(self, holds: Flags) -> Iterator[tuple[int, int, int | None]]:
        """Index of the first step, begin and end (ns since the epoch; None: it lasts) of each run of True."""
        edges = np.diff(np.concatenate(([False], holds, [False])).astype(np.int8))
        for first, after in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            begin = self.start_ms + int(first) * self.step_ms
            end = None if after == len(holds) else self.start_ms + int(after) * self.step_ms
            yield int(first), begin * _NS_PER_MS, None if end is None else end * _NS_PER_MS


class _EventReader:
    """Reader of events from one server."""

    def __init__(self, api: PrometheusApi, where: Where, deadline: float) -> None:
        self._api, self._where, self._deadline = api, where, deadline
        self._is_silent: dict[str, Flags] = {}

    def gaps(self, span: _Span) -> Iterator[HistoryEvent]:
        """Times in which a target did not answer, or was not asked."""
        selector = series_selector("up", {"job": "stepscope", **self._where})
        for labels, lowest in self._read(f"min_over_time({selector}[{span.step_ms}ms])", span).items():
            has_failed, is_asked = lowest == 0.0, ~np.isnan(lowest)
            is_missing = ~is_asked
            is_missing[: int(np.argmax(is_asked))] = False  # not yet a target
            is_missing[len(is_asked) - int(np.argmax(is_asked[::-1])) :] = False  # not a target any more
            target = tuple(pair for pair in labels if pair[0] != "job")
            instance = dict(labels).get("instance", "")
            silent = has_failed | is_missing
            self._is_silent[instance] = self._is_silent.get(instance, np.zeros_like(silent)) | silent
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
            rows = self._read(f"max_over_time({selector}[{span.step_ms}ms])", span)
            earlier: dict[Labels, NDArray[np.float64]] = {}
            before = span.before()
            if any(row[0] == 1.0 for row in rows.values()):
                earlier = self._read(f"max_over_time({selector}[{before.step_ms}ms])", before)
            for labels, row in rows.items():
                instance = dict(labels).get("instance", "")
                holds = _held(row == 1.0, self._is_silent.get(instance, np.zeros(len(row), np.bool_)))
                for first, start_ns, end_ns in span.episodes(holds):
                    event = _health_event(labels, start_ns, end_ns)
                    if first == 0 and labels in earlier:
                        *_, (_, began_ns, ended_ns) = [(0, start_ns, 0), *before.episodes(earlier[labels] == 1.0)]
                        event = replace(event, start_ns=began_ns if ended_ns is None else start_ns)
                    yield event

    def verdicts(self, span: _Span) -> Iterator[HistoryEvent]:
        """Verdicts of runs; of two in one step that with the larger share."""
        selector = series_selector(f"{TRAINING}bottleneck_ratio", self._where)
        rows = self._read(f"max by (run, cause) (last_over_time({selector}[{span.step_ms}ms]))", span)
        of_runs: dict[str, list[tuple[str, NDArray[np.float64]]]] = {}
        for labels, row in rows.items():
            names = dict(labels)
            if "run" in names and "cause" in names:
                of_runs.setdefault(names["run"], []).append((names["cause"], row))
        for run, causes in of_runs.items():
            shares = np.array([np.where(np.isnan(row), -1.0, row) for _, row in causes])
            chosen = np.where(shares.max(axis=0) >= 0.0, shares.argmax(axis=0), -1)
            for number, (cause, row) in enumerate(causes):
                for first, start_ns, end_ns in span.episodes(chosen == number):
                    text = verdict_event_line(cause, float(row[first]))
                    yield HistoryEvent(HistoryEventKind.VERDICT, start_ns, end_ns, (("run", run),), cause, text)

    def _read(self, query: str, span: _Span) -> dict[Labels, NDArray[np.float64]]:
        return stepped_values(self._api, query, span.times_ms, span.step_ms, deadline=self._deadline)


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
