"""Recording of agents into the history at a location: store, service, and what an earlier recorder left open."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stepscope.core.errors import StepscopeError
from stepscope.store.history.plans import Retention
from stepscope.store.history.writer import HistoryWriter
from stepscope.workflow.history.opening import left_open
from stepscope.workflow.history.service import Recording, RecordingPlan
from stepscope.workflow.nodes.targets import AgentSources

_log = logging.getLogger(__name__)


@contextmanager
def recording(
    location: str,
    agents: AgentSources,
    plan: RecordingPlan,
    *,
    keep_seconds: float | None = None,
    max_bytes: int | None = None,
) -> Iterator[Recording]:
    """A recording into a directory or fsspec URL, which no other recorder may use while it is open.

    Args:
        keep_seconds: of samples as they came; what is kept at lower resolution stays at least as long.
        max_bytes: of the history; the oldest samples go first.

    Raises:
        UsageError: a package is missing, an address is not one, or a certificate file cannot be used.
        DataError: another recorder has the place, or it cannot be written.
        UnreachableError: the URL does not answer.
    """
    default = Retention()
    keep = default.raw_seconds if keep_seconds is None else keep_seconds
    retention = Retention(
        raw_seconds=keep,
        one_minute_seconds=max(keep, default.one_minute_seconds),
        ten_minutes_seconds=max(keep, default.ten_minutes_seconds),
        max_bytes=max_bytes,
    )
    with HistoryWriter(location, retention=retention) as writer:
        now_ns = time.time_ns()
        before = left_open(location, now_ns)
        recorder = Recording(writer, agents, plan, before=before.events)
        if before.newest_ns is not None and now_ns - before.newest_ns > 2e9 * plan.interval:
            recorder.note_gap(before.newest_ns, now_ns)
        yield recorder


@contextmanager
def recording_beside(location: str, agents: AgentSources, plan: RecordingPlan) -> Iterator[Recording]:
    """A recording in threads of their own, beside what the process does otherwise; raises as `recording`."""
    stop = threading.Event()
    with recording(location, agents, plan) as recorder:

        def run() -> None:
            try:
                recorder.run(stop)
            except StepscopeError as error:
                _log.error("recording ends: %s", error)

        thread = threading.Thread(target=run, name="stepscope-history", daemon=True)
        thread.start()
        try:
            yield recorder
        finally:
            stop.set()
            thread.join()
