"""Step log: what the training thread notes of each step, and when more than that has to be done.

After real work nothing of stepscope is in the processor's caches, so that each object and function that a step's end
touches costs as much as hundreds of instructions. It only notes a clock, a mark of the GPU and what it was given.
Records are made of that for many steps together, about four times a second, with warm caches.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from time import monotonic_ns
from typing import Generic, TypeVar

from stepscope.core.loader_waits import MOST_INTERVALS, Instant, Interval, Mark
from stepscope.training.run.context import OpenStep
from stepscope.training.steps.device_times import DeviceStep
from stepscope.training.steps.scalars import DeferredScalars, StepScalarReader
from stepscope.training.steps.telemetry import StepRecord

_UNCHANGING = frozenset({float, int, bool})
"""Types of figures that can be read later; of any other the value may change by then."""


_Interval = tuple[str | None, int, Mark, int, Mark]


class LoggedStep:
    """A step as the training thread notes it, by the monotonic clock.

    Attributes:
        intervals: of phases by name, and of waits for data by None: their ends and marks. None when there are none.
        record: where the first intervals of a step with very many are.
    """

    __slots__ = ("began_ns", "deferred", "end_mark", "ended_ns", "figures", "index", "intervals", "record")

    def __init__(self, index: int, began_ns: int) -> None:
        self.index = index
        self.began_ns = began_ns
        self.ended_ns = began_ns
        self.end_mark: Mark = None
        self.figures: Mapping[str, object] = {}
        self.deferred: list[DeferredScalars] | None = None
        self.intervals: list[_Interval] | None = None
        self.record: StepRecord | None = None

    def add(self, interval: _Interval) -> None:
        """Note an interval of a phase or of a wait for data."""
        if self.intervals is None:
            self.intervals = [interval]
            return
        self.intervals.append(interval)
        if len(self.intervals) >= MOST_INTERVALS:
            if self.record is None:
                self.record = StepRecord(self.index, 0)
            self._add_intervals_to(self.record)
            self.intervals.clear()

    def as_record(self, wall_offset_ns: int) -> StepRecord:
        """The step's record, without figures and marks.

        Args:
            wall_offset_ns: from the monotonic clock to ns since the epoch.
        """
        record = StepRecord(self.index, 0) if self.record is None else self.record
        record.start_ns = self.began_ns + wall_offset_ns
        record.end_ns = self.ended_ns + wall_offset_ns
        if self.intervals:
            self._add_intervals_to(record)
        return record

    def _add_intervals_to(self, record: StepRecord) -> None:
        for name, began_ns, began_mark, ended_ns, ended_mark in self.intervals or ():
            interval = Instant(began_ns, began_mark), Instant(ended_ns, ended_mark)
            if name is None:
                record.add_data_wait(interval)
            else:
                record.add_phase(name, interval)


class StepLog:
    """Log of the steps of a training thread: the open one, and those that have ended since records were made last.

    Args:
        mark: marks the current instant on the GPU; never raises.
        figures: reads what the training loop gives.

    Attributes:
        open: None before the first step.
        due_ns, due_step: by the monotonic clock and by the number of the step that begins, when `end_step` next tells
            that something is due.
        is_traced: whether a profiler records this thread, which is to see each step's own span: always due then.
        state, captured: of the steps since the last records; they change only when something is due.
    """

    __slots__ = (
        "_before", "_ended", "_figures", "_wall_offset_ns", "captured", "due_ns", "due_step", "is_traced", "mark",
        "open", "state",
    )  # fmt: skip

    def __init__(self, mark: Callable[[], Mark], figures: StepScalarReader) -> None:
        self.open: LoggedStep | None = None
        self.due_ns = self.due_step = 0
        self.is_traced: Callable[[], bool] = lambda: False
        self.state, self.captured = "wait", False
        self.mark = mark
        self._figures = figures
        self._ended: deque[LoggedStep] = deque()
        self._before: Mark = None
        self._wall_offset_ns = 0

    def begin(self, index: int) -> None:
        """Begin a step, after something was done between two steps, which belongs to neither."""
        now_ns = monotonic_ns()
        self._wall_offset_ns = time.time_ns() - now_ns
        self.open = LoggedStep(index, now_ns)

    def end_step(self, figures: dict[str, object]) -> bool:
        """End the open step and begin the next; whether more is to be done now.

        Raises:
            RuntimeError: no step is open.
        """
        step = self.open
        if step is None:
            raise RuntimeError("profile() measures inside its with block: `with stepscope.profile(...) as prof:`")
        now_ns = step.ended_ns = monotonic_ns()
        step.end_mark = self.mark()
        for value in figures.values():
            if type(value) not in _UNCHANGING:
                plain, step.deferred = self._figures.read(figures)
                figures = {**plain}
                break
        step.figures = figures
        index = step.index + 1
        self.open = LoggedStep(index, now_ns)
        self._ended.append(step)
        return now_ns >= self.due_ns or index >= self.due_step or self.is_traced()

    def add(self, name: str | None, began_ns: int, began_mark: Mark) -> None:
        """Note an interval of a phase, or of a wait for data (None), which ends now."""
        if self.open is not None:
            self.open.add((name, began_ns, began_mark, monotonic_ns(), self.mark()))

    def add_interval(self, name: str | None, interval: Interval) -> None:
        """Note an interval that has ended."""
        began, ended = interval
        if self.open is not None:
            self.open.add((name, *began, *ended))

    def ask_at_end(self) -> None:
        """Have the open step's end be one at which something is due; from any thread."""
        self.due_step = 0

    def running_step(self) -> int:
        """Number of the open step, or of the first; on any thread."""
        return 0 if self.open is None else self.open.index

    def newest(self) -> StepRecord | None:
        """The step that has ended last, with its times; None when its record is made. On any thread."""
        try:
            step = self._ended[-1]
        except IndexError:
            return None
        return step.as_record(self._wall_offset_ns) if step.record is None else step.record

    def open_step(self) -> OpenStep | None:
        """The open step; on any thread."""
        step = self.open
        if step is None:
            return None
        return OpenStep(step.index, step.began_ns / 1e9, step.began_ns + self._wall_offset_ns)

    def open_record(self) -> StepRecord | None:
        """The record of the open step, which is never finished."""
        return None if self.open is None else self.open.as_record(self._wall_offset_ns)

    def take(self) -> list[StepRecord]:
        """The records of the steps that have ended since the last call, as far as they are known by now."""
        records = []
        while self._ended:
            step = self._ended.popleft()
            record = step.as_record(self._wall_offset_ns)
            record.state, record.captured = self.state, self.captured
            if step.figures:
                record.figures, _ = self._figures.read(step.figures)
            if step.deferred:
                record.deferred = step.deferred
            before, self._before = self._before, step.end_mark
            if step.end_mark is not None:
                record.device = DeviceStep(before, step.end_mark)
            records.append(record)
        return records


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
