"""Step log: what the training thread notes of each step, and when more than that has to be done.

After real work nothing of stepscope is in the processor's caches, so that each object and function that a step's end
touches costs as much as hundreds of instructions. It only notes a clock, a mark of the GPU and what it was given.
Records are made of that for many steps together, about four times a second, with warm caches.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from time import monotonic_ns
from typing import Generic, TypeVar

from stepscope.core.loader_waits import MOST_INTERVALS, Instant, Interval, Mark
from stepscope.training.run.context import OpenStep
from stepscope.training.steps.device_times import DeviceStep
from stepscope.training.steps.reached_step import LAST_STEP, LAST_STEP_NS, NUM_PLACES, OFFSET_NS, Places
from stepscope.training.steps.scalars import DeferredScalars, StepScalarReader
from stepscope.training.steps.telemetry import StepRecord

_UNCHANGING = frozenset({float, int, bool})
"""Types of figures that can be read later; of any other the value may change by then."""


_Interval = tuple[str | None, int, Mark, int, Mark]
"""Of a phase by its name, or of a wait for data (None): its ends by the monotonic clock, each with its mark."""


class StepLog:
    """Log of the steps of a training thread: the open one, and those that have ended since records were made last.

    Args:
        mark: marks the current instant on the GPU; never raises.
        figures: reads what the training loop gives.

    Attributes:
        open: number of the open step and its beginning by the monotonic clock; None before the first, and at the end.
        due_ns, due_step: by the monotonic clock and by the number of the step that begins, when `end_step` next tells
            that something is due.
        is_traced: whether a profiler records this thread, which is to see each step's own span: always due then.
        reached: where the last step that has ended is noted (`reached_step`).
        state, captured: of the steps since the last records; they change only when something is due.
    """

    __slots__ = (
        "_before", "_ended", "_figures", "_full", "_intervals", "_wall_offset_ns", "captured", "due_ns", "due_step",
        "is_traced", "mark", "open", "reached", "state",
    )  # fmt: skip

    def __init__(self, mark: Callable[[], Mark], figures: StepScalarReader) -> None:
        self.open: tuple[int, int] | None = None
        self.due_ns = self.due_step = 0
        self.is_traced: Callable[[], bool] = lambda: False
        self.state, self.captured = "wait", False
        self.mark = mark
        self.reached: Places = [0] * NUM_PLACES
        self._figures = figures
        self._ended: deque[_EndedStep] = deque()
        self._intervals: list[_Interval] | None = None
        self._full: StepRecord | None = None
        self._before: Mark = None
        self._wall_offset_ns = 0

    def begin(self, index: int) -> None:
        """Begin a step, after something was done between two steps, which belongs to neither."""
        now_ns = monotonic_ns()
        self.reached[OFFSET_NS] = self._wall_offset_ns = time.time_ns() - now_ns
        self.open = index, now_ns

    def end_step(self, figures: dict[str, object]) -> bool:
        """End the open step and begin the next; whether more is to be done now.

        Raises:
            RuntimeError: no step is open.
        """
        now_ns, mark = monotonic_ns(), self.mark()
        if self.open is None:
            raise RuntimeError("profile() measures inside its with block: `with stepscope.profile(...) as prof:`")
        index, began_ns = self.open
        deferred: Sequence[DeferredScalars] = ()
        for value in figures.values():
            if type(value) not in _UNCHANGING:
                plain, deferred = self._figures.read(figures)
                figures = {**plain}
                break
        self._ended.append((index, began_ns, now_ns, mark, figures, deferred, self._intervals, self._full))
        self._intervals = self._full = None
        reached = self.reached
        reached[LAST_STEP] = index
        reached[LAST_STEP_NS] = now_ns
        index += 1
        self.open = index, now_ns
        return now_ns >= self.due_ns or index >= self.due_step or self.is_traced()

    def add(self, name: str | None, began_ns: int, began_mark: Mark) -> None:
        """Note an interval of a phase, or of a wait for data (None), which ends now."""
        self._note((name, began_ns, began_mark, monotonic_ns(), self.mark()))

    def add_interval(self, name: str | None, interval: Interval) -> None:
        """Note an interval that has ended."""
        began, ended = interval
        self._note((name, *began, *ended))

    def _note(self, interval: _Interval) -> None:
        if self.open is None:
            return
        if self._intervals is None:
            self._intervals = [interval]
            return
        self._intervals.append(interval)
        if len(self._intervals) >= MOST_INTERVALS:
            if self._full is None:
                self._full = StepRecord(self.open[0], 0)
            _add(self._intervals, self._full)
            self._intervals = None

    def ask_at_end(self) -> None:
        """Have the open step's end be one at which something is due; from any thread."""
        self.due_step = 0

    def running_step(self) -> int:
        """Number of the open step, or of the first; on any thread."""
        return 0 if self.open is None else self.open[0]

    def newest(self) -> StepRecord | None:
        """The step that has ended last, with its times; None where its record is made. On any thread."""
        try:
            index, began_ns, ended_ns, _, _, _, intervals, full = self._ended[-1]
        except IndexError:
            return None
        record = StepRecord(index, began_ns + self._wall_offset_ns, ended_ns + self._wall_offset_ns)
        if full is not None:
            record.data_wait_ns, record.phases = full.data_wait_ns, full.phases.copy()
        _add(intervals or (), record)
        return record

    def open_step(self) -> OpenStep | None:
        """The open step; on any thread."""
        if self.open is None:
            return None
        index, began_ns = self.open
        return OpenStep(index, began_ns / 1e9, began_ns + self._wall_offset_ns)

    def open_record(self) -> StepRecord | None:
        """A record of the open step, which is never finished."""
        return None if self.open is None else StepRecord(self.open[0], self.open[1] + self._wall_offset_ns)

    def take(self) -> list[StepRecord]:
        """The records of the steps that have ended since the last call, as far as they are known by now."""
        records = []
        offset_ns = self._wall_offset_ns
        while self._ended:
            index, began_ns, ended_ns, mark, figures, deferred, intervals, full = self._ended.popleft()
            record = StepRecord(index, 0) if full is None else full
            record.start_ns, record.end_ns = began_ns + offset_ns, ended_ns + offset_ns
            record.state, record.captured = self.state, self.captured
            if figures:
                record.figures, _ = self._figures.read(figures)
            record.deferred += deferred
            if intervals is not None:
                _add(intervals, record)
            before, self._before = self._before, mark
            if mark is not None:
                record.device = DeviceStep(before, mark)
            records.append(record)
        return records


