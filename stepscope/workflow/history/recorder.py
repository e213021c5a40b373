"""Recorder: turns scrapes of agents into the rows and events of the history. Without sockets, threads or clocks.

`take` is called by one thread, `hand_over` by another: what the store takes long for delays no scrape. What it does not
take in time is dropped, and a gap of all targets says so.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stepscope.core.metrics import MetricKind
from stepscope.core.text.numbers import counted
from stepscope.store.history.catalog import metric_entry
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, HistoryMetric, Labels
from stepscope.store.history.samples import SampleBlock
from stepscope.workflow.history.episodes import WATCHED, Episodes, GapReason
from stepscope.workflow.history.pages import NotAPageError, Page, PageLimits, PageReader
from stepscope.workflow.history.rows import RowBatch
from stepscope.workflow.history.scrapes import NoPageError, Scrape, ScrapeTarget, content_of

_log = logging.getLogger(__name__)

_MAX_WAITING_BYTES = 256 << 20
"""Of values that wait for a store that is busy; of 1,250 agents those of an hour."""
LEFT_OUT = ("duplicate", "limit", "store")
"""Why samples are left out."""
_MAX_UNKEPT_EVENTS = 100_000
_MAX_KINDS = 10_000
_MAX_LINES = 8
"""Targets that change at once and have a line each; more share one."""


class HistorySink(Protocol):
    """What a recorder needs of the store's writer."""

    def append(self, block: SampleBlock) -> None:
        """Take samples."""

    def append_events(self, events: Iterable[HistoryEvent]) -> None:
        """Take events; one that ends is given again."""

    def flush(self) -> bool:
        """Write all; whether it is on the disk. If not, the next flush tries again."""

    @property
    def num_lost(self) -> int:
        """Batches that were lost so far: of those that could not be written the oldest."""


@dataclass(slots=True)
class RecorderCounts:
    """What a recorder has done since its start.

    Attributes:
        failures: scrapes without a page, by reason.
        seconds: of all scrapes.
        samples: that the history got.
        left_out: samples that it did not get: of a series that came before on the page, beyond a target's limits,
            or as the store was too busy.
        received_bytes: of pages, unpacked.
        flushes, failed_flushes: of the store.
    """

    scrapes: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    samples: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    received_bytes: int = 0
    flushes: int = 0
    failed_flushes: int = 0


@dataclass(slots=True)
class _Target:
    reader: PageReader
    left_out: bool = False
    duplicates: bool = False


@dataclass(slots=True)
class _Changes:
    """Targets whose state changed since the last lines of the log."""

    silent: list[tuple[str, str, str]] = field(default_factory=list)
    answering: list[tuple[str, float]] = field(default_factory=list)

    def log(self) -> None:
        if len(self.silent) > _MAX_LINES:
            reasons = Counter(reason for _, reason, _ in self.silent).most_common()
            shown = ", ".join(f"{reason} {count}" for reason, count in reasons)
            _log.warning("%s do not answer with a page: %s", counted(len(self.silent), "target"), shown)
        else:
            for instance, _, text in self.silent:
                _log.warning("%s: no page: %s", instance, text)
        if len(self.answering) > _MAX_LINES:
            _log.info("%s answer again", counted(len(self.answering), "target"))
        else:
            for instance, seconds in self.answering:
                _log.info("%s: answers again after %.0f s", instance, seconds)


class _Unkept:
    """What the sink could not write: its events are given again, and of batches that it lost a gap tells."""

    def __init__(self) -> None:
        self._events: list[HistoryEvent] = []
        self._begins: list[int | None] = []
        self._num_lost = 0

    def give(self, sink: HistorySink, events: Sequence[HistoryEvent], first_ns: int | None) -> bool:
        """Give events and flush; whether all is on the disk. `first_ns`: of the batch, ns since the epoch."""
        self._begins.append(first_ns)
        self._events += events
        num_lost = sink.num_lost - self._num_lost
        begins = [begin for begin in self._begins[: num_lost + 1] if begin is not None]
        if num_lost and len(begins) > 1:
            text = "the store could not be written for too long"
            self._events.append(HistoryEvent(HistoryEventKind.GAP, begins[0], begins[-1], (), GapReason.NOT_KEPT, text))
        sink.append_events(self._events)
        is_kept = sink.flush()
        if is_kept:
            self._begins.clear()
            self._num_lost = sink.num_lost
        if is_kept or len(self._events) > _MAX_UNKEPT_EVENTS:
            self._events = []
        return is_kept


