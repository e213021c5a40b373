"""The metric history at a location: our own in a directory or at an fsspec URL, or a Prometheus-compatible server."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.core.errors import DataError
from stepscope.store.history.questions import HistoryEvent, MetricHistory

_SERVER = re.compile(r"https?://", re.IGNORECASE)
_DAY_NS = 86400 * 10**9
_OPEN_EVENTS_DAYS = 400
"""Age of events without an end that a recorder still looks for."""


def open_history(location: str, *, token: str = "", ca_file: str = "") -> MetricHistory:
    """The metric history at a location.

    Args:
        location: directory, fsspec URL, or http(s) URL of a server that answers Prometheus' HTTP API.
        token, ca_file: for such a server.

    Raises:
        UsageError: a package is missing, or it is not a URL.
        DataError: there is no history.
        UnreachableError: it does not answer.
    """
    if _SERVER.match(location):
        from stepscope.store.history.prometheus import PrometheusHistory

        return PrometheusHistory(location, token=token, ca_file=ca_file)
    from stepscope.store.history.embedded import history_at

    return history_at(location)


def open_events(location: str, now_ns: int) -> Sequence[HistoryEvent]:
    """Events without an end in the history of a directory or fsspec URL; none where there is no history yet."""
    from stepscope.store.history.embedded import history_at

    try:
        history = history_at(location)
    except DataError:
        return ()
    begin = now_ns - _OPEN_EVENTS_DAYS * _DAY_NS
    return [event for event in history.events(begin, now_ns + _DAY_NS) if event.end_ns is None]
