"""The metric history at a location: our own in a directory or at an fsspec URL, or a Prometheus-compatible server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from stepscope.core.errors import DataError, UsageError
from stepscope.store.history.questions import GroupBy, HistoryEvent, MetricHistory, Question
from stepscope.workflow.history.pages import UP

_SERVER = re.compile(r"https?://", re.IGNORECASE)
_DAY_NS = 86400 * 10**9
_OPEN_EVENTS_DAYS = 400
"""Age of events without an end that a recorder still looks for."""
_NEWEST_WITHIN_NS = 7 * _DAY_NS
"""An earlier recorder that ended before that is another one's history: no gap is noted."""


def is_server(location: str) -> bool:
    """Whether the history at a location is that of a Prometheus-compatible server, which cannot be recorded into."""
    return _SERVER.match(location) is not None


def open_history(
    location: str, *, token: str = "", ca_file: str = "", headers: Mapping[str, str] | None = None
) -> MetricHistory:
    """The metric history at a location.

    Args:
        location: directory, fsspec URL, or http(s) URL of a server that answers Prometheus' HTTP API.
        token, ca_file, headers: for such a server.

    Raises:
        UsageError: a package is missing, or it is not a URL.
        DataError: there is no history.
        UnreachableError: it does not answer.
    """
    if is_server(location):
        from stepscope.store.history.prometheus import PrometheusHistory

        return PrometheusHistory(location, token=token, ca_file=ca_file, headers=headers)
    from stepscope.store.history.embedded import history_at

    return history_at(location)


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """What an earlier recorder left in a history.

    Attributes:
        events: without an end.
        newest_ns: time of the newest scrape, ns since the epoch; None without one, or where it is not known.
    """

    events: tuple[HistoryEvent, ...] = ()
    newest_ns: int | None = None


def left_open(location: str, now_ns: int) -> LeftOpen:
    """What an earlier recorder left in the history of a directory or fsspec URL; nothing where there is none yet."""
    from stepscope.store.history.embedded import history_at

    try:
        history = history_at(location)
        found = history.events(now_ns - _OPEN_EVENTS_DAYS * _DAY_NS, now_ns + _DAY_NS)
    except DataError:
        return LeftOpen()
    newest_ns = None
    with suppress(UsageError):  # it has no scrapes
        times = history.latest(Question(UP, (GroupBy.NODE,)), at_ns=now_ns, within_ns=_NEWEST_WITHIN_NS).times_ns
        newest_ns = int(times.max()) if len(times) else None
    return LeftOpen(tuple(event for event in found if event.end_ns is None), newest_ns)
