"""Who holds the job up? One rank, the lowest that still speaks, asks a process beside training, and says it."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.core.live_hang import STALE_SECONDS, LiveHangState
from stepscope.training.trouble.stillness import own_processes

logger = logging.getLogger(__name__)

_ASKS = """
import sys
sys.path.append(sys.argv[1])
from stepscope.workflow.live_hang import main
sys.exit(main(sys.argv[2:]))
"""
"""Finds stepscope where this process has it, after all else."""

_WHERE_STEPSCOPE_IS = str(Path(__file__).resolve().parents[3])
_FIRST_SECONDS = 4.0
_AGAIN_SECONDS = 5.0
_LAST_AGAIN_SECONDS = 60.0
_NUM_SOON = 12
"""Questions in short succession: a minute; the job may be at work for hours."""

_ANSWERS_WITHIN_SECONDS = 60.0
_STATE = re.compile(r"rank(\d+)\.state")
_LONGEST_ANSWER = 1 << 20


class LiveJudge:
    """Called about once a second while this rank's step lasts long.

    The process that reads what all ranks have said takes about half a second of a processor and 40 MB, a few seconds
    after the step was found to last long; training's own process loads nothing.
    """

    def __init__(self, run_directory: Path, rank: int, world_size: int) -> None:
        self._run_directory = run_directory
        self._rank = rank
        self._is_alone = world_size == 1
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = 0.0
        self._num_asked = 0
        self._next: float | None = None
        self._said: tuple[Any, ...] | None = None

    def look(self, now: float, own_state: Path, *, may_ask: bool) -> None:
        """Ask, or hear the answer.

        Args:
            now: monotonic seconds.
            own_state: this rank's file; it lies with those of all others.
            may_ask: False while this rank gets on.
        """
        if self._is_alone:
            return
        if self._process is not None:
            self._hear(now)
        elif self._next is None:
            self._next = now + _FIRST_SECONDS
        elif now >= self._next:
            pause = _AGAIN_SECONDS if self._num_asked < _NUM_SOON else _LAST_AGAIN_SECONDS
            self._next = now + pause
            if may_ask and self._rank == _lowest_that_speaks(own_state):
                self._ask(now)

    def leave(self) -> None:
        """The step is over."""
        said, self._said = self._said, None
        if said is not None:
            logger.warning("training goes on: the hang is over")
        self._next, self._num_asked = None, 0
        self.close()

    def close(self) -> None:
        """Ask no more."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            own_processes.running.discard(process.pid)
            assert process.stdout is not None
            process.stdout.close()

    def _ask(self, now: float) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPSCOPE_")}
        self._num_asked += 1
        self._asked = now
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _ASKS, _WHERE_STEPSCOPE_IS, str(self._run_directory.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except (OSError, RuntimeError):  # no process can be had
            logger.debug("who holds training up cannot be asked", exc_info=True)
            return
        own_processes.running.add(self._process.pid)

    def _hear(self, now: float) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        process.returncode = own_processes.reap(process.pid)
        if process.returncode is None:
            if now - self._asked > _ANSWERS_WITHIN_SECONDS:
                self.close()
            return
        self._process = None
        with process.stdout as answer:  # at its end, and shorter than a pipe holds
            content = answer.read(_LONGEST_ANSWER)
        with suppress(ValueError, KeyError, TypeError):
            self._say(json.loads(content))

    def _say(self, told: dict[str, Any]) -> None:
        if told["state"] != LiveHangState.HANG:
            return
        what = (told["kind"], *told["ranks"])
        if what == self._said:
            return
        self._said = what
        logger.warning(
            "training hangs in step %s for %.0f s (%s, confidence %.0f%%): %s; more: stepscope hang %s",
            told["step"],
            told["age_seconds"],
            told["kind"],
            100 * told["confidence"],
            told["summary"],
            self._run_directory,
        )


def _lowest_that_speaks(own: Path) -> int | None:
    """By the times of the files alone, which one clock has made."""
    times = {}
    for path in own.parent.glob("rank*.state"):
        if match := _STATE.fullmatch(path.name):
            with suppress(OSError):
                times[int(match[1])] = path.stat().st_mtime
    newest = max(times.values(), default=0.0)
    return min((rank for rank, time in times.items() if newest - time < STALE_SECONDS), default=None)
