"""Recorder as a service: scrapes spread over the interval, threads for answers, store and maintenance, orderly end.

scheduler    asks each target once an interval, at an offset of its own
exchanges    one thread for all connections; a deadline for each
reader       turns answers into rows and events
store        writes them every 12 s
maintenance  compacts what is written
"""

from __future__ import annotations

import heapq
import logging
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from stepscope.core.errors import StepscopeError, UnreachableError
from stepscope.core.process import return_free_memory
from stepscope.core.text.numbers import counted
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, HistoryMetric, Labels
from stepscope.workflow.history.pages import PageLimits
from stepscope.workflow.history.recorder import HistorySink, Recorder, RecorderCounts, not_recorded
from stepscope.workflow.history.scrapes import HEADERS, MAX_PAGE_BYTES, PATH, Scrape, ScrapeTarget, target_of
from stepscope.workflow.nodes.agent_client import AgentClient
from stepscope.workflow.nodes.exchanges import AgentExchanges, Body
from stepscope.workflow.nodes.targets import AgentSources, Target, TargetList, check_source

_log = logging.getLogger(__name__)

FLUSH_SECONDS = 12.0
"""From one flush of the store to the next: with its own time, what is not on the disk is at most 15 s old."""
_MAINTENANCE_SECONDS = 5.0
_STATUS_SECONDS = 300.0
_TICK_SECONDS = 1.0
_END_SECONDS = 5.0
"""How long the end waits for a piece of maintenance, which may be cut short."""
_JUMP_SECONDS = 2.0
_MAX_AT_ONCE = 4096
DEADLINE_SHARE = 0.65
"""Of the interval: the default deadline of a scrape."""


class HistoryStore(HistorySink, Protocol):
    """What a recording needs of the store's writer."""

    def describe(self, metrics: Iterable[HistoryMetric]) -> None:
        """Take kinds of metrics; called by the thread that maintains."""

    def maintain(self) -> bool:
        """Do one piece of work on what is written; whether more remains."""


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """How agents are recorded.

    Attributes:
        interval: seconds from one scrape of a target to the next.
        timeout: seconds until a scrape is given up; shorter than the interval.
        labels: of all targets: `cluster`.
        targets_interval: seconds from one reading of the sources to the next.
    """

    interval: float = 15.0
    timeout: float = 15.0 * DEADLINE_SHARE
    labels: Mapping[str, str] = field(default_factory=dict)
    targets_interval: float = 60.0
    limits: PageLimits = field(default_factory=PageLimits)


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """State of a recording.

    Attributes:
        num_up, num_down: targets whose last scrape had, or had not, a page.
        missed: scrapes that were left out, as the one before was not over or this process was late.
        lag_seconds: by which the latest scrapes began too late, at most.
        open_events: that last, by kind.
        last_kept: monotonic seconds of the last flush that succeeded, or of the start.
    """

    counts: RecorderCounts
    num_targets: int
    num_up: int
    num_down: int
    missed: int
    lag_seconds: float
    open_events: Mapping[HistoryEventKind, int]
    last_kept: float


