"""Live verdict in the training process: rank 0 starts the process that works it out, one rank a node passes it on.

All of it runs in the background loop; `stepscope.workflow.live_verdict_process` is that process.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stepscope.core.documents.run_directory import LIVE_VERDICT_FILE
from stepscope.core.protocol.messages import encode_message
from stepscope.core.protocol.verdicts import MAX_VERDICT_BYTES, LiveVerdict, read_live_verdict
from stepscope.training.run.context import RunContext
from stepscope.training.run.side_process import SideProcess

logger = logging.getLogger(__name__)

LIVE_VERDICT_VARIABLE = "STEPSCOPE_LIVE_VERDICT"
DEFAULT_SECONDS = 60.0
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 600.0


def parse_live_verdict(value: float | str) -> float:
    """Seconds from one live verdict to the next: a number, "on" (60), or "off" (infinite).

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, bool):
        value = "on" if value else "off"
    if value == "off":
        return math.inf
    if value == "on":
        return DEFAULT_SECONDS
    with suppress(ValueError, TypeError):
        if _LEAST_SECONDS <= (seconds := float(value)) <= _MOST_SECONDS:
            return seconds
    raise ValueError(f'live_verdict is "on", "off" or {_LEAST_SECONDS:g} to {_MOST_SECONDS:g} seconds, not {value!r}')


_FIRST_AGAIN_SECONDS, _LAST_AGAIN_SECONDS = 60.0, 3600.0


class LiveVerdictProcess:
    """The process beside rank 0 that works out the live verdict; started after the first interval, ends with training.

    One that ends by itself is started again, each time later.
    """

    def __init__(self, run_directory: Path, seconds: float) -> None:
        self._run_directory = run_directory
        self._seconds = seconds
        self._start_at = time.monotonic() + seconds
        self._again_seconds = _FIRST_AGAIN_SECONDS
        self._process: SideProcess | None = None
        self._is_closed = False
        with suppress(OSError):  # an earlier attempt's
            (run_directory / LIVE_VERDICT_FILE).unlink()

    def run_task(self) -> None:
        """About once a second, in the background."""
        now = time.monotonic()
        if self._process is not None:
            if self._process.exit_code is not None:
                self._process = None
                self._start_at = now + self._again_seconds
                self._again_seconds = min(self._again_seconds * 2, _LAST_AGAIN_SECONDS)
        elif now >= self._start_at and not self._is_closed:
            self._start(now)

    def close(self) -> None:
        """End the process; after the background loop has stopped."""
        self._is_closed = True
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _start(self, now: float) -> None:
        run, seconds = str(self._run_directory.absolute()), str(self._seconds)
        try:
            self._process = SideProcess("stepscope.workflow.live_verdict_process", run, seconds, str(os.getpid()))
        except (OSError, RuntimeError):  # no process can be had
            logger.debug("the live verdict's process cannot be started", exc_info=True)
            self._start_at = now + _LAST_AGAIN_SECONDS


_LOOK_SECONDS = 5.0
_NOBODY = 65534
"""Owner of a user's files on a root-squashing file server."""


class LiveVerdictRelay:
    """Passes each new live verdict of the run on to this node's agent.

    Args:
        send: takes a line for the agent.
        look_seconds: from one look at the file to the next.
    """

    def __init__(self, run_directory: Path, send: Callable[[bytes], None], look_seconds: float = _LOOK_SECONDS) -> None:
        self._path = run_directory / LIVE_VERDICT_FILE
        self._run = run_directory.name
        self._send = send
        self._look_seconds = look_seconds
        self._look_at = 0.0
        self._newest_ns = time.time_ns()

    def run_task(self) -> None:
        """About once a second, in the background."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._look_seconds
        verdict = self._read()
        if verdict is not None and verdict.time_ns > self._newest_ns and verdict.run == self._run:
            self._newest_ns = verdict.time_ns
            self._send(encode_message(verdict))

    def _read(self) -> LiveVerdict | None:
        """The newest one; None where there is none that this user has written."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                if os.fstat(descriptor).st_uid not in (os.geteuid(), _NOBODY):
                    return None
                return read_live_verdict(json.loads(file.read(MAX_VERDICT_BYTES)))
        except (OSError, ValueError, RecursionError):
            return None


class LiveVerdictTask:
    """Background task of a run with a live verdict.

    Attributes:
        process: rank 0's; None in other ranks.
        relay: of one rank a node.
    """

    def __init__(self, process: LiveVerdictProcess | None, relay: LiveVerdictRelay) -> None:
        self.process, self.relay = process, relay

    def run_task(self) -> None:
        for task in (self.process, self.relay):
            if task is not None:
                task.run_task()

    def close(self) -> None:
        """End the process; after the background loop has stopped."""
        if self.process is not None:
            self.process.close()


def live_verdict_task(context: RunContext, send: Callable[[bytes], None]) -> LiveVerdictTask | None:
    """The task of this rank, by the argument of `profile()`, else by the environment; None where it has none.

    Args:
        send: takes a line for the agent.
    """
    argument, run_directory, identity = context.settings.live_verdict, context.run_directory, context.identity
    try:
        in_environment = os.environ.get(LIVE_VERDICT_VARIABLE) or "off"
        seconds = parse_live_verdict(in_environment if argument is None else argument)
    except ValueError as error:
        logger.warning("stepscope measures without a live verdict: %s", error)
        return None
    if seconds == math.inf or identity.local_rank != 0:
        return None
    process = LiveVerdictProcess(run_directory, seconds) if identity.rank == 0 else None
    return LiveVerdictTask(process, LiveVerdictRelay(run_directory, send))
