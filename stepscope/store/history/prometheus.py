"""Metric history in a Prometheus-compatible server: Prometheus, Thanos, Mimir, VictoriaMetrics.

Counters: where the server has not MetricsQL, rates are made from the samples themselves (`sampled_rates`). Of more than
two million samples its own `rate` is used, which is too low in a step that a gap cuts, by up to the gap's share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.core.metrics import Metric, MetricGroup, MetricKind
from stepscope.store.history.prometheus_api import labels_of, number_of, prometheus_api
from stepscope.store.history.prometheus_events import prometheus_events
from stepscope.store.history.prometheus_steps import stepped_values
from stepscope.store.history.promql import (
    LEFT_OPEN_PROBE,
    METRIC_NAME,
    METRICSQL_PROBE,
    Dialect,
    latest_queries,
    range_query,
)
from stepscope.store.history.questions import (
    HistoryEvent,
    HistoryMetric,
    Labels,
    LatestAnswer,
    Question,
    SeriesAnswer,
    TimeRange,
    Where,
)
from stepscope.store.history.sampled_rates import sampled_rates

_SECONDS = 60.0
_MAX_STEPS = 1_000_000
_NS_PER_MS = 10**6
_OWN = "stepscope_"


class PrometheusHistory:
    """Metric history in a Prometheus-compatible server; a `MetricHistory`.

    Args:
        url: http or https, with user:password@ before the host and ?parameters of each request where needed.
        token: bearer token.
        user, password: for basic authentication.
        headers: more of each request, as {"X-Scope-OrgID": "team-a"} for a tenant of Mimir.
        ca_file, cert_file, key_file: certificates to trust instead of the system's, client certificate, its key.
        ignored_labels: of replicas that scrape the same targets, where the server does not join them.
        timeout_seconds: for a question, all its requests together.

    Raises:
        UsageError: the URL is not one of a server, or a header cannot be sent.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        user: str = "",
        password: str = "",
        headers: Mapping[str, str] | None = None,
        ca_file: str = "",
        cert_file: str = "",
        key_file: str = "",
        ignored_labels: Sequence[str] = (),
        timeout_seconds: float = _SECONDS,
    ) -> None:
        self._api = prometheus_api(
            url,
            token=token,
            user=user,
            password=password,
            headers=headers,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
        self._ignored = tuple(ignored_labels)
        self._timeout_seconds = timeout_seconds
        self._dialect: Dialect | None = None
        self._types: dict[str, str] = {}

    def metrics(self) -> Sequence[HistoryMetric]:
        """All metrics that it has, by name; raises as `MetricHistory`."""
        deadline = self._deadline()
        names = self._api.metric_names(deadline=deadline)
        self._types.update(self._types_of("", deadline))
        return [self._metric(name) for name in sorted(names) if METRIC_NAME.fullmatch(name)]

    def latest(self, question: Question, *, at_ns: int, within_ns: int = 300 * 10**9) -> LatestAnswer:
        """Newest values at a time, of samples that the server's own lookback reaches; raises as `MetricHistory`."""
        deadline, at_ms = self._deadline(), at_ns // _NS_PER_MS
        queries = latest_queries(question, (at_ns - within_ns) // _NS_PER_MS, ignored=self._ignored)
        values, times = (
            {labels_of(one): number_of(one.value[1]) for one in found if one.value is not None}
            for found in (
                self._api.instant(query, at_ms, lookback_seconds=within_ns / 1e9, deadline=deadline)
                for query in queries
            )
        )
        groups = sorted(values.keys() & times.keys())
        if not groups:
            self._check_metric(question.metric, deadline)
        return LatestAnswer(
            tuple(groups),
            np.array([round(times[group] * 1e3) * _NS_PER_MS for group in groups], np.int64),
            np.array([values[group] for group in groups], np.float64),
        )

    def range(self, question: Question, time: TimeRange) -> SeriesAnswer:
        """Values over time; raises as `MetricHistory`."""
        deadline = self._deadline()
        step_ms, rest = divmod(time.step_ns, _NS_PER_MS)
        num_steps = (time.end_ns - time.start_ns) // time.step_ns
        if rest or time.start_ns % _NS_PER_MS:
            raise UsageError("steps and times of the history are whole milliseconds")
        if num_steps > _MAX_STEPS:
            what = f"too many steps: {num_steps:,} of at most {_MAX_STEPS:,}"
            raise UsageError(what, what_next="take longer ones")
        times_ns = time.step_ends()
        values = self._values(question, times_ns // _NS_PER_MS, step_ms, deadline)
        groups = sorted(group for group, row in values.items() if not np.isnan(row).all())
        if not groups:
            self._check_metric(question.metric, deadline)
        matrix = np.array([values[group] for group in groups]).reshape(len(groups), len(times_ns))
        return SeriesAnswer(tuple(groups), times_ns, matrix)

    def events(self, start_ns: int, end_ns: int, *, where: Where | None = None) -> Sequence[HistoryEvent]:
        """Events that overlap a span of time, the oldest first; raises as `MetricHistory`."""
        deadline = self._deadline()
        server = self._server(deadline)
        return prometheus_events(self._api, start_ns, end_ns, where or {}, server=server, deadline=deadline)

    def _values(
        self, question: Question, times_ms: NDArray[np.int64], step_ms: int, deadline: float
    ) -> dict[Labels, NDArray[np.float64]]:
        server, is_counter = self._server(deadline), self._is_counter(question.metric, deadline)
        if is_counter and not server.has_metricsql:
            rates = sampled_rates(
                self._api, question, times_ms, step_ms, server=server, ignored=self._ignored, deadline=deadline
            )
            if rates is not None:
                return rates
        query = range_query(question, step_ms, is_counter=is_counter, server=server, ignored=self._ignored)
        return stepped_values(self._api, query, times_ms, step_ms, deadline=deadline)

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_seconds

    def _server(self, deadline: float) -> Dialect:
        """How the server evaluates queries, which only it tells."""
        if self._dialect is None:
            self._dialect = Dialect(
                is_left_open=self._answer(LEFT_OPEN_PROBE, deadline) == 1.0,
                has_metricsql=self._answer(METRICSQL_PROBE, deadline) is not None,
            )
        return self._dialect

    def _answer(self, probe: str, deadline: float) -> float | None:
        """Value of a query at a whole minute; None where the server does not know the query."""
        minute_ms = time.time_ns() // _NS_PER_MS // 60_000 * 60_000
        try:
            found = self._api.instant(probe, minute_ms, lookback_seconds=60.0, deadline=deadline)
        except DataError:
            return None
        return number_of(found[0].value[1]) if found and found[0].value is not None else None

    def _is_counter(self, metric: str, deadline: float) -> bool:
        if metric not in self._types and not metric.startswith(_OWN) and METRIC_NAME.fullmatch(metric):
            self._types[metric] = self._types_of(metric, deadline).get(metric, "")
        return self._metric(metric).kind is MetricKind.COUNTER

    def _types_of(self, metric: str, deadline: float) -> dict[str, str]:
        """Types of metrics; none from a server that does not keep them."""
        try:
            return self._api.metric_types(metric, deadline=deadline)
        except (DataError, UnreachableError):
            return {}

    def _metric(self, name: str) -> HistoryMetric:
        """Kind and unit of our own metrics follow from the name, as does the unit of all."""
        by_name: Metric = MetricGroup("").metric(name, "")
        if name.startswith(_OWN):
            return HistoryMetric(name, by_name.kind, by_name.unit)
        kind = _KINDS.get(self._types.get(name, ""))
        is_total = by_name.kind is MetricKind.COUNTER
        return HistoryMetric(name, kind or (MetricKind.COUNTER if is_total else None), by_name.unit or None)

    def _check_metric(self, metric: str, deadline: float) -> None:
        """Raise UsageError if the server has never had a metric of that name."""
        if metric not in self._api.metric_names(metric, deadline=deadline):
            raise UsageError(f"no metric {metric} in the history", where=self._api.base)


_KINDS = {"gauge": MetricKind.GAUGE, "counter": MetricKind.COUNTER}
