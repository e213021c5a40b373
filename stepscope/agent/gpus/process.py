"""Probe processes: pipes to one, the slot that tracks its requests, and the reaper of those that end.

Nothing here waits. A process that hangs in the kernel is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepscope.core.metrics.readings import Collection
from stepscope.core.metrics.stream import StreamReader
from stepscope.core.process import module_command


class GpuProbe(Protocol):
    """A probe process of the agent, which reads GPUs."""

    def fileno(self) -> int:
        """File descriptor that is readable when there is an answer, or the process has ended."""

    def send(self, request: dict[str, Any]) -> bool:
        """Send a request; False if the process does not take it."""

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Answers since the last call, and whether the process has ended."""

    def kill(self) -> None:
        """Kill the process."""

    def is_gone(self) -> bool:
        """Whether it has ended; one that hangs in the kernel has not, though it was killed."""

    def finish(self) -> None:
        """Ask the process to exit by itself."""


_MAX_LINE_BYTES = 16 * 1024**2
"""A full answer has some ten thousand."""


class ProbeProcess:
    """A `GpuProbe` that is a child process running `collectors.nvml.worker`."""

    def __init__(
        self, slow_poll_seconds: float, grace_seconds: float, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it.

        Args:
            slow_poll_seconds: between two readings of what changes slowly.
            grace_seconds: time to exit when it is asked to.
        """
        self._process = subprocess.Popen(
            module_command("stepscope.collectors.nvml.worker", str(slow_poll_seconds), str(grace_seconds)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)
        self._partial = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit status; negative: the signal that ended it; None: it has not ended."""
        return self._process.poll()

    def fileno(self) -> int:
        return self._output.fileno()

    def send(self, request: dict[str, Any]) -> bool:
        """See `GpuProbe`. A request fits the pipe: there is never more than one in it."""
        line = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        try:
            return os.write(self._input.fileno(), line) == len(line)
        except OSError:
            return False

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """See `GpuProbe`. A process that sends an invalid answer counts as ended."""
        has_ended = False
        while True:
            try:
                data = os.read(self._output.fileno(), 1 << 16)
            except BlockingIOError:
                break
            has_ended = not data
            self._partial += data
            if has_ended or len(self._partial) > _MAX_LINE_BYTES:
                break
        *lines, self._partial = self._partial.split(b"\n")
        answers: list[dict[str, Any]] = []
        for line in lines:
            try:
                answer = json.loads(line)
            except ValueError:
                return answers, True
            if not isinstance(answer, dict):
                return answers, True
            answers.append(answer)
        return answers, has_ended or len(self._partial) > _MAX_LINE_BYTES

    def kill(self) -> None:
        self._process.kill()
        self._close_pipes()

    def is_gone(self) -> bool:
        return self._process.poll() is not None

    def finish(self) -> None:
        """See `GpuProbe`. Killing a process that is in the driver has frozen a GPU (NVIDIA/dcgm-exporter#84)."""
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError):
                pipe.close()


NAMELESS = "index:"
"""Prefix of the key of a GPU whose PCI bus id is not known yet; its index follows."""


