"""Who connects a run's steps with the agent on its node, and with whoever else asks for a capture?"""

from __future__ import annotations

import logging
from dataclasses import replace

from stepscope.core.agent_messages import Answer, Cancel, CaptureRequest, Message
from stepscope.core.agent_protocol import ProtocolError, encode
from stepscope.training.agent_link.gpu_uuid import gpu_uuid
from stepscope.training.agent_link.heartbeat import Heartbeat
from stepscope.training.agent_link.link import AgentLink, socket_path
from stepscope.training.captures.capture_desk import CaptureDesk
from stepscope.training.captures.capture_plan import CapturePlan
from stepscope.training.captures.schedule import Schedule
from stepscope.training.captures.slow_steps import SlowStep, SlowSteps, rule_from_environment
from stepscope.training.captures.step_pace import StepPace
from stepscope.training.settings import RunContext
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

_LOOK_EVERY_NS = 10_000_000_000
_MAX_REASON = 500
_STEPS_TO_FIND_GPU = 3  # a loop that has not used one by then trains without


class AgentTalk:
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
        self.pace = StepPace()
        self._identity = context.identity
        self._slow_steps = None if rule is None else SlowSteps(rule)
        self._link = AgentLink(socket_path(), self)
        self._desk = CaptureDesk(
            context.run_directory.name,
            context.identity,
            schedule,
            takes_scheduled=takes_scheduled,
            pace=self.pace,
            slow_steps=self._slow_steps,
            send=self._send,
        )
        self.tick_seconds = self._desk.tick_seconds
        self._heartbeat = Heartbeat(context, lambda: self.plan.state(self.plan.step).value)
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
