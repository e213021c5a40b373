"""Side process: a process of stepscope's own beside a training process, with one thread and a session of its own.

A module that takes more than a second gives way to training (`core.process.give_way`) before it loads anything. What
it computes and reads is no sign that training makes progress.
"""

from __future__ import annotations

import os
import subprocess

from stepscope.core.process import module_command
from stepscope.training.hangs.stall import helper_processes

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_MOST_ANSWER_BYTES = 1 << 16
"""As many as a pipe holds: a longer answer is never written whole, as it is read when the process has ended."""


class SideProcess:
    """A side process that runs a module of stepscope; its working directory is training's.

    Args:
        arguments: of the module.
        answers: keep what it prints, for `answer`.

    Raises:
        OSError, RuntimeError: no process can be started.
    """

    def __init__(self, module: str, *arguments: str, answers: bool = False) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPSCOPE_")}
        self._process = subprocess.Popen(
            module_command(module, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if answers else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment | _ONE_THREAD,
            start_new_session=True,
        )
        helper_processes.running.add(self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """Without waiting; None while it runs."""
        if self._process.returncode is None:
            self._process.returncode = helper_processes.reap(self._process.pid)
        return self._process.returncode

    def answer(self) -> str:
        """What it has printed, once it has ended."""
        if self._process.stdout is None or self._process.stdout.closed:
            return ""
        with self._process.stdout as stdout:
            return stdout.read(_MOST_ANSWER_BYTES).decode(errors="replace").strip()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        self.leave()

    def leave(self) -> None:
        """Let it go on by itself when training ends."""
        helper_processes.running.discard(self._process.pid)
        if self._process.returncode is None:
            self._process.returncode = 0
        if self._process.stdout is not None:
            self._process.stdout.close()
