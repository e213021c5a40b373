"""Client of the agent: hello, heartbeats with the step state, and capture requests passed to the coordinator."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from stepscope.core.protocol.messages import (
    Answer,
    Cancel,
    CaptureRequest,
    Heartbeat,
    Hello,
    Message,
    ProtocolError,
    encode,
)
from stepscope.training.agent_link.connection import AgentConnection, socket_path
from stepscope.training.captures.coordinator import CaptureCoordinator
from stepscope.training.captures.plan import CapturePlan
from stepscope.training.captures.schedule import Schedule, SlowStep, SlowSteps, rule_from_environment
from stepscope.training.run.identity import gpu_uuid
from stepscope.training.settings import RunContext
from stepscope.training.steps.spans import open_phases
from stepscope.training.steps.telemetry import RecentStepTime, StepRecord

logger = logging.getLogger(__name__)

_LOOK_EVERY_NS = 10_000_000_000
_MAX_REASON = 500
_STEPS_TO_FIND_GPU = 3  # a loop that has not used one by then trains without


class AgentClient:
    """Begins a thread only once there is an agent's socket, or a rule that ranks have to agree on.

    Args:
        schedule: the run's own captures.
        takes_scheduled: whether this rank takes them.
        rule: when the run asks for a capture of itself; None is by STEPSCOPE_CAPTURE_WHEN, or never.

    Attributes:
        plan: which capture each step belongs to.
        pace: how long steps take at present.
        tick_seconds: for the link.
    """

    def __init__(
        self, context: RunContext, schedule: Schedule, *, takes_scheduled: bool, rule: SlowStep | None = None
    ) -> None:
        rule = rule_from_environment() if rule is None else rule
        if rule is not None and not isinstance(rule, SlowStep):
            raise TypeError(f"capture_when is made by stepscope.slow_step, not {rule!r}")
        self.pace = RecentStepTime()
        self._identity = context.identity
        self._slow_steps = None if rule is None else SlowSteps(rule)
        self._link = AgentConnection(socket_path(), self)
        self._desk = CaptureCoordinator(
            context.run_directory.name,
            context.identity,
            schedule,
            takes_scheduled=takes_scheduled,
            pace=self.pace,
            slow_steps=self._slow_steps,
            send=self._send,
        )
        self.tick_seconds = self._desk.tick_seconds
        self._heartbeat = HeartbeatSource(context, lambda: self.plan.state(self.plan.step).value)
        self._looked_ns = 0
        self._last_step_to_find_gpu = context.first_step + _STEPS_TO_FIND_GPU
        self._heartbeat.gpu_uuid = gpu_uuid(context.identity)
        self._begin_if_needed(0)

    @property
    def plan(self) -> CapturePlan:
        return self._desk.plan

    def step_ended(self, record: StepRecord, *, is_writing: bool) -> None:
        """A step is over. Takes about a microsecond.

        Args:
            is_writing: a trace is being written, which may have slowed the step.
        """
        self._heartbeat.newest = record
        self.pace.add(record)
        if self._slow_steps is not None and self._slow_steps.is_due(record, is_writing=is_writing):
            self._desk.ask_by_rule()
            if self._link.is_running:
                self._link.wake()
            else:
                self._desk.tick()
        if record.index <= self._last_step_to_find_gpu and self._heartbeat.gpu_uuid is None:
            self._find_gpu()
        if abs(record.end_ns - self._looked_ns) >= _LOOK_EVERY_NS:  # a clock set back is no reason to stop
            self._begin_if_needed(record.end_ns)

    def step_settled(self, record: StepRecord) -> None:
        """The step has all its figures, also those that came late from the GPU."""
        self._heartbeat.newest_settled = record

    def close(self, patience_seconds: float = 2.0) -> None:
        """No step comes any more, and all is written: say so, and end the thread, waiting so long for it."""
        self._desk.close()
        self._link.close(patience_seconds)

    def hello(self) -> bytes:
        """Called by the link."""
        return self._heartbeat.hello()

    def heartbeat(self) -> bytes:
        """Called by the link."""
        return self._heartbeat.line()

    def heard(self, message: Message) -> None:
        """Called by the link."""
        if isinstance(message, CaptureRequest):
            self._desk.ask(message)
        elif isinstance(message, Cancel):
            self._desk.cancel(message)

    def misheard(self, error: ProtocolError) -> None:
        """Called by the link."""
        if error.capture_id is not None:
            self._desk.refuse(error.capture_id, str(error))

    def tick(self) -> None:
        """Called by the link."""
        self._desk.tick()

    def _send(self, answer: Answer) -> None:
        short = answer if answer.reason is None else replace(answer, reason=answer.reason[:_MAX_REASON])
        self._link.answer(encode(short))

    def _find_gpu(self) -> None:
        self._heartbeat.gpu_uuid = gpu_uuid(self._identity)
        if self._heartbeat.gpu_uuid is not None:
            self._link.answer(self._heartbeat.hello())

    def _begin_if_needed(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        must_agree = self._slow_steps is not None and self._identity.world_size > 1
        if not self._link.is_running and (must_agree or self._link.has_agent):
            try:
                self._link.start()
            except (OSError, RuntimeError):  # no thread or descriptor can be had: training has other worries
                logger.debug("the agent's link cannot begin", exc_info=True)


_MAX_NAMES = 32
_MAX_NAME = 80
_MOST = 1e300  # a whole number may be larger than any float


class HeartbeatSource:
    """Makes the lines. The newest steps are set by the training thread, all else may be called from any.

    Attributes:
        newest: the newest finished step.
        newest_settled: the newest that has all its figures.
        gpu_uuid: None while unknown.
    """

    def __init__(self, context: RunContext, state_of_step: Callable[[], str]) -> None:
        self.newest: StepRecord | None = None
        self.newest_settled: StepRecord | None = None
        self.gpu_uuid: str | None = None
        self._context = context
        self._state_of_step = state_of_step
        self._pid = os.getpid()
        self._start_ns = time.time_ns()

    def hello(self) -> bytes:
        """Who this is."""
        identity = self._context.identity
        return encode(
            Hello(
                run=self._context.run_directory.name,
                run_directory=str(self._context.run_directory),
                rank=identity.rank,
                local_rank=identity.local_rank,
                world_size=identity.world_size,
                pid=self._pid,
                host=identity.host,
                start_ns=self._start_ns,
                mesh=self._context.mesh,
                gpu_uuid=self.gpu_uuid,
            )
        )

    def line(self) -> bytes:
        """How the steps go."""
        record, settled, now_ns = self.newest, self.newest_settled, time.time_ns()
        state, doing = self._state_of_step(), self._doing()
        if record is None:
            return encode(Heartbeat(age_ms=max(now_ns - self._start_ns, 0) / 1e6, state=state, doing=doing))
        return encode(
            Heartbeat(
                age_ms=max(now_ns - record.end_ns, 0) / 1e6,
                state=state,
                index=record.index,
                ms=max(record.duration_ns, 0) / 1e6,
                data_wait_ms=max(record.data_wait_ns, 0) / 1e6,
                phases_ms={name: max(ns, 0) / 1e6 for name, ns in _first_of(record.phases).items()},
                figures={} if settled is None else _sendable(settled.figures),
                doing=doing,
            )
        )

    def _doing(self) -> str | None:
        """The innermost phase that is open."""
        phases = open_phases(self._context.open_spans())
        return next((name for name in reversed(phases) if name.isprintable() and 0 < len(name) <= _MAX_NAME), None)


def _first_of(numbers: Mapping[str, int | float]) -> dict[str, int | float]:
    """The first few of them; copied whole at first, as the training thread may add one meanwhile."""
    named = {name: value for name, value in dict(numbers).items() if name.isprintable() and 0 < len(name) <= _MAX_NAME}
    return dict(list(named.items())[:_MAX_NAMES])


def _sendable(figures: Mapping[str, int | float]) -> dict[str, int | float]:
    return {name: value for name, value in _first_of(figures).items() if -_MOST < value < _MOST}