@dataclass(slots=True)
class ProbeSlot:
    """A probe process and the GPUs that it reads; at most one request is open.

    Attributes:
        is_shared: whether it reads all GPUs that have no process of their own.
        is_fresh: whether it has not answered a whole request yet.
        is_looking, is_sweeping: the open request: for the GPUs that are present, or for their readings.
        pending: keys, or indices as "index:3", that it has still to answer for; it is reading the first. None: it has
            not reported the number of GPUs yet.
        asked_at, progress_at: time of the request, and of the last answer to it.
        due, look_due, retry_at: when it is asked next, when for the GPUs present, when it is started again.
        failures: in a row.
        healthy_since: since when it answers without failures.
        found: keys of the GPUs found by the open request.
        streams: readers of the messages on each GPU and part; each message builds on the one before.
    """

    keys: list[str]
    is_shared: bool
    probe: GpuProbe | None = None
    is_fresh: bool = True
    is_looking: bool = False
    is_sweeping: bool = False
    pending: list[str] | None = None
    asked_at: float = 0.0
    progress_at: float = 0.0
    due: float = 0.0
    look_due: float = 0.0
    retry_at: float = 0.0
    failures: int = 0
    healthy_since: float | None = None
    found: set[str] = field(default_factory=set)
    streams: dict[tuple[str, str], StreamReader] = field(default_factory=dict)

    @property
    def is_waiting(self) -> bool:
        return self.is_looking or self.is_sweeping

    @property
    def suspect(self) -> str | None:
        """Key of the GPU that it is reading; None: no particular one."""
        if self.is_waiting and self.pending:
            return self.pending[0]
        return None if self.is_shared or not self.is_waiting else self.keys[0]

    def next_request(self, now: float, apart: list[int]) -> dict[str, Any] | None:
        """Open the next request; None: nothing to ask until the next search for GPUs.

        Args:
            apart: indices of the GPUs that have processes of their own.
        """
        self.asked_at = self.progress_at = now
        is_nameless = bool(self.keys) and self.keys[0].startswith(NAMELESS)
        if (self.is_shared and now >= self.look_due) or (not self.is_shared and is_nameless):
            self.is_looking, self.pending, self.found = True, None, set()
            if self.is_shared:
                return {"do": "look", "skip": apart}
            return {"do": "look", "skip": [], "only": [int(self.keys[0].removeprefix(NAMELESS))]}
        if self.keys:
            self.is_sweeping, self.pending = True, list(self.keys)
            return {"do": "sweep", "keys": self.keys}
        return None

    def read(self, key: str, part: str, message: dict[str, Any]) -> Collection:
        """Readings in a message on a part of a GPU.

        Raises:
            WireError: the message is invalid.
        """
        return self.streams.setdefault((key, part), StreamReader()).read(message)

    def stop(self) -> GpuProbe | None:
        """Reset the slot; the process that was in it."""
        probe, self.probe = self.probe, None
        self.is_fresh, self.is_looking, self.is_sweeping, self.pending = True, False, False, None
        self.healthy_since = None
        self.streams = {}
        return probe


@dataclass(slots=True)
class _Ending:
    probe: GpuProbe
    suspect: str | None
    kill_at: float
    is_killed: bool


class ProbeReaper:
    """Probe processes that were asked to exit or killed, until they have ended.

    Args:
        grace_seconds: time after which a process that was asked to exit is killed.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._endings: list[_Ending] = []

    def kill(self, probe: GpuProbe, suspect: str | None, now: float) -> None:
        """Kill a process that hangs or has ended.

        Args:
            suspect: key of the GPU that it was reading, "" for none, None for the driver as a whole.
        """
        probe.kill()
        self._endings.append(_Ending(probe, suspect, now, is_killed=True))

    def finish(self, probe: GpuProbe, now: float) -> None:
        probe.finish()
        self._endings.append(_Ending(probe, "", now + self._grace, is_killed=False))

    def reap(self, now: float) -> None:
        """Reap processes that have ended, kill those whose grace time is over."""
        self._endings = [ending for ending in self._endings if not ending.probe.is_gone()]
        for ending in self._endings:
            if not ending.is_killed and now >= ending.kill_at:
                ending.probe.kill()
                ending.is_killed, ending.kill_at = True, now

    def is_out(self, suspect: str | None) -> bool:
        """Whether a call on this GPU has not returned, though its process was killed."""
        return any(
            ending.is_killed and ending.suspect == suspect and not ending.probe.is_gone() for ending in self._endings
        )

    def left_behind(self, now: float, after_seconds: float) -> int:
        """Number of processes that still exist so long after they were killed."""
        return sum(ending.is_killed and now - ending.kill_at >= after_seconds for ending in self._endings)

    @property
    def is_empty(self) -> bool:
        return not self._endings
