"""Loader waits of a training process: which DataLoaders train the model, which evaluate it, and how long they take.

They are distinguished by order alone: the batch that came last before an update trained the model; a loader that runs
through from its first to its last batch between two updates evaluates it, and so does one read under
`torch.no_grad()`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Mark = Any
"""What tells how far a GPU had come, which holds an event of torch.cuda; None where nothing does."""


class Instant(NamedTuple):
    """A moment of the training thread: by the monotonic clock, and how far its launched work had come."""

    ns: int
    mark: Mark = None


Interval = tuple[Instant, Instant]


def duration_ns(intervals: Iterable[Interval]) -> int:
    """How long they are together, by the host's clock."""
    return sum(ended.ns - began.ns for began, ended in intervals)


MOST_INTERVALS = 1000
"""Kept of one kind between two updates; each holds two events of the GPU."""


def keep_interval(intervals: list[Interval], interval: Interval) -> None:
    """Add an interval; from MOST_INTERVALS on they are kept as one of their length together, without marks."""
    if len(intervals) < MOST_INTERVALS:
        intervals.append(interval)
        return
    first_ns = intervals[-1][0].ns
    intervals[-1] = (Instant(first_ns), Instant(first_ns + duration_ns((intervals[-1], interval))))


class LoaderWatch(Protocol):
    """Observer of the calls of DataLoaders and their iterators; none of its methods may raise."""

    def batch_asked(self) -> Instant | None:
        """A wait begins; None: it is not recorded, and no other method is called for it."""

    def loader_began(self, iterator: Any, asked: Instant) -> None:
        """The iterator is made: an iteration begins."""

    def batch_came(self, iterator: Any, asked: Instant) -> None:
        """The iterator has given a batch."""

    def loader_ran_out(self, iterator: Any, asked: Instant) -> None:
        """The iterator has no more batches."""

    def loader_failed(self) -> None:
        """The call raised an error."""


def timed_beginning(
    find_watch: Callable[[], LoaderWatch | None],
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Core, loader waits: wrapper of `DataLoader.__iter__`, which starts the workers."""
    return lambda ask: _timed(ask, find_watch, lambda watch, _, iterator, asked: watch.loader_began(iterator, asked))


def timed_batches(
    find_watch: Callable[[], LoaderWatch | None],
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Wrapper of `__next__` of a DataLoader's iterator."""
    return lambda ask: _timed(ask, find_watch, lambda watch, iterator, _, asked: watch.batch_came(iterator, asked))


def _timed(
    ask: Callable[[Any], Any],
    find_watch: Callable[[], LoaderWatch | None],
    came: Callable[[LoaderWatch, Any, Any, Instant], None],
) -> Callable[[Any], Any]:
    @functools.wraps(ask)
    def timed(self: Any) -> Any:
        watch = find_watch()
        asked = None if watch is None else watch.batch_asked()
        if watch is None or asked is None:
            return ask(self)
        try:
            result = ask(self)
        except StopIteration:
            watch.loader_ran_out(self, asked)
            raise
        except BaseException:
            watch.loader_failed()
            raise
        came(watch, self, result, asked)
        return result

    return timed


@dataclass(slots=True)
class _LoaderUse:
    """One loader between two updates.

    Attributes:
        waits: empty once the loader gave a batch that was not learned from.
    """

    first: Instant
    last: Instant
    waits: list[Interval] = field(default_factory=list)
    num_batches: int = 0
    learns: bool = True
    began: bool = False
    is_exhausted: bool = False

    @property
    def ran_through(self) -> bool:
        return self.began and self.is_exhausted


class LoaderWaits:
    """Waits of a training process for its DataLoaders since the last update, by loader."""

    def __init__(self) -> None:
        self._asked: dict[int, _LoaderUse] = {}
        self._trains: int | None = None
        self._only_trains: frozenset[int | None] = frozenset()
        self._asked_before: frozenset[int | None] = frozenset()

    def began(self, iterator: Any, started: Instant, ended: Instant) -> None:
        """An iteration over the iterator's loader began; starting its workers took this long."""
        asked = self._ask(_loader(iterator), started, ended)
        asked.began = True
        asked.is_exhausted = False

    def gave(self, iterator: Any, started: Instant, ended: Instant, *, learns: bool) -> None:
        """The loader gave a batch. `learns`: gradients were recorded when it was asked."""
        loader = _loader(iterator)
        asked = self._ask(loader, started, ended)
        asked.num_batches += 1
        asked.learns &= learns
        if not asked.learns:
            asked.waits.clear()
        asked.is_exhausted = False
        if len(self._asked) > 1:
            self._asked[loader] = self._asked.pop(loader)  # the last one asked comes last

    def ran_out(self, iterator: Any, started: Instant, ended: Instant) -> None:
        self._ask(_loader(iterator), started, ended).is_exhausted = True

    def update(self) -> tuple[list[Interval], list[Interval]]:
        """An update was made: the waits for training's batches since the one before, and the evaluations."""
        if len(self._asked) == 1 and self._trains in self._asked:  # nearly always; the rest costs microseconds
            (only,) = self._asked.values()
            if only.num_batches and only.learns and not only.ran_through:
                self._asked_before = self._only_trains
                self._asked = {}
                return only.waits, []
        if not self._asked:
            return [], []
        gave = {loader: asked for loader, asked in self._asked.items() if asked.num_batches and asked.learns}
        lasting = [loader for loader, asked in gave.items() if not asked.ran_through]
        if lasting:
            self._trains = lasting[-1]
        elif gave and self._trains is None:
            self._trains = next(reversed(gave))
        also = self._asked_before.intersection(lasting)
        trains = {self._trains} | also
        waits = [wait for loader, asked in self._asked.items() if loader in trains for wait in asked.waits]
        evaluations = [asked for loader, asked in self._asked.items() if loader not in trains and _evaluates(asked)]
        self._asked_before = frozenset(gave)
        self._only_trains = frozenset((self._trains,))
        self._asked = {}
        return waits, _covered((asked.first, asked.last) for asked in evaluations)

    def _ask(self, loader: int, started: Instant, ended: Instant) -> _LoaderUse:
        asked = self._asked.get(loader)
        if asked is None:
            asked = self._asked[loader] = _LoaderUse(started, ended)
        asked.last = ended
        if asked.learns:
            keep_interval(asked.waits, (started, ended))
        return asked


def _loader(iterator: Any) -> int:
    """What an iterator has in common with the others of its loader."""
    return id(getattr(iterator, "_index_sampler", iterator))


def _evaluates(asked: _LoaderUse) -> bool:
    return asked.num_batches > 0 and (asked.ran_through or not asked.learns)


def _covered(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals, those that overlap as one."""
    covered: list[Interval] = []
    for first, last in sorted(intervals, key=lambda interval: interval[0].ns):
        if covered and first.ns <= covered[-1][1].ns:
            begin, end = covered.pop()
            first, last = begin, max(end, last, key=lambda instant: instant.ns)
        covered.append((first, last))
    return covered
