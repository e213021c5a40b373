"""Values of a PromQL query at each of many times, read in as many requests as the server's limits want."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import DataError
from stepscope.store.history.prometheus_api import ApiSeries, PrometheusApi, TooMuchError, labels_of, number_of
from stepscope.store.history.questions import Labels

_FIRST_STEPS, _MAX_STEPS = 1_000, 10_000
"""Of one request; Prometheus answers at most 11,000 points a series."""
_VALUES = 500_000
"""Of one request: about 15 MB of JSON."""
_FRESH_MS = 60_000


def stepped_values(
    api: PrometheusApi, query: str, times_ms: NDArray[np.int64], step_ms: int, *, deadline: float
) -> dict[Labels, NDArray[np.float64]]:
    """Values by labels (without the metric's name), NaN where there is none.

    Args:
        times_ms: ms since the epoch, a step apart.
        deadline: of all requests, in monotonic seconds.

    Raises:
        UnreachableError: the server does not answer.
        DataError: it does not answer as Prometheus does, or refuses the query.
    """
    values: dict[Labels, NDArray[np.float64]] = {}
    first, count, largest = 0, _FIRST_STEPS, _MAX_STEPS
    while first < len(times_ms):
        count = min(count, len(times_ms) - first)
        try:
            answer = _request(api, query, times_ms[first : first + count], step_ms, deadline)
        except TooMuchError:
            if count == 1:
                raise
            count = largest = count // 2
            continue
        for series in answer:
            labels = labels_of(series)
            row = values.get(labels)
            if row is None:
                row = values[labels] = np.full(len(times_ms), np.nan)
            _fill(row[first : first + count], series, int(times_ms[first]), step_ms, api.base)
        first += count
        count = min(max(_VALUES // max(len(answer), 1), 1), largest)
    return values


def _request(
    api: PrometheusApi, query: str, times_ms: NDArray[np.int64], step_ms: int, deadline: float
) -> list[ApiSeries]:
    """Ask for values at times, and for some beyond if they are fresh.

    VictoriaMetrics repeats older values up to the present (its option search.latencyOffset), unless it is asked for the
    time after it.
    """
    last_ms, now_ms = int(times_ms[-1]), time.time_ns() // 10**6
    if last_ms > now_ms - _FRESH_MS:
        last_ms += (max(now_ms - last_ms, 0) // step_ms + 3) * step_ms
    return api.range(query, int(times_ms[0]), last_ms, step_ms, deadline=deadline)


def _fill(row: NDArray[np.float64], series: ApiSeries, first_ms: int, step_ms: int, where: str) -> None:
    times_ms = np.rint(np.array([at for at, _ in series.values]) * 1e3)
    place = (times_ms - first_ms) / step_ms
    index = place.astype(np.int64)
    if not ((index == place) & (index >= 0)).all():
        raise DataError("answers for other times than it was asked for", where=where)
    is_asked = index < len(row)
    row[index[is_asked]] = np.array([number_of(text) for _, text in series.values])[is_asked]
