"""Polling of a source: a thread of its own calls the collector, and the last state can be read at any time.

A collector that hangs is reported as timed out and blocks nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stepscope.core.metrics.readings import Collection, Collector, MissingReason

STALE_SECONDS = 60.0
"""Age of a collection from which its values are left out."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """State of one source of the agent at one moment.

    Attributes:
        name: of the source: "nvml", "host".
        collection: the last one; empty before the first.
        collected_ns: end of that collection, ns since the epoch; None before the first.
        seconds: duration of that collection; None before the first.
        reason: why there are no values now; None while the source answers.
        detail: one line on the reason.
        num_errors: collections that failed or did not end in time.
        age_seconds: time since the end of the last collection by the monotonic clock; None before the first.
    """

    name: str
    collection: Collection = field(default_factory=Collection)
    collected_ns: int | None = None
    seconds: float | None = None
    reason: MissingReason | None = None
    detail: str = ""
    num_collections: int = 0
    num_errors: int = 0
    age_seconds: float | None = None

    def is_older_than(self, seconds: float) -> bool:
        """Whether its last collection is at least so old; False before the first."""
        return self.age_seconds is not None and self.age_seconds >= seconds


_log = logging.getLogger(__name__)

DEADLINE_SECONDS = 10.0
PATIENCE_SECONDS = 30.0
"""With a source that answers "not yet"; dcgm-exporter's page is empty for some seconds after its start."""
_GRACE_SECONDS = 1.0
"""For an open call, when collecting stops."""


class ScheduledSource:
    """One source of the agent: calls a collector periodically and keeps its last state. Calls never overlap.

    A context manager, with a thread of its own; or one of a `SharedThread`. A collector that hangs cannot be ended: its
    thread is left behind, and does not keep the process.

    Args:
        collector: called in the source's thread.
        interval: seconds from the begin of one collection to the next.
        deadline: seconds after which a collection counts as timed out.
        patience: seconds after which a source that only answers "not yet" counts as timed out.
    """

    def __init__(
        self,
        name: str,
        collector: Collector,
        *,
        interval: float,
        deadline: float = DEADLINE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._collector = collector
        self._interval = interval
        self._deadline = deadline
        self._patience = patience
        self._wall_clock_ns = wall_clock_ns
        self._state = SourceState(name, reason=MissingReason.NOT_YET, detail="it has not answered yet")
        self._collected_at: float | None = None
        self._began: float | None = None
        self._waiting_since: float | None = None
        self._due = 0.0
        self._ended = threading.Event()
        self._ended_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"stepscope-{name}", daemon=True)

    def __enter__(self) -> ScheduledSource:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._thread.join(max(0.0, self._ended_at + _GRACE_SECONDS - time.monotonic()))

    def end(self) -> None:
        """Ask it to end, so that several sources do so at once; `__exit__` waits for it."""
        if not self._ended.is_set():
            self._ended_at = time.monotonic()
            self._ended.set()

    def state(self) -> SourceState:
        began, state, collected_at, now = self._began, self._state, self._collected_at, time.monotonic()
        waiting_since = self._waiting_since
        if collected_at is not None:
            state = replace(state, age_seconds=now - collected_at)
        if state.reason is MissingReason.NOT_YET and waiting_since is not None:
            waited = now - waiting_since
            if waited > self._patience:
                detail = f"{state.detail}; given up after {waited:.0f} s"
                state = replace(state, reason=MissingReason.TIMED_OUT, detail=detail)
        waited = 0.0 if began is None else now - began
        if waited <= self._deadline:
            return state
        detail = f"it does not answer for {waited:.0f} s"
        return replace(state, reason=MissingReason.TIMED_OUT, detail=detail, num_errors=state.num_errors + 1)

    def poll(self, now: float) -> float:
        """Call the collector if that is due; the time of the next call.

        Args:
            now: monotonic seconds.
        """
        if now >= self._due:
            self._poll()
            self._due = max(now + self._interval, time.monotonic())
        return self._due

    def _run(self) -> None:
        while not self._ended.is_set():
            due = self.poll(time.monotonic())
            self._ended.wait(max(0.0, due - time.monotonic()))

    def _poll(self) -> None:
        begin = self._began = time.monotonic()
        if self._state.reason is not MissingReason.NOT_YET or self._waiting_since is None:
            self._waiting_since = begin
        state = self._collected(begin)
        if state.num_collections != self._state.num_collections:
            self._collected_at = time.monotonic()
        self._state, self._began = state, None

    def _collected(self, begin: float) -> SourceState:
        state = self._state
        try:
            collection = self._collector.collect()
        except Exception as error:  # the edge of the source's thread: an error of the collector is counted and logged
            if state.reason is not MissingReason.FAILED:
                _log.exception("%s failed", state.name)
            detail = f"{type(error).__name__}: {error}"
            return replace(state, reason=MissingReason.FAILED, detail=detail, num_errors=state.num_errors + 1)
        seconds = time.monotonic() - begin
        reason, detail = reason_of_no_values(collection)
        return SourceState(
            state.name,
            collection,
            self._wall_clock_ns(),
            seconds,
            reason,
            detail,
            state.num_collections + 1,
            state.num_errors + (seconds > self._deadline),
        )


class SharedThread:
    """One thread for sources of the agent whose collectors never block: all that are due run one after the other.

    A thread that wakes up pays for cold caches each time, more than most of these collectors take. A context manager.

    Args:
        sources: in the order of their calls; those that read others come after them.
        after_round: called once all that were due have collected; its errors are logged.
    """

    def __init__(self, sources: Sequence[ScheduledSource], *, after_round: Callable[[], object] = lambda: None) -> None:
        self._sources = sources
        self._after_round = after_round
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-sources", daemon=True)

    def __enter__(self) -> SharedThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._thread.join(_GRACE_SECONDS)

    def end(self) -> None:
        """Ask it to end; `__exit__` waits for it."""
        self._ended.set()

    def _run(self) -> None:
        has_failed = False
        while not self._ended.is_set():
            now = time.monotonic()
            due = min(source.poll(now) for source in self._sources)
            try:
                self._after_round()
                has_failed = False
            except Exception:  # what follows a round costs no source anything
                if not has_failed:
                    _log.exception("after the sources were read")
                has_failed = True
            self._ended.wait(max(0.0, due - time.monotonic()))


def reason_of_no_values(collection: Collection) -> tuple[MissingReason | None, str]:
    """Why a source of the agent has nothing, with one line of detail; None if it has anything, or misses nothing."""
    of_all = [absent for absent in collection.missing if not absent.labels]
    if not collection.readings and not collection.findings and of_all:
        return of_all[0].reason, of_all[0].detail
    whole = next((absent for absent in of_all if not absent.metric), None)
    return (whole.reason, whole.detail) if whole else (None, "")
