"""How is a process asked that may never answer? Without ever waiting for it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Protocol


class Probe(Protocol):
    """A process that reads GPUs."""

    def fileno(self) -> int:
        """File descriptor that is readable when there is an answer, or the process has ended."""
        ...

    def send(self, request: dict[str, Any]) -> bool:
        """Ask; whether the process is there to be asked."""
        ...

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Answers that came since the last time, and whether the process has ended."""
        ...

    def kill(self) -> None:
        """End it, if it can be ended."""
        ...

    def is_gone(self) -> bool:
        """Whether it has ended; one that hangs in the kernel has not, though it was killed."""
        ...

    def finish(self) -> None:
        """Tell it to end by itself."""
        ...


_LONGEST = 16 * 1024**2
"""Bytes of a line: a full answer has some ten thousand."""


class ProbeProcess:
    """The real one."""

    def __init__(
        self, seldom_seconds: float, grace_seconds: float, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it.

        Args:
            seldom_seconds: between two readings of what changes slowly.
            grace_seconds: what it may take to end when it is told to.
            environment: the agent's own where none is given.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stepscope.collectors.nvml.serving", str(seldom_seconds), str(grace_seconds)],
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
        """Of the process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """With which it ended; negative: by that signal; None: it has not."""
        return self._process.poll()

    def fileno(self) -> int:
        """See `Probe`."""
        return self._output.fileno()

    def send(self, request: dict[str, Any]) -> bool:
        """See `Probe`. A request fits the pipe: there is never more than one in it."""
        line = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        try:
            return os.write(self._input.fileno(), line) == len(line)
        except OSError:
            return False

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """See `Probe`. A process that answers what is no answer counts as ended."""
        has_ended = False
        while True:
            try:
                data = os.read(self._output.fileno(), 1 << 16)
            except BlockingIOError:
                break
            has_ended = not data
            self._partial += data
            if has_ended or len(self._partial) > _LONGEST:
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
        return answers, has_ended or len(self._partial) > _LONGEST

    def kill(self) -> None:
        """See `Probe`."""
        self._process.kill()
        self._close_pipes()

    def is_gone(self) -> bool:
        """See `Probe`."""
        return self._process.poll() is not None

    def finish(self) -> None:
        """See `Probe`. Killing a process that is in the driver has frozen a GPU (NVIDIA/dcgm-exporter#84)."""
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError):
                pipe.close()
