"""Step listeners: their protocols, which of them a run has, and the queue of deferred scalars.

A listener that fails is removed with a warning; training and the other listeners are not affected. A step's line is
written when all its scalars have arrived from the GPU; training does not wait for that.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from stepscope.training.anomalies.monitor import AnomalyMonitor
from stepscope.training.hangs.stall import parse_stuck_after
from stepscope.training.hangs.watchdog import StepWatchdog
from stepscope.training.memory.snapshots import OutOfMemoryReporter, PeriodicMemorySnapshots, parse_memory_option
from stepscope.training.run.context import RunContext
from stepscope.training.settings.backward import ObservedBackward
from stepscope.training.settings.observed import ObservedSettings
from stepscope.training.steps.device_times import DeviceClock
from stepscope.training.steps.exporters import StepExport, chosen_exporters
from stepscope.training.steps.gradients import ClippedGradientNorm, LossScaleFigures
from stepscope.training.steps.observed_phases import ObservedCheckpoints, ObservedEvaluations
from stepscope.training.steps.process_metrics import Compilations, GcPauses, MemoryFigures
from stepscope.training.steps.run_delay import RunDelay
from stepscope.training.steps.scalars import DeviceScalarReader
from stepscope.training.steps.spans import open_phases
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)


class _Closable(Protocol):
    def close(self) -> None:
        """No step comes any more."""


class StepListener(_Closable, Protocol):
    """Watches the training steps from the training thread: each call must be over in microseconds.

    One that has `step_began(index)` as well is called when a step begins; one that has `left_by(error)` once, before
    `close`, with the error by which the with block is left.
    """

    def step_ended(self, record: StepRecord) -> None:
        """The step is over and not written yet; figures added to the record are written with it."""


class SettledListener(_Closable, Protocol):
    """Watches settled training steps, once all their figures are known, also on the training thread."""

    def step_settled(self, record: StepRecord) -> None:
        """The step is about to be written; what is added to the record is written with it."""


class StepListeners:
    """Step listeners of a run, called on the training thread; one that fails is logged and left out from then on."""

    _METHODS = ("step_began", "step_ended", "step_settled", "left_by")

    def __init__(self, listeners: Iterable[StepListener | SettledListener] = ()) -> None:
        self._listeners = list(listeners)
        self._look_up()

    def step_began(self, index: int) -> None:
        self._call("step_began", index)

    def step_ended(self, record: StepRecord) -> None:
        self._call("step_ended", record)

    def step_settled(self, record: StepRecord) -> None:
        self._call("step_settled", record)

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

    def _call(self, name: str, what: object) -> None:
        for listener, method in self._methods[name]:
            try:
                method(what)
            except Exception as error:  # training must never be hurt
                self._leave_out(listener, error)

    def _leave_out(self, listener: StepListener | SettledListener, error: Exception) -> None:
        self._listeners = [each for each in self._listeners if each is not listener]
        self._look_up()  # makes new lists: one may be iterated over now
        name = type(listener).__name__
        logger.warning("stepscope goes on without its %s: %s: %s", name, type(error).__name__, error)


T = TypeVar("T")


def make_step_listeners(context: RunContext, scalar_reader: DeviceScalarReader) -> list[StepListener]:
    """In the training process, steps: make the listeners of each step that settings and environment ask for.

    In the order of their calls.

    Raises:
        ValueError: a setting is none of its values.
    """
    settings = context.settings
    makers: dict[str, Callable[[], StepListener]] = {
        "garbage collector's pauses": GcPauses,
        "memory figures": MemoryFigures,
        "wait for CPUs": RunDelay,
        "compilations": Compilations,
        "loss scale": lambda: LossScaleFigures(scalar_reader),
        "norm of clipped gradients": lambda: ClippedGradientNorm(scalar_reader),
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
    is_warm_up: Callable[[int], bool],
) -> list[StepListener]:
    """Listeners that see phases which the training code does not name, and settings inside of steps.

    Args:
        phase: opens a phase; None once nobody measures.
        open_spans: names of the spans that are open.
        observed: gets the DataLoaders that are seen, and what backward passes show.
        is_warm_up: whether the profiler is prepared in a step.
    """
    return _make_all(
        {
            "checkpoints": lambda: ObservedCheckpoints(phase, lambda: open_phases(open_spans())),
            "evaluations": lambda: ObservedEvaluations(clock.now, observed),
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
    """

    def __init__(self, listeners: Iterable[SettledListener], write: Callable[[StepRecord], None]) -> None:
        self._listeners = StepListeners(listeners)
        self._write = write
        self._waiting: deque[StepRecord] = deque()
        self._lock = threading.Lock()

    def add(self, record: StepRecord) -> None:
        """Take a finished step, and pass on those that are settled by now."""
        with self._lock:
            self._waiting.append(record)
            while self._waiting and (len(self._waiting) > _MAX_WAITING or self._waiting[0].is_settled):
                self._pass_on(self._waiting.popleft())

    def hurry(self) -> None:
        """Pass all on with the figures that are there; on any thread, when the training thread may not come back.

        Not to be called while training goes on: a question to the GPU from another thread breaks a graph capture.
        """
        if not self._lock.acquire(timeout=_LONGEST_HURRY_SECONDS):
            return
        try:
            while self._waiting:
                for deferred in self._waiting[0].deferred:
                    deferred.are_there()
                self._pass_on(self._waiting.popleft())
        finally:
            self._lock.release()

    def close(self) -> None:
        """Wait a limited time for the deferred scalars, and pass all steps on."""
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        try:
            with self._lock:
                while self._waiting:
                    while not self._waiting[0].is_settled and time.monotonic() < deadline:
                        time.sleep(0.001)
                    self._pass_on(self._waiting.popleft())
        finally:
            self._listeners.close()

    def _pass_on(self, record: StepRecord) -> None:
        record.settle()
        self._listeners.step_settled(record)
        self._write(record)