_EndedStep = tuple[
    int,
    int,
    int,
    Mark,
    dict[str, object],
    Sequence[DeferredScalars],
    list[_Interval] | None,
    StepRecord | None,
]
"""A step as the training thread notes it: number, beginning and end by the monotonic clock, mark of the end, figures of
the host and those on their way from the GPU, intervals, and a record with the first of them where there are many."""


def _add(intervals: Iterable[_Interval], record: StepRecord) -> None:
    for name, began_ns, began_mark, ended_ns, ended_mark in intervals:
        interval = Instant(began_ns, began_mark), Instant(ended_ns, ended_mark)
        if name is None:
            record.add_data_wait(interval)
        else:
            record.add_phase(name, interval)


T = TypeVar("T")


class StepNotes(Generic[T]):
    """Notes of hooks in the training code on the step that runs, kept until the step's record is made.

    Args:
        running_step: number of the open step, on any thread.
    """

    def __init__(self, running_step: Callable[[], int]) -> None:
        self._running_step = running_step
        self._notes: deque[tuple[int, T]] = deque()

    def add(self, note: T) -> None:
        self._notes.append((self._running_step(), note))

    def num_running(self) -> int:
        """How many there are on the step that runs."""
        index = self._running_step()
        return sum(1 for _ in takewhile(lambda note: note[0] == index, reversed(self._notes)))

    def of(self, records: Iterable[StepRecord]) -> Iterator[tuple[StepRecord, list[T]]]:
        """The records that have notes, each with its own and those of steps before it that have no record."""
        for record in records if self._notes else ():
            notes: list[T] = []
            while self._notes and self._notes[0][0] <= record.index:
                notes.append(self._notes.popleft()[1])
            if notes:
                yield record, notes
