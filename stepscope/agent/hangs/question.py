"""What do the files say that ranks of a run leave while they stand still? Asked of a process of its own.

This one never loads what reads dumps. The other reads files of the run's own user alone, and no links, so that a path
that a process tells opens nothing that its user could not open.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

from stepscope.core.checked_fields import FieldError, any_rank, any_whole, member, number, read_fields, text
from stepscope.core.errors import printable
from stepscope.core.hang import HangKind
from stepscope.core.live_hang import LiveHang, LiveHangState

_ANSWERS_WITHIN_SECONDS = 30.0
_GONE_WITHIN_SECONDS = 1.0
_LONGEST = 1 << 20


class Question:
    """One that is out. Nothing here waits, also where the run's file system hangs, as may be why the run does.

    Args:
        run_directory: as the process calls it.
        pid: of a process of the run, whose view of the file system counts; None: this one's.
        uid: whose files count; None: anybody's.
        now: monotonic seconds.

    Raises:
        OSError: no process can be had.
    """

    def __init__(self, run_directory: str, *, pid: int | None, uid: int | None, now: float) -> None:
        about = [run_directory, *("" if number is None else str(number) for number in (uid, pid))]
        self._until = now + _ANSWERS_WITHIN_SECONDS
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stepscope.workflow.live_hang", *about],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def is_over(self, now: float) -> bool:
        """Whether there is an answer, or will be none."""
        if self._process.poll() is None and now > self._until:
            self._process.kill()
        return self._process.poll() is not None

    def answer(self) -> LiveHang | None:
        """The answer; None where there is none. Only once it is over."""
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            content = stream.read(_LONGEST)
        with suppress(ValueError, RecursionError, AttributeError, FieldError):
            return LiveHang(**read_fields(LiveHang, json.loads(content), lambda name: _READERS[name]))
        return None

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is left behind
            self._process.wait(_GONE_WITHIN_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _numbers(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError("must be a list")
    return [any_rank(one) for one in value]


_READERS: dict[str, Any] = {
    "state": member(LiveHangState),
    "kind": member(HangKind),
    "ranks": _numbers,
    "silent_ranks": _numbers,
    "confidence": number,
    "age_seconds": number,
    "step": any_whole,
    "summary": lambda value: printable(text(value)),
    "schema": text,
    "reasons": lambda _: [],
    "evidence": lambda _: [],
}
"""Reasons and evidence are for who asks by hand."""