class Recording:
    """Recording of agents into a store until it is stopped.

    Args:
        store: is flushed, and not closed.
        before: events without an end in the history.

    Raises:
        UsageError: a certificate file cannot be used, or an address or a source of targets is not one.
    """

    def __init__(
        self,
        store: HistoryStore,
        agents: AgentSources,
        plan: RecordingPlan | None = None,
        *,
        before: Iterable[HistoryEvent] = (),
    ) -> None:
        for source in agents.sources:
            check_source(source)
        self._plan = plan or RecordingPlan()
        self._store = store
        self._agents = agents
        self._recorder = Recorder(store, before=before, limits=self._plan.limits)
        self._named = [self._target(client) for client in agents.named()]
        self._exchanges = AgentExchanges(seconds=self._plan.timeout, most=_MAX_AT_ONCE)
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._targets: dict[Labels, ScrapeTarget] = {}
        self._due: list[tuple[float, int, ScrapeTarget]] = []
        self._added = 0
        self._in_flight: set[Labels] = set()
        self._is_up: dict[Labels, bool] = {}
        self._missed = 0
        self._lag, self._lag_before = 0.0, 0.0
        self._last_kept = time.monotonic()
        self._error: StepscopeError | None = None
        self._is_ending = threading.Event()

    def note_gap(self, start_ns: int, end_ns: int) -> None:
        """Note that no recorder ran for a while; ns since the epoch."""
        self._recorder.add_event(not_recorded(start_ns, end_ns))

    def status(self) -> RecordingStatus:
        """State now."""
        up = list(self._is_up.values())
        return RecordingStatus(
            self._recorder.counts,
            len(self._targets),
            up.count(True),
            up.count(False),
            self._missed,
            max(self._lag, self._lag_before),
            self._recorder.num_open(),
            self._last_kept,
        )

    def run(self, stop: threading.Event) -> None:
        """Record until `stop` is set; then all that came is written.

        Raises:
            DataError: another writer has taken the store.
        """
        with ExitStack() as stack:
            if self._agents.sources:
                found = stack.enter_context(TargetList(self._agents.sources, interval=self._plan.targets_interval))
            else:
                found = None
            reader = threading.Thread(target=self._read, name="stepscope-history-pages", daemon=True)
            store = threading.Thread(target=self._keep, args=(stop,), name="stepscope-history-store", daemon=True)
            maintenance = threading.Thread(target=self._maintain, name="stepscope-history-compact", daemon=True)
            for thread in (reader, store, maintenance):
                thread.start()
            try:
                with self._exchanges:
                    self._schedule(stop, found)
            finally:
                self._is_ending.set()
                self._answers.put(None)
                reader.join()
                store.join()
                maintenance.join(_END_SECONDS)
        if self._error is not None:
            raise self._error
        self._flush()
        _log.info("ends: %s", status_line(self.status()))

    def _target(self, client: AgentClient) -> ScrapeTarget:
        return target_of(client, self._plan.labels)

    # the scheduler's thread

    def _schedule(self, stop: threading.Event, found: TargetList | None) -> None:
        plan = self._plan
        seen: object = self
        clock = time.time() - time.monotonic()
        settle_at = time.monotonic() + 2.0 * plan.interval
        is_settled, status_at, lag_at = False, time.monotonic() + plan.interval, 0.0
        while True:
            now = time.monotonic()
            targets = found.targets() if found else ()
            if targets is not seen:
                seen = targets
                self._set_targets([*self._named, *self._of_sources(targets or ())], now)
            self._ask_due(now)
            if not is_settled and now >= settle_at and targets is not None:
                self._answers.put(partial(self._recorder.settle, time.time_ns()))
                is_settled = True
            if now >= status_at:
                _log.info("%s", status_line(self.status()))
                status_at = now + _STATUS_SECONDS
            if now >= lag_at:
                self._lag, self._lag_before, lag_at = 0.0, self._lag, now + plan.interval
            jump = time.time() - time.monotonic() - clock
            if abs(jump) > _JUMP_SECONDS:
                _log.warning("the clock was set by %+.0f s; samples have the time at which they were taken", jump)
                clock += jump
            wait = min(self._due[0][0] - time.monotonic(), _TICK_SECONDS) if self._due else _TICK_SECONDS
            if stop.wait(max(wait, 0.0)):
                return

    def _of_sources(self, targets: Sequence[Target]) -> list[ScrapeTarget]:
        made = []
        for target in targets:
            try:
                made.append(self._target(self._agents.client_of(target)))
            except StepscopeError as error:
                _log.warning("targets: %s", error)
        return made

    def _set_targets(self, targets: Iterable[ScrapeTarget], now: float) -> None:
        of_agents = {str(target.client): target for target in targets}  # of one named twice that of its source
        wanted = {target.labels: target for target in of_agents.values()}
        gone = [target for labels, target in self._targets.items() if labels not in wanted]
        new = [target for labels, target in wanted.items() if labels not in self._targets]
        self._targets = wanted
        if gone:
            self._answers.put(partial(self._forget, gone, time.time_ns()))
        for target in new:
            self._added += 1
            heapq.heappush(self._due, (now + self._offset(target), self._added, target))
        if new and len(wanted) < len(of_agents):
            alike = counted(len(of_agents) - len(wanted), "target")
            _log.warning("%s left out: their labels are those of another one", alike)
        if new or gone:
            _log.info("%s: %d more, %d less", counted(len(wanted), "target"), len(new), len(gone))

    def _offset(self, target: ScrapeTarget) -> float:
        """Seconds until its first scrape: always at the same place of the interval, whenever this process began."""
        interval = self._plan.interval
        place = zlib.crc32(repr(target.labels).encode()) / 2**32 * interval
        return (place - time.time()) % interval

    def _ask_due(self, now: float) -> None:
        interval = self._plan.interval
        while self._due and self._due[0][0] <= now:
            due, number, target = heapq.heappop(self._due)
            if self._targets.get(target.labels) is None:
                continue
            target = self._targets[target.labels]
            late = max(0.0, now - due)
            self._lag = max(self._lag, late)
            num_late = int(late // interval)
            self._missed += num_late
            heapq.heappush(self._due, (due + (1 + num_late) * interval, number, target))
            if target.labels in self._in_flight:
                self._missed += 1
            else:
                self._ask(target)

    def _ask(self, target: ScrapeTarget) -> None:
        self._in_flight.add(target.labels)
        began, time_ns = time.monotonic(), time.time_ns() // 1_000_000 * 1_000_000

        def done(answer: Body | UnreachableError) -> None:
            scrape = Scrape(target, time_ns, time.monotonic() - began, answer)
            self._in_flight.discard(target.labels)
            self._answers.put(partial(self._take, scrape))

        try:
            self._exchanges.request(target.client, PATH, done, headers=HEADERS, max_bytes=MAX_PAGE_BYTES)
        except StepscopeError as error:
            done(UnreachableError(error.what, where=error.where))

    # the reader's thread

    def _read(self) -> None:
        while (work := self._answers.get()) is not None:
            try:
                work()
            except Exception:  # the thread's edge: one answer stops no other
                _log.exception("an answer could not be recorded")

    def _take(self, scrape: Scrape) -> None:
        if scrape.target.labels in self._targets:
            self._is_up[scrape.target.labels] = self._recorder.take(scrape, time.monotonic())

    def _forget(self, targets: Sequence[ScrapeTarget], time_ns: int) -> None:
        self._recorder.forget(targets, time_ns)
        for target in targets:
            self._is_up.pop(target.labels, None)

    # the store's threads

    def _keep(self, stop: threading.Event) -> None:
        while not self._is_ending.wait(FLUSH_SECONDS):
            try:
                self._flush()
            except StepscopeError as error:
                self._error = error
                stop.set()
                return
            except Exception:  # the thread's edge: what comes later may be kept
                _log.exception("samples could not be written")

    def _flush(self) -> None:
        if self._recorder.hand_over():
            self._last_kept = time.monotonic()

    def _maintain(self) -> None:
        while not self._is_ending.wait(_MAINTENANCE_SECONDS):
            try:
                if kinds := self._recorder.new_kinds():
                    self._store.describe(kinds)
                has_worked = False
                while self._store.maintain() and not self._is_ending.is_set():
                    has_worked = True
                if has_worked:
                    return_free_memory()
            except Exception as error:  # the thread's edge: segments stay, and it is tried again
                _log.warning("the store could not be compacted: %s", error)
                self._is_ending.wait(_STATUS_SECONDS)


def status_line(status: RecordingStatus) -> str:
    """One line on a recording."""
    counts = status.counts
    parts = [f"{status.num_up} of {counted(status.num_targets, 'target')} up"]
    parts += [f"{counted(counts.scrapes, 'scrape')}, {counted(counts.samples, 'sample')}"]
    parts += [f"{status.missed} missed"] if status.missed else []
    parts += [f"latest {status.lag_seconds:.1f} s late"] if status.lag_seconds >= 1.0 else []
    parts += [f"{counted(counts.failed_flushes, 'failed write')}"] if counts.failed_flushes else []
    return "; ".join(parts)
