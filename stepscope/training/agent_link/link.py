"""Link to the agent: hello, heartbeats with the step state, and capture requests passed to the coordinator."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from stepscope.core.protocol.captures import CaptureRequest
from stepscope.core.protocol.messages import Answer, Cancel, Heartbeat, Hello, Message, ProtocolError, encode
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
_STEPS_TO_FIND_GPU = 3  # a loop that has not used one by then trains without one


class AgentLink:
    """Link to the agent. Starts a thread only once there is an agent's socket, or a rule that ranks must agree on.

    Args:
        schedule: the run's own captures.
        takes_scheduled: whether this rank takes them.
        rule: by which the run requests captures itself; None is by STEPSCOPE_CAPTURE_WHEN, or never.

    Attributes:
        step_time: recent time of a step.
        tick_seconds: time from one `tick` to the next.
    """

    def __init__(
        self, context: RunContext, schedule: Schedule, *, takes_scheduled: bool, rule: SlowStep | None = None
    ) -> None:
        rule = rule_from_environment() if rule is None else rule
        if rule is not None and not isinstance(rule, SlowStep):
            raise TypeError(f"capture_when is made by stepscope.slow_step, not {rule!r}")
        self.step_time = RecentStepTime()
        self._identity = context.identity
        self._slow_steps = None if rule is None else SlowSteps(rule)
        self._connection = AgentConnection(socket_path(), self)
        self._captures = CaptureCoordinator(
            context.run_directory.name,
            context.identity,
            schedule,
            takes_scheduled=takes_scheduled,
            step_time=self.step_time,
            slow_steps=self._slow_steps,
            send=self._send,
        )
        self.tick_seconds = self._captures.tick_seconds
        self._heartbeat = HeartbeatSource(context, lambda: self.plan.state(self.plan.step).value)
        self._looked_ns = 0
        self._last_step_to_find_gpu = context.first_step + _STEPS_TO_FIND_GPU
        self._heartbeat.gpu_uuid = gpu_uuid(context.identity)
        self._start_if_needed(0)

    @property
    def plan(self) -> CapturePlan:
        """The capture that each step belongs to."""
        return self._captures.plan

    def step_ended(self, record: StepRecord, *, is_writing: bool) -> None:
        """Take in a finished step, in about a microsecond.

        Args:
            is_writing: a trace is being written, which may have slowed the step.
        """
        self._heartbeat.newest = record
        self.step_time.add(record)
        if self._slow_steps is not None and self._slow_steps.is_due(record, is_writing=is_writing):
            self._captures.request_by_rule()
            if self._connection.is_running:
                self._connection.wake()
            else:
                self._captures.tick()
        if record.index <= self._last_step_to_find_gpu and self._heartbeat.gpu_uuid is None:
            self._find_gpu()
        if abs(record.end_ns - self._looked_ns) >= _LOOK_EVERY_NS:  # also after a clock was set back
            self._start_if_needed(record.end_ns)

    def step_settled(self, record: StepRecord) -> None:
        """Take in a step that has all its figures, also deferred ones from the GPU."""
        self._heartbeat.newest_settled = record

    def close(self, patience_seconds: float = 2.0) -> None:
        """Fail pending requests, send what is left, and end the thread, waiting at most `patience_seconds`."""
        self._captures.close()
        self._connection.close(patience_seconds)

    def hello(self) -> bytes:
        """The first line on a connection; called by the link."""
        return self._heartbeat.hello()

    def heartbeat(self) -> bytes:
        """The line of each second; called by the link."""
        return self._heartbeat.line()

    def receive(self, message: Message) -> None:
        """Pass a message on to the coordinator; called by the link."""
        if isinstance(message, CaptureRequest):
            self._captures.request(message)
        elif isinstance(message, Cancel):
            self._captures.cancel(message)

    def receive_unreadable(self, error: ProtocolError) -> None:
        """Refuse a request that cannot be read; called by the link."""
        if error.capture_id is not None:
            self._captures.refuse_unreadable(error.capture_id, str(error))

    def tick(self) -> None:
        """Settle requests; called by the link."""
        self._captures.tick()

    def _send(self, answer: Answer) -> None:
        progress = answer.progress
        if progress.reason is not None:
            progress = replace(progress, reason=progress.reason[:_MAX_REASON])
        self._connection.send(encode(Answer(answer.id, progress)))

    def _find_gpu(self) -> None:
        self._heartbeat.gpu_uuid = gpu_uuid(self._identity)
        if self._heartbeat.gpu_uuid is not None:
            self._connection.send(self._heartbeat.hello())

    def _start_if_needed(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        must_agree = self._slow_steps is not None and self._identity.world_size > 1
        if not self._connection.is_running and (must_agree or self._connection.has_agent):
            try:
                self._connection.start()
            except (OSError, RuntimeError):  # no thread or descriptor available: training goes on without
                logger.debug("the connection to the agent cannot be started", exc_info=True)


_MAX_NAMES = 32
_MAX_NAME = 80
_MAX_FIGURE = 1e300  # a whole number may be larger than any float


class HeartbeatSource:
    """Hello and heartbeat lines of this process. The training thread sets the newest steps, any thread takes lines.

    Attributes:
        newest: the newest finished step.
        newest_settled: the newest finished step that has all its figures.
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
        """The line that introduces this process."""
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
        """The line on the newest step and the open one."""
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
    """The first few of them; copied whole first, as the training thread may add one meanwhile."""
    named = {name: value for name, value in dict(numbers).items() if name.isprintable() and 0 < len(name) <= _MAX_NAME}
    return dict(list(named.items())[:_MAX_NAMES])


def _sendable(figures: Mapping[str, int | float]) -> dict[str, int | float]:
    return {name: value for name, value in _first_of(figures).items() if -_MAX_FIGURE < value < _MAX_FIGURE}
