"""What does the agent hear of this process: who it is, and how its steps go?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from stepscope.core.agent_messages import Hello, Step
from stepscope.core.agent_protocol import encode
from stepscope.training.settings import RunContext
from stepscope.training.steps.open_spans import open_phases
from stepscope.training.steps.telemetry import StepRecord

_MAX_NAMES = 32
_MAX_NAME = 80
_MOST = 1e300  # a whole number may be larger than any float


class Heartbeat:
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
            return encode(Step(age_ms=max(now_ns - self._start_ns, 0) / 1e6, state=state, doing=doing))
        return encode(
            Step(
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
