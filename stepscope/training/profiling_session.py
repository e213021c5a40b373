"""Profiling session of one training loop, from the start of its with block to the end: the `Profile` object.

An error in a public method never reaches training: it is logged once as a warning, and the session turns itself off.
After the end, rank 0 analyses the latest capture for `result` and `summary()`.
"""

from __future__ import annotations

import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.run_directory import RankFile, trace_path, view_path
from stepscope.core.errors import StepscopeError
from stepscope.core.loader_waits import Instant, Interval
from stepscope.core.text.job_time import headline
from stepscope.core.text.verdict import verdict_text
from stepscope.training.agent_link import AgentLink
from stepscope.training.background_loop import BackgroundLoop, PeriodicTask
from stepscope.training.captures.plan import CaptureWindow
from stepscope.training.captures.recording import Recording, has_gpu_activities
from stepscope.training.captures.reduction import TraceReduction, trace_reduction
from stepscope.training.captures.runner import CaptureRunner
from stepscope.training.captures.schedule import (
    DEFAULT_SCHEDULE,
    ProfilerState,
    Schedule,
    captures_on_this_rank,
    default_schedule,
)
from stepscope.training.memory.owners import MemoryOwners
from stepscope.training.run.context import (
    MEASURING_STOPPED,
    ManifestWriter,
    ProfileSettings,
    RunContext,
    attempt_ending,
)
from stepscope.training.run.counter_log import CounterLog
from stepscope.training.run.identity import choose_run_name, identify_process
from stepscope.training.run.live_verdict import LiveVerdictTask, live_verdict_task
from stepscope.training.run.mesh import mesh_sizes
from stepscope.training.run.rank_place import RankPlaceFile
from stepscope.training.run.run_files import remove_leftovers
from stepscope.training.run.shutdown import ShutdownHandler
from stepscope.training.run.upload import NodeUpload, is_url, spool_folder
from stepscope.training.settings.observed import ObservedSettings
from stepscope.training.steps import spans
from stepscope.training.steps.device_times import DeviceClock
from stepscope.training.steps.gradients import LocalGradientNorm
from stepscope.training.steps.listeners import (
    PendingSteps,
    StepListeners,
    make_observers,
    make_run_delay,
    make_settled_listeners,
    make_step_listeners,
)
from stepscope.training.steps.reached_step import NUM_PLACES, ReachedStep
from stepscope.training.steps.run_delay import READ_EVERY_NS, RunDelay
from stepscope.training.steps.scalars import DeviceScalarReader, StepScalarReader
from stepscope.training.steps.step_log import StepLog
from stepscope.training.steps.telemetry import StepRecord, StepWriter, UnprofiledStepTime, open_step_file

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_SETTLE_EVERY_NS = 251_000_000
"""From one time that records are made of the finished steps to the next, of which each has memory figures, a quarter of
a second apart."""

_MOST_SETTLED_STEPS = 16
"""At a step's end; the GPU's times of a step take some ten microseconds to ask for."""
_MOST_LOGGED_STEPS = 1000
"""Of a loop that does next to nothing, so that making their records takes some milliseconds at most."""

_measuring: weakref.ref[Profile] | None = None
"""The profile that measures this process; weak, so that a with block never left does not block the next one."""