class Recorder:
    """Takes scrapes, and hands rows and events to a sink.

    Args:
        before: events without an end in the history.
        limits: of each target.
    """

    def __init__(
        self, sink: HistorySink, *, before: Iterable[HistoryEvent] = (), limits: PageLimits | None = None
    ) -> None:
        self.counts = RecorderCounts()
        self._sink = sink
        self._limits = limits
        self._episodes = Episodes(before)
        self._targets: dict[Labels, _Target] = {}
        self._lock = threading.Lock()
        self._batch = RowBatch()
        self._unkept = _Unkept()
        self._events: list[HistoryEvent] = []
        self._changes = _Changes()
        self._known_kinds: set[str] = set()
        self._kinds: dict[str, MetricKind] = {}
        self._is_full: HistoryEvent | None = None

    @property
    def num_targets(self) -> int:
        """Targets that were scraped."""
        return len(self._targets)

    def num_open(self) -> dict[HistoryEventKind, int]:
        """Number of events that last."""
        with self._lock:
            return self._episodes.num_open()

    def take(self, scrape: Scrape, now: float) -> bool:
        """Take one scrape, `now` in monotonic seconds; whether it had a page."""
        target, counts = scrape.target, self.counts
        known = self._targets.get(target.labels)
        if known is None:
            known = self._targets[target.labels] = _Target(
                PageReader(target.labels, watched=WATCHED, limits=self._limits)
            )
        counts.scrapes += 1
        counts.seconds += scrape.seconds
        gap: NoPageError | None = None
        try:
            content = content_of(scrape)
            counts.received_bytes += len(content)
            page = known.reader.read(content, seconds=scrape.seconds, now=now)
        except NotAPageError as error:
            gap = NoPageError(GapReason.NOT_A_PAGE, str(error))
        except NoPageError as error:
            gap = error
        if gap is not None:
            counts.failures[gap.reason] += 1
            page = known.reader.failed(seconds=scrape.seconds)
        else:
            self._note(target, known, page)
        with self._lock:
            if gap is None:
                ended = self._episodes.answered(target.labels, scrape.time_ns, page.watched)
                if ended is not None:
                    self._changes.answering.append((target.instance, (scrape.time_ns - ended.start_ns) / 1e9))
            elif self._episodes.failed(target.labels, scrape.time_ns, gap.reason, gap.text) is not None:
                self._changes.silent.append((target.instance, gap.reason.value, gap.text))
            self._add(page, scrape.time_ns)
        return gap is None

    def forget(self, targets: Iterable[ScrapeTarget], time_ns: int) -> None:
        """Targets that their source does not have any more: what is open of them ends, and no gap begins."""
        with self._lock:
            for target in targets:
                self._targets.pop(target.labels, None)
                self._episodes.vanished(target.labels, time_ns)

    def settle(self, time_ns: int) -> None:
        """All targets were scraped once: end what an earlier recorder left open and nobody has any more."""
        with self._lock:
            self._episodes.settle(time_ns)

    def new_kinds(self) -> list[HistoryMetric]:
        """Metrics of pages since the last call whose kind is another than their name says."""
        with self._lock:
            kinds, self._kinds = self._kinds, {}
        return [HistoryMetric(name, kind, None) for name, kind in kinds.items()]

    def add_event(self, event: HistoryEvent) -> None:
        """Add an event that no scrape shows."""
        with self._lock:
            self._events.append(event)

    def hand_over(self) -> bool:
        """Give all to the sink and flush it; whether it is on the disk."""
        with self._lock:
            batch, self._batch = self._batch, RowBatch()
            events, self._events = [*self._events, *self._episodes.take()], []
            changes, self._changes = self._changes, _Changes()
        changes.log()
        for block in batch.blocks():
            self._sink.append(block)
        is_kept = self._unkept.give(self._sink, events, batch.first_ns)
        self.counts.flushes += 1
        self.counts.failed_flushes += not is_kept
        return is_kept

    def _add(self, page: Page, time_ns: int) -> None:
        """Add the rows of a page, unless too many wait for the store."""
        if self._batch.num_bytes > _MAX_WAITING_BYTES:
            if self._is_full is None:
                text = "the store is too slow: pages are dropped"
                self._is_full = HistoryEvent(HistoryEventKind.GAP, time_ns, None, (), GapReason.NOT_KEPT, text)
                self._events.append(self._is_full)
                _log.warning("%s", text)
            self.counts.left_out["store"] += page.num_samples
            return
        if self._is_full is not None:
            full = self._is_full
            ended = HistoryEvent(full.kind, full.start_ns, time_ns, full.labels, full.code, full.text)
            self._events.append(ended)
            self._is_full = None
            _log.info("the store takes pages again")
        self._batch.add(page.groups, time_ns)
        self.counts.samples += page.num_samples - page.num_duplicates - page.num_left_out

    def _note(self, target: ScrapeTarget, known: _Target, page: Page) -> None:
        """Count samples that are left out, with one line a target and reason; note kinds of new metrics."""
        for name, count, text in (
            ("duplicates", page.num_duplicates, "came twice on its page; the first counts"),
            ("left_out", page.num_left_out, "are beyond the limits of a target, and left out"),
        ):
            if count and not getattr(known, name):
                _log.warning("%s: %s %s", target.instance, counted(count, "series", "series"), text)
            setattr(known, name, bool(count))
        self.counts.left_out["duplicate"] += page.num_duplicates
        self.counts.left_out["limit"] += page.num_left_out
        for name, is_counter in page.counters.items():
            kind = MetricKind.COUNTER if is_counter else MetricKind.GAUGE
            is_named_otherwise = kind is not metric_entry(name).kind
            if is_named_otherwise and name not in self._known_kinds and len(self._known_kinds) < _MAX_KINDS:
                self._known_kinds.add(name)
                with self._lock:
                    self._kinds[name] = kind


def not_recorded(last_ns: int, now_ns: int) -> HistoryEvent:
    """The gap of all targets from the last sample of an earlier recorder until now."""
    return HistoryEvent(HistoryEventKind.GAP, last_ns, now_ns, (), GapReason.NOT_RECORDED, "no recorder ran")
