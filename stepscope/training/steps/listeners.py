"""Step listeners: their protocols, which of them a run has, and the queue of deferred scalars.

Listeners learn of several finished steps together, some times a second: what they note while a step runs is kept by the
step's number until then. A listener that fails is removed with a warning; training and the other listeners are not
affected. A step's line is written when all its scalars have arrived from the GPU; training does not wait for that.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Protocol, TypeVar

from stepscope.training.anomalies.monitor import AnomalyMonitor
from stepscope.training.hangs.stall import parse_stuck_after
from stepscope.training.hangs.watchdog import StepWatchdog
from stepscope.training.memory.snapshots import OutOfMemoryReporter, PeriodicMemorySnapshots, parse_memory_option
from stepscope.training.run.context import RunContext
from stepscope.training.settings.backward import ObservedBackward
from stepscope.training.settings.observed import ObservedSettings
from stepscope.training.steps.device_times import DeviceClock, ask_how_far, is_capturing_graph
from stepscope.training.steps.exporters import StepExport, chosen_exporters
from stepscope.training.steps.gradients import ClippedGradientNorm, LossScaleFigures
from stepscope.training.steps.observed_phases import ObservedCheckpoints, ObservedEvaluations
from stepscope.training.steps.process_metrics import Compilations, GcPauses, MemoryFigures
from stepscope.training.steps.run_delay import RunDelay
from stepscope.training.steps.scalars import DeviceScalarReader
from stepscope.training.steps.spans import open_phases
from stepscope.training.steps.step_log import StepLog
from stepscope.training.steps.telemetry import NEVER, StepRecord

logger = logging.getLogger(__name__)


class _Closable(Protocol):
    def close(self) -> None:
        """No step comes any more."""


class StepListener(_Closable, Protocol):
    """Watches the training steps from the training thread: each call must be over in microseconds.

    One has some of these methods; the others are not called:

    - `steps_ended(records)`: these are over, at least one, and not written yet; figures added to a record are written
      with it. The call comes up to a quarter of a second later, or on another thread when the training thread may not
      come back.
    - `look()`: some steps are over, and one is about to begin.
    - `due_step(index)`: the next step at whose beginning it must be called, after `index`, which begins; and
      `step_began(index)`, called then, and sometimes in between.
    - `left_by(error)`: called once, before `close`, with the error by which the with block is left.
    """


class SettledListener(_Closable, Protocol):
    """Watches settled training steps, once all their figures are known, also on the training thread."""

    def steps_settled(self, records: Sequence[StepRecord]) -> None:
        """These steps are about to be written, at least one; what is added to a record is written with it."""


class StepListeners:
    """Step listeners of a run, called on the training thread; one that fails is logged and left out from then on."""

    _METHODS = ("step_began", "steps_ended", "steps_settled", "look", "due_step", "left_by")

    def __init__(self, listeners: Iterable[StepListener | SettledListener] = ()) -> None:
        self._listeners = list(listeners)
        self._look_up()

    def step_began(self, index: int) -> None:
        self._call("step_began", index)

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        if records:
            self._call("steps_ended", records)

    def look(self) -> None:
        self._call("look")

    def due_step(self, index: int) -> int:
        """The next step at whose beginning one of them must be called."""
        return min(self._call("due_step", index), default=NEVER)

    def steps_settled(self, records: Sequence[StepRecord]) -> None:
        if records:
            self._call("steps_settled", records)

    def left_by(self, error: BaseException) -> None:
        self._call("left_by", error)

    def close(self) -> None:
        listeners, self._listeners = self._listeners, []
        self._look_up()
        for listener in listeners:
            try:
                listener.close()
            except Exception as error:  # training must never be hurt
                self._leave_out(listener, error)

    def _look_up(self) -> None:
        """The methods that the listeners have, looked up once and not at each step."""
        self._methods = {
            name: [(each, getattr(each, name)) for each in self._listeners if hasattr(each, name)]
            for name in self._METHODS
        }

    def _call(self, name: str, *what: object) -> list[Any]:
        answers = []
        for listener, method in self._methods[name]:
            try:
                answers.append(method(*what))
            except Exception as error:  # training must never be hurt
                self._leave_out(listener, error)
        return answers

    def _leave_out(self, listener: StepListener | SettledListener, error: Exception) -> None:
        self._listeners = [each for each in self._listeners if each is not listener]
        self._look_up()  # makes new lists: one may be iterated over now
        name = type(listener).__name__
        logger.warning("stepscope goes on without its %s: %s: %s", name, type(error).__name__, error)


T = TypeVar("T")


def make_run_delay() -> list[RunDelay]:
    """What measures the launching threads' wait for CPUs; none where that cannot be."""
    return _make_all({"wait for CPUs": RunDelay})


def make_step_listeners(
    context: RunContext, scalar_reader: DeviceScalarReader, running_step: Callable[[], int]
) -> list[StepListener]:
    """In the training process, steps: make the listeners of each step that settings and environment ask for.

    In the order of their calls.

    Args:
        running_step: number of the open step, on any thread.

    Raises:
        ValueError: a setting is none of its values.
    """
    settings = context.settings
    makers: dict[str, Callable[[], StepListener]] = {
        "garbage collector's pauses": lambda: GcPauses(running_step),
        "memory figures": MemoryFigures,
        "compilations": lambda: Compilations(running_step),
        "loss scale": lambda: LossScaleFigures(scalar_reader, running_step),
        "norm of clipped gradients": lambda: ClippedGradientNorm(scalar_reader, running_step),
    }
    stuck_seconds = parse_stuck_after(_argument_or_environment(settings.stuck_after, "STEPSCOPE_STUCK_AFTER", "auto"))
    if stuck_seconds != math.inf:
        makers["watch for stuck steps"] = lambda: StepWatchdog(context, stuck_seconds)
    plan = parse_memory_option(_argument_or_environment(settings.memory, "STEPSCOPE_MEMORY", "oom"))
    if (every := plan.every) is not None:
        makers["memory snapshots"] = lambda: PeriodicMemorySnapshots(context, every, context.owners)
    if plan.when_out:
        makers["watch for memory that runs out"] = lambda: OutOfMemoryReporter(context, plan, context.owners)
    return _make_all(makers)