def _harmless(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Make a method run only while profiling is on; an error turns profiling off."""

    @functools.wraps(method)
    def guarded(self: Profile, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self._on:
            return
        self._depth += 1
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # training must never be hurt
            self._give_up(error)
        finally:
            self._depth -= 1
            if self._shutdown is not None:
                self._shutdown.proceed()

    return guarded


class Profile:
    """Profiling session that measures every step of a training loop and captures some; made by `stepscope.profile`.

    Attributes:
        run_directory: where this run's files are; None while nothing is written, and once measuring has stopped.
        gives_way: a profile that begins while this one measures takes its place, instead of stepping aside.
    """

    def __init__(self, settings: ProfileSettings, *, enabled: bool) -> None:
        self.run_directory: Path | None = None
        self.gives_way = False
        self._settings = settings
        self._on = enabled
        self._num_entered = 0  # with blocks that are open
        self._has_begun, self._has_warned_of_reentry = False, not enabled
        self._context: RunContext | None = None
        self._result: Analysis | str | None = None
        self._schedule: Schedule = DEFAULT_SCHEDULE
        self._manifest: ManifestWriter | None = None
        self._reached: ReachedStep | None = None
        self._writer: StepWriter | None = None
        self._settling: PendingSteps | None = None
        self._background_loop: BackgroundLoop | None = None
        self._shutdown: ShutdownHandler[Profile] | None = None
        self._depth = 0  # how many of the guarded methods run
        self._is_ending = False
        self._times = UnprofiledStepTime()
        self._agent_link: AgentLink | None = None
        self._counters: CounterLog | None = None
        self._live_verdict: LiveVerdictTask | None = None
        self._captures: CaptureRunner | None = None
        self._reduction: TraceReduction | None = None
        self._upload: NodeUpload | None = None
        self._listeners = StepListeners()
        self._annotation: Any = None
        self._settle_at_ns = self._read_at_ns = 0
        self._has_settled = False  # more than were passed on at once
        self._was_writing = False
        self._run_delay: list[RunDelay] = []
        self._mark = spans.StepMark(is_quiet=not enabled)
        self._scalar_reader = DeviceScalarReader()
        self._figures = StepScalarReader(self._scalar_reader)
        self._gradients = LocalGradientNorm(self._scalar_reader, _weakly(self._is_undisturbed))
        self._owners = MemoryOwners()
        self._observed = ObservedSettings(self._owners)
        self._device_clock = DeviceClock()
        self._log = StepLog(self._device_clock.mark, self._figures)
        self._open_spans = spans.OpenSpans(self._give_up)
        self._spans = spans.SpanRecorder(self._open_spans, self._log)

    def __enter__(self) -> Profile:
        self._num_entered += 1
        if self._num_entered == 1 and not self._has_begun:
            self._has_begun = True
            self._begin()
        elif not self._has_warned_of_reentry:
            self._has_warned_of_reentry = True
            logger.warning(
                "a profile measures one with block, %s; make a new one by stepscope.profile(...) for each training",
                "and goes on with the outer one here" if self._num_entered > 1 else "so this one measures nothing",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._num_entered = max(self._num_entered - 1, 0)
        if self._num_entered:  # entered again inside, the outer block goes on
            return
        if error is not None:
            self._pass_exception(error)
        self._end(kind)

    def step(self, /, **figures: object) -> spans.StepMark:
        """End the current step and begin the next; call it once after each optimizer step, not around its work.

        Args:
            figures: numbers to keep with the step (tokens, loss, grad_norm, ...). Tensors of no dimension on a GPU are
                copied behind its work and read once it has passed, so that nothing waits.
        """
        if self._on:
            try:
                if self._log.end_step(figures):
                    self._step_is_due()
            except Exception as error:  # training must never be hurt
                self._give_up(error)
        return self._mark

    @_harmless
    def _step_is_due(self) -> None:
        """The first step, one of every quarter of a second, or one at whose beginning something happens has begun."""
        log = self._log
        assert log.open is not None
        index, now_ns = log.open
        are_records_due = now_ns >= self._settle_at_ns or index >= log.due_step or log.is_traced()
        if are_records_due or now_ns >= self._read_at_ns:
            for run_delay in self._run_delay:
                run_delay.read(index - 1)
            self._read_at_ns = now_ns + READ_EVERY_NS
        if are_records_due:
            self._close_annotation()
            self._settle_steps(index)
            self._settle_at_ns = now_ns + _SETTLE_EVERY_NS
            self._begin_step(index)
        elif self._has_settled and self._settling is not None:
            self._has_settled = self._settling.add(most=_MOST_SETTLED_STEPS)
        log.due_ns = 0 if self._has_settled else min(self._settle_at_ns, self._read_at_ns)

    def _settle_steps(self, index: int) -> None:
        """Make records of the finished steps, before step `index`, and begin what begins with it."""
        assert self._settling is not None
        records = self._settling.take()
        try:
            if self._captures is not None and self._agent_link is not None:
                is_writing = self._captures.is_writing
                if records:
                    self._agent_link.steps_ended(records, is_writing=is_writing or self._was_writing)
                self._was_writing = is_writing
                self._captures.move_to(index, records[-1] if records else None)
                if records and (records[-1].prepare_ns or records[-1].export_ns):
                    for run_delay in self._run_delay:
                        run_delay.skip()  # what a capture takes between two steps is in none
        finally:
            self._has_settled = self._settling.add(*records, most=_MOST_SETTLED_STEPS)

    def _take_records(self) -> list[StepRecord]:
        """Records of the steps that have ended since the last call."""
        assert self._context is not None
        records = self._log.take()
        for record in records:
            record.attempt = self._context.attempt
        self._times.steps_ended(records)
        for run_delay in self._run_delay:
            run_delay.add_to(records)
        self._listeners.steps_ended(records)
        return records

    def data(self, loader: Iterable[T]) -> Iterable[T]:
        """The same batches; each wait for one is timed and visible in the trace as `prof.data`."""
        self._observed.iterable_given(loader)
        return spans.wrap_data(loader, self._spans) if self._on else loader

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A with block whose time is counted under `name` and visible in the trace as `prof.phase: name`."""
        if spans.is_compiling() or not self._on:
            return nullcontext()
        try:
            return spans.PhaseSpan(str(name), self._spans)
        except Exception as error:  # training must never be hurt
            self._give_up(error)
            return spans.PhaseSpan("?", self._spans)

    @property
    def is_measuring(self) -> bool:
        """Whether the session measures: it is not disabled, ended, or stopped by an error or another profile."""
        return self._on

    @property
    def result(self) -> Analysis | None:
        """The analysis of the latest capture, without one of all steps' records, on rank 0 after the with block; None
        where there is none."""
        if self._result is None and not self._on and self.run_directory is not None:
            self._result = self._analyse()
        return self._result if isinstance(self._result, Analysis) else None

    @property
    def where(self) -> str:
        """Where the run is to be read: its directory, or its URL; empty where nothing is written."""
        if self.run_directory is None:
            return ""
        return str(self.run_directory) if self._upload is None else self._upload.run_url

    def summary(self) -> str:
        """The verdict as text, on rank 0 after the with block; elsewhere one line with the reason why there is none."""
        if self.result is not None and self.run_directory is not None:
            return summary_text(self.result, self.where)
        if self._on:
            return "stepscope: no verdict yet; call summary() after the with block"
        return f"stepscope: {self._result or 'no verdict, as nothing was measured'}"

    def _analyse(self) -> Analysis | str:
        assert self._context is not None
        assert self.run_directory is not None
        identity, latest = self._context.identity, None if self._captures is None else self._captures.latest
        if identity.rank != 0:
            return f"rank 0 has the verdict of {self.where}"
        if self._upload is not None and not all(
            (self.run_directory / RankFile.STEPS.path(rank)).exists() for rank in range(identity.world_size)
        ):
            return f"other nodes have a part of the run; once all is uploaded: stepscope analyze {self.where}"
        if latest is None:
            return _analyse_run(self.run_directory, [])
        others = [replace(identity, rank=rank) for rank in range(identity.world_size)]
        ranks = [other.rank for other in others if captures_on_this_rank(self._settings.ranks, other)]
        traces = [self.run_directory / trace_path(latest, rank, self._context.attempt) for rank in ranks]
        return _analyse_run(self.run_directory, traces)

    @_harmless
    def watch(self, model: Any, *, every: int = 100) -> None:
        """Measure the norm of this rank's own gradients at each `every`th step, as `local_grad_norm`.

        Memory snapshots then also label the model's parameters and buffers.

        Args:
            model: a module, also one under DistributedDataParallel or fully_shard; call it after wrapping.
            every: fewer steps are sampled where it would cost more than 0.1 % of the training thread's time.
        """
        self._owners.watch(model)
        self._gradients.watch(model, every)
        self._log.ask_at_end()

    @_harmless
    def _begin(self) -> None:
        global _measuring
        other = _profile_at_work()
        if other is not None and other.gives_way:
            other._end(None)
        elif other is not None:
            raise RuntimeError("another stepscope.profile measures this process and goes on; this one steps aside")
        settings = self._settings
        self._open_spans.begin()
        identity, on_gpu = identify_process(), has_gpu_activities()
        schedule = settings.schedule or default_schedule(on_gpu=on_gpu)
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule is made by stepscope.every or stepscope.once, not {schedule!r}")
        self._schedule = schedule if on_gpu else replace(schedule, light=0)
        captures = captures_on_this_rank(settings.ranks, identity)
        labels = {str(name): str(value) for name, value in dict(settings.labels or {}).items()}
        goes_to_url = is_url(settings.out)
        # absolute: the script may change its directory
        out = spool_folder(str(settings.out), settings.spool) if goes_to_url else Path(settings.out).absolute()
        begun = open_step_file(out / choose_run_name(settings.run, identity), identity, settings.first_step)
        self.run_directory, self._writer = begun.run_directory, begun.writer
        attempt, first_step = begun.continuation.attempt, begun.continuation.first_step
        mesh = mesh_sizes(settings.mesh, identity.world_size)
        if identity.rank == 0:
            for warning in settings.warnings(mesh, identity.world_size):
                logger.warning(warning)
        self._context = context = RunContext(
            self.run_directory,
            identity,
            mesh,
            settings,
            functools.partial(_open_spans, self._log, self._open_spans.names),
            self._log.open_step,
            self._owners,
            attempt=attempt,
            first_step=first_step,
        )
        schedule = self._schedule.counted_from(first_step)
        self._agent_link = AgentLink(context, schedule, takes_scheduled=captures, rule=settings.capture_when)
        self._counters = CounterLog(self.run_directory / RankFile.COUNTERS.path(identity.rank))
        self._agent_link.take_counters = self._counters.take
        self._agent_link.newest = self._log.newest
        self._agent_link.plan.running_step, self._agent_link.plan.when_posted = (
            self._log.running_step,
            self._log.ask_at_end,
        )
        weakref.finalize(
            self, self._agent_link.close, 0.0
        ).atexit = False  # never left: at exit `ShutdownHandler` does more
        self._settling = PendingSteps(
            [*make_settled_listeners(context), self._agent_link, self._times], self._writer.add, _weakly_taken(self)
        )
        context.when_stuck.extend((self._settling.hurry, self._writer.flush))
        if identity.rank == 0:
            self._reached = reached = ReachedStep(self.run_directory)
            self._manifest = ManifestWriter(context, labels, self._observed, reached.before)
            self._manifest.write()
            reached.begin(attempt, first_step, time.time_ns())
            self._log.reached = reached.places
        remove_leftovers(self.run_directory, identity.rank)
        self._reduction = reduction = trace_reduction(context)
        if goes_to_url:
            reduces = reduction is not None
            self._upload = NodeUpload(self.run_directory, str(settings.out), identity.rank, reduces=reduces)
        self._captures = CaptureRunner(
            self._agent_link.plan,
            functools.partial(_new_recording, context),
            before_start=self._keep_unprofiled_time,
            before_stepping_aside=self._open_spans.close_all,
            step_time=self._agent_link.step_time,
            trace_written=None if self._reduction is None else self._reduction.trace_written,
        )
        phase = weakref.WeakMethod(self.phase)
        observed = make_observers(
            lambda name: None if (alive := phase()) is None else alive(name),
            self._open_spans.names,
            self._device_clock,
            self._observed,
            self._log,
            _weakly(self._is_warm_up),
            functools.partial(_times_waits, self._observed, is_driven=self.gives_way),
        )
        made = make_step_listeners(context, self._scalar_reader, self._log.running_step)
        self._listeners = StepListeners([*made, self._gradients, *observed])
        self._run_delay = make_run_delay()
        self._live_verdict = live_verdict_task(context, self._agent_link.send)
        link = self._agent_link
        place = RankPlaceFile(self.run_directory, identity, lambda: link.gpu_uuid)
        place.run_task()
        own = [self._writer, self._manifest, self._counters, place, self._live_verdict, self._reduction, self._upload]
        tasks = [*own, *self._run_delay, *made]
        self._background_loop = BackgroundLoop(each for each in tasks if isinstance(each, PeriodicTask))
        self._background_loop.start()
        self._shutdown = ShutdownHandler(
            self,
            self._background_loop,
            note=Profile._note_signal,
            end=Profile._close,
            is_busy=lambda self: self._depth > 0,
            step=lambda self: self._log.running_step(),
        )
        weakref.finalize(self, self._background_loop.stop, self._listeners.close).atexit = False  # never left
        self._shutdown.start()
        _measuring = weakref.ref(self)
        self._captures.move_to(first_step, None)
        self._log.is_traced = self._open_spans.are_recorded
        self._begin_step(first_step)

    @_harmless
    def _pass_exception(self, error: BaseException) -> None:
        self._listeners.left_by(error)

    @_harmless
    def _end(self, kind: type[BaseException] | None) -> None:
        self._stop_watching()
        self._close("signal" if self._is_ending else attempt_ending(kind))

    @_harmless
    def _close(self, ended: str) -> None:
        self._close_annotation()
        record = self._log.open_record()
        if self._settling is not None:
            self._settling.add(*self._settling.take())
        self._listeners.close()
        for run_delay in self._run_delay:
            run_delay.close()
        if self._captures is not None:
            self._captures.close(record)
        if self._reduction is not None:
            self._reduction.close()
        if self._settling is not None:
            self._settling.close()
        if self._writer is not None:
            self._writer.close()
        self._forget_reached()
        if self._counters is not None:
            self._counters.close()
        if self._manifest is not None:
            self._manifest.read_settings(is_over=self.gives_way)  # which ends with the process
            self._manifest.end(ended, self._times.unprofiled_step_ms())
            has_trace = self._captures is not None and self._captures.latest is not None
            first_step = 0 if self._context is None else self._context.first_step
            missed = None if record is None or has_trace else self._schedule.missed_by(record.index - first_step)
            if missed is not None:
                logger.warning(missed)
        if self._upload is not None:
            self._upload.close(is_signal=ended == "signal")
        self._turn_off()

    def _note_signal(self, is_deadly: bool) -> None:
        """Keep what is measured so far, on another thread, as the training thread may never return."""
        self._is_ending = True
        if self._settling is not None and is_deadly:
            self._settling.hurry()
        if self._writer is not None:
            self._writer.flush()
        if self._manifest is not None and is_deadly:
            self._manifest.end("signal", None)

    def _forget_reached(self) -> None:
        """Once the lines of all steps are written."""
        self._log.reached = [0] * NUM_PLACES
        if self._reached is not None:
            self._reached.close()

    def _stop_watching(self) -> None:
        """Stop the background loop and the signal handlers; called before anything is closed."""
        if self._background_loop is not None:
            self._background_loop.stop()
        if self._shutdown is not None:
            self._shutdown.stop()
        if self._live_verdict is not None:
            self._live_verdict.close()

    def _keep_unprofiled_time(self) -> None:
        if self._manifest is not None:
            self._manifest.read_settings()
            self._manifest.keep(self._times.unprofiled_step_ms())

    def _begin_step(self, index: int) -> None:
        assert self._captures is not None
        assert self._agent_link is not None
        log, plan = self._log, self._agent_link.plan
        # Also outside our captures: whoever else records (NVTX, a daemon that may ask) then knows the step's number.
        self._annotation = self._open_spans.open(f"{spans.STEP_PREFIX}{index}") if log.is_traced() else None
        log.state, log.captured = plan.state(index).value, self._captures.is_capturing
        self._device_clock.look()
        self._listeners.look()
        log.begin(index)
        self._listeners.step_began(index)
        log.due_step = min(plan.due_step(index), self._listeners.due_step(index), index + _MOST_LOGGED_STEPS)
        if plan.has_posted:  # meanwhile, on another thread
            log.ask_at_end()

    def _is_undisturbed(self, step: int) -> bool:
        """Whether the running step is not captured."""
        return self._agent_link is None or self._agent_link.plan.state(step) is ProfilerState.WAIT

    def _is_warm_up(self, step: int) -> bool:
        """Whether the profiler is prepared in a step."""
        return self._agent_link is not None and self._agent_link.plan.state(step) is ProfilerState.WARMUP

    def _close_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        self._open_spans.close(annotation)

    @_harmless
    def count_data_wait(self, interval: Interval) -> None:
        """Add to the current step a wait for data outside `prof.data`."""
        self._log.add_interval(None, interval)

    @_harmless
    def optimizer_seen(self, optimizer: Any) -> None:
        """Note the settings of an optimizer of the training, for the manifest."""
        self._observed.optimizer_seen(optimizer)

    def now(self) -> Instant:
        """The current instant, for the ends of an interval."""
        return self._device_clock.now()

    @_harmless
    def stop_for(self, error: Exception) -> None:
        """Stop measuring after an error of the code that measures through this profile."""
        raise error

    def _turn_off(self) -> None:
        self._on = False
        self._open_spans.end()
        self._log.open = None

    def _give_up(self, error: Exception) -> None:
        """Log the error once, stop everything, and do nothing from now on."""
        if not self._on:
            return
        self._turn_off()
        self.run_directory = None
        with suppress(Exception):  # of a log handler
            logger.warning("stepscope stops measuring this run, training goes on: %s: %s", type(error).__name__, error)
        cleanups: list[Callable[[], object]] = [self._stop_watching, self._close_annotation, self._listeners.close]
        cleanups += [run_delay.close for run_delay in self._run_delay]
        cleanups += [self._captures.discard] if self._captures is not None else []
        cleanups += [self._reduction.close] if self._reduction is not None else []
        cleanups += [self._settling.close] if self._settling is not None else []
        cleanups += [self._writer.close] if self._writer is not None else []
        cleanups.append(self._forget_reached)
        cleanups += [self._counters.close] if self._counters is not None else []
        if self._manifest is not None:
            cleanups.append(functools.partial(self._manifest.end, MEASURING_STOPPED, None))
        for cleanup in cleanups:
            try:
                cleanup()
            except Exception:  # logged once already
                with suppress(Exception):
                    logger.debug("clean-up failed", exc_info=True)


def is_measured() -> bool:
    """Whether a profile measures this process."""
    return _profile_at_work() is not None


def was_measured() -> bool:
    """Whether a profile measures this process or has done so."""
    return _measuring is not None


def _profile_at_work() -> Profile | None:
    profile = None if _measuring is None else _measuring()
    return profile if profile is not None and profile._on else None


def _in_child() -> None:
    """What this process measures is not a forked one's, and its files are not."""
    if (profile := _profile_at_work()) is not None:
        profile._turn_off()


os.register_at_fork(after_in_child=_in_child)


def _open_spans(log: StepLog, names: Callable[[], list[str]]) -> list[str]:
    """Names of the open spans, the step first, which has a span only while a profiler records."""
    inner = names()
    if log.open is None or any(name.startswith(spans.STEP_PREFIX) for name in inner):
        return inner
    return [f"{spans.STEP_PREFIX}{log.running_step()}", *inner]


def _weakly_taken(profile: Profile) -> Callable[[], list[StepRecord]]:
    """Call of a profile's `_take_records` that does not keep it alive."""
    method = weakref.WeakMethod(profile._take_records)
    return lambda: [] if (alive := method()) is None else alive()


def _times_waits(observed: ObservedSettings, *, is_driven: bool) -> bool:
    """Whether `prof.data` times the waits for batches, or whoever drives the profile does."""
    return is_driven or observed.was_given_iterable


def _weakly(is_so: Callable[[int], bool]) -> Callable[[int], bool]:
    """Call of a bound method that does not keep its object alive."""
    method = weakref.WeakMethod(is_so)
    return lambda step: (alive := method()) is not None and alive(step)


def _new_recording(context: RunContext, window: CaptureWindow) -> Recording:
    settings, is_light = context.settings, window.is_light
    path = trace_path(window.start, context.identity.rank, context.attempt, is_light=is_light)
    return Recording(
        window.start,
        context.run_directory / path,
        is_light=is_light,
        record_shapes=bool(settings.record_shapes) and not is_light,
        with_stack=bool(settings.with_stack) and not is_light,
        profile_memory=bool(settings.profile_memory) and not is_light,
    )


_TRACES_TIMEOUT_SECONDS = 60.0
"""Ranks end their loops within a step of each other; the slowest disk takes some seconds for a trace."""
_POLL_SECONDS = 0.1


def _analyse_run(run_directory: Path, expected: Sequence[Path]) -> Analysis | str:
    """The analysis of a profile's latest capture, kept beside the run; one line with the reason where there is none.

    Args:
        expected: traces of that capture, which are waited for; missing ones are named in the analysis.
    """
    give_up = time.monotonic() + _TRACES_TIMEOUT_SECONDS
    while time.monotonic() < give_up and not all(
        path.exists() or (run_directory / view_path(path)).exists() for path in expected
    ):
        time.sleep(_POLL_SECONDS)
    try:
        from stepscope.workflow.analyze import analyze

        return analyze([str(run_directory)]).analysis
    except StepscopeError as error:
        return f"no verdict: {error}"
    except Exception as error:  # training must never be hurt
        logger.debug("the analysis failed", exc_info=True)
        return f"no verdict: {type(error).__name__}: {error}; try `stepscope analyze {run_directory} --debug`"


def summary_text(analysis: Analysis, where: str | Path) -> str:
    """Text of `Profile.summary()`: the verdict as `stepscope analyze` prints it, and where to find more."""
    lines = [headline(analysis), *verdict_text(analysis).lines()]
    return "\n".join([*lines, f"more: stepscope analyze {where}"])
