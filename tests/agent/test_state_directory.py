"""State directory: a second agent is kept out for as long as the first one lives."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stepscope.agent.state_directory import StateLock
from stepscope.core.errors import UsageError

_HOLDS = """
import sys
from pathlib import Path
from stepscope.agent.state_directory import StateLock
with StateLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_agent_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with StateLock(directory):
        with pytest.raises(UsageError) as refused, StateLock(directory, seconds=0.0):
            pass
        with StateLock(tmp_path / "other"):
            pass
    assert str(refused.value) == (
        f"{directory}: another agent (process {os.getpid()} on {socket.gethostname()}) uses this state directory; "
        "stop it, or give this agent another state.directory"
    )
    with StateLock(directory):
        pass


def test_an_agent_that_ends_is_waited_for(tmp_path: Path) -> None:
    first = StateLock(tmp_path)
    first.__enter__()
    began = time.monotonic()
    threading.Timer(0.4, first.__exit__).start()
    with StateLock(tmp_path):
        assert 0.3 < time.monotonic() - began < 5.0


def test_an_agent_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError), StateLock(tmp_path, seconds=0.0):
            pass
        other.kill()
    with StateLock(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_nothing_can_be_locked_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with StateLock(tmp_path):
        pass
    assert f"cannot find out if another agent uses {tmp_path}: {os.strerror(number)}" in caplog.text