def make_observers(
    phase: Callable[[str], AbstractContextManager[None] | None],
    open_spans: Callable[[], list[str]],
    clock: DeviceClock,
    observed: ObservedSettings,
    log: StepLog,
    is_warm_up: Callable[[int], bool],
    is_timed: Callable[[], bool],
) -> list[StepListener]:
    """Listeners that see phases and waits which the training code does not name, and settings inside of steps.

    Args:
        phase: opens a phase; None once nobody measures.
        open_spans: names of the spans that are open.
        observed: gets the DataLoaders that are seen, and what backward passes show.
        is_warm_up: whether the profiler is prepared in a step.
        is_timed: whether the waits for batches are timed already.
    """
    return _make_all(
        {
            "checkpoints": lambda: ObservedCheckpoints(phase, lambda: open_phases(open_spans()), log.running_step),
            "evaluations": lambda: ObservedEvaluations(clock.now, observed, log.running_step, log.ask_at_end, is_timed),
            "settings inside of steps": lambda: ObservedBackward(observed, is_warm_up),
        }
    )


def make_settled_listeners(context: RunContext) -> list[SettledListener]:
    """Listeners of settled steps that a run has: anomalies, and the export of metrics."""
    rank = context.identity.rank
    makers: dict[str, Callable[[], SettledListener]] = {"anomalies": lambda: AnomalyMonitor(rank)}
    exporters = chosen_exporters(context.settings.export, context.run_directory.name, rank)
    if exporters:
        makers["export"] = lambda: StepExport(exporters, says_what_is_missing=rank == 0)
    return _make_all(makers)


def _argument_or_environment(given: T | None, variable: str, default: T | str) -> T | str:
    """The call's argument takes precedence over the environment."""
    return given if given is not None else os.environ.get(variable) or default


def _make_all(makers: Mapping[str, Callable[[], T]]) -> list[T]:
    """One that cannot be made, as where torch lacks what it looks at, costs one line and none of the others."""
    made: list[T] = []
    for name, make in makers.items():
        try:
            made.append(make())
        except Exception as error:  # training must never be hurt
            logger.warning("stepscope measures without its %s: %s: %s", name, type(error).__name__, error)
    return made


_MAX_WAITING = 1000
"""Steps that wait for the GPU; CUDA lets the host run a thousand launches ahead, a step is hardly ever only one."""

_LONGEST_WAIT_SECONDS = 10.0
"""At the end: a GPU that has not passed the last step by then hangs."""

_LONGEST_HURRY_SECONDS = 1.0


class PendingSteps:
    """Finished training steps that wait for scalars from the GPU; passed on in their order, each once those are there.

    Args:
        listeners: called with each step before it is written.
        write: gets each; what it raises comes out of `add` and `close`.
        take: the finished steps that nobody has asked for yet.
    """

    def __init__(
        self,
        listeners: Iterable[SettledListener],
        write: Callable[[StepRecord], None],
        take: Callable[[], list[StepRecord]] = list,
    ) -> None:
        self._listeners = StepListeners(listeners)
        self._write = write
        self._take = take
        self._waiting: deque[StepRecord] = deque()
        self._lock = threading.Lock()

    def take(self) -> list[StepRecord]:
        """The finished steps that nobody has asked for yet, which are to be added."""
        with self._lock:
            return self._take()

    def add(self, *records: StepRecord, most: int = _MAX_WAITING) -> bool:
        """Take finished steps, and pass on those that are settled by now.

        Args:
            most: passed on at once. Whether there may be more is returned.
        """
        with self._lock:
            self._waiting.extend(records)
            settled = self._settled(most)
            self._pass_on(settled)
            return len(settled) == most

    def hurry(self) -> None:
        """Pass all on with the figures that are there; on any thread, when the training thread may not come back.

        Not to be called while training goes on: a question to the GPU from another thread breaks a graph capture.
        """
        if not self._lock.acquire(timeout=_LONGEST_HURRY_SECONDS):
            return
        try:
            self._waiting.extend(self._take())
            records, self._waiting = list(self._waiting), deque()
            for deferred in (deferred for record in records for deferred in record.deferred):
                deferred.are_there()
            self._pass_on(records)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Wait a limited time for the deferred scalars, and pass all steps on."""
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        try:
            with self._lock:
                self._waiting.extend(self._take())
                records, self._waiting = list(self._waiting), deque()
                for record in records:
                    while not record.is_settled and time.monotonic() < deadline:
                        time.sleep(0.001)
                self._pass_on(records)
        finally:
            self._listeners.close()

    def _settled(self, most: int) -> list[StepRecord]:
        """The first that wait for nothing any more; questions to the GPU would break the capture of a graph."""
        records: list[StepRecord] = []
        waiting, may_ask = self._waiting, not is_capturing_graph()
        if may_ask:
            ask_how_far([record.device for record in islice(waiting, most) if record.device is not None])
        while waiting and (may_ask or waiting[0].device is None):
            is_next = len(records) < most and waiting[0].is_settled
            if not is_next and len(waiting) <= _MAX_WAITING:
                break
            records.append(waiting.popleft())
        return records

    def _pass_on(self, records: list[StepRecord]) -> None:
        for record in records:
            record.settle()
        self._listeners.steps_settled(records)
        for record in records:
            self._write(record)
