"""Real processes of other users on the training socket: they cannot speak of a run that is not theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stepscope.agent.captures.capture import CaptureRefusedError, select_capture_targets
from stepscope.agent.captures.coordinator import ProfileCaptureBackend
from stepscope.agent.hangs.hang_detection import HangSource
from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.training_link.training_source import TrainingSource
from stepscope.core.protocol.captures import CaptureSelector
from stepscope.core.protocol.messages import Heartbeat, Welcome, encode_message
from tests.agent.training_link.conftest import Process, hello, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")

_OTHER, _THIRD = 64001, 64002
Connect = Callable[[], Process]

_PROGRAM = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(20)
connection.connect(sys.argv[1])
connection.sendall(sys.stdin.buffer.read().replace(b'"PID"', str(os.getpid()).encode()))
while block := connection.recv(4096):
    sys.stdout.buffer.write(block); sys.stdout.flush()
"""


@contextmanager
def user(place: Path, uid: int, *lines: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """A process of a user that sends these lines, then reads to the end."""
    place.parent.chmod(0o755)
    command = [sys.executable, "-S", "-c", _PROGRAM, str(place), str(uid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(lines))
        process.stdin.close()
        try:
            yield process
        finally:
            process.kill()


def introduced(rank: int = 0, **fields: object) -> bytes:
    """A hello with the process's own pid in its place."""
    line = json.loads(encode_message(hello(rank, **fields)))
    return json.dumps({"pid": "PID"} | line if "pid" in fields else line | {"pid": "PID"}).encode() + b"\n"


def _steps(server: TrainingServer) -> dict[tuple[str, str], float]:
    return {
        (dict(one.labels)["run"], dict(one.labels)["rank"]): one.value
        for one in TrainingSource(server).collect().readings
        if one.metric == "stepscope_training_step"
    }


def test_another_user_overwrites_no_step_and_stops_no_capture(
    place: Path, server: TrainingServer, connect: Connect
) -> None:
    ours = connect()
    ours.say(hello())
    ours.say(Heartbeat(1.0, index=7))
    assert ours.hear() == Welcome()
    wait_until(lambda: _steps(server) == {("r", "0"): 7.0})
    # the same names, and a directory that sorts before ours
    lines = [introduced(run_directory=directory) for directory in ("/runs/a", "/runs/r")]
    beat = encode_message(Heartbeat(1.0, index=999))
    with user(place, _OTHER, lines[0], beat), user(place, _OTHER, lines[1], beat):
        wait_until(lambda: len(server.ranks()) == 3)
        wait_until(lambda: len(_steps(server)) == 2)
        assert _steps(server) == {("r", "0"): 7.0, (f"{_OTHER}:r", "0"): 999.0}
        targets = ProfileCaptureBackend(server).targets()
        for selector in (CaptureSelector("r"), CaptureSelector("/runs/r"), CaptureSelector("r", uid=os.geteuid())):
            (chosen,) = select_capture_targets(targets, selector)
            assert (chosen.uid, chosen.run_directory) == (os.geteuid(), "/runs/r")
        (chosen,) = select_capture_targets(targets, CaptureSelector("/runs/r", uid=_OTHER))
        assert (chosen.uid, chosen.run) == (_OTHER, f"{_OTHER}:r")
        with pytest.raises(CaptureRefusedError, match=f"run {_OTHER}:r is not one run; name its directory"):
            select_capture_targets(targets, CaptureSelector(f"{_OTHER}:r"))
    wait_until(lambda: len(server.ranks()) == 1)


def test_a_hang_of_another_users_run_is_not_one_of_ours(place: Path, server: TrainingServer, connect: Connect) -> None:
    ours = connect()
    ours.say(hello())
    ours.say(Heartbeat(1.0, index=7, ms=10.0))
    ours.hear()
    with user(place, _OTHER, introduced(), encode_message(Heartbeat(1e9, index=7, ms=1.0))):
        wait_until(lambda: len(_steps(server)) == 2)
        watched: list[str] = []
        source = HangSource(server.ranks, ask=lambda run, **_: watched.append(run))  # type: ignore[arg-type]
        source.collect()
        suspected = [key[0] for key, run in source._runs.items() if run.watch.is_suspect]
        assert suspected == [f"{_OTHER}:r"]


def test_a_process_speaks_for_itself_or_for_one_of_its_user(
    place: Path, server: TrainingServer, caplog: pytest.LogCaptureFixture
) -> None:
    with user(place, _OTHER, introduced(pid=os.getpid())) as liar:
        assert liar.stdout is not None
        assert liar.stdout.read() == b""
    wait_until(lambda: server.refused() == {"other_process": 1})
    with user(place, _OTHER, introduced()) as honest, ExitStack() as later:
        wait_until(lambda: len(server.ranks()) == 1)  # it is that user's by now
        later.enter_context(user(place, _OTHER, introduced(1, pid=honest.pid)))
        wait_until(lambda: len(server.ranks()) == 2)
        assert {rank.uid for rank in server.ranks()} == {_OTHER}
        assert honest.pid in {rank.pid for rank in server.ranks()}
        assert len({rank.pid for rank in server.ranks()}) == 2  # the kernel's, whatever the hello has
    assert f"user {_OTHER} is closed (other_process): it gives {os.getpid()} as its process id" in caplog.text


def test_one_user_takes_no_connection_of_another_and_is_named_once(
    place: Path, server: TrainingServer, caplog: pytest.LogCaptureFixture
) -> None:
    server._connections_of_user = 1
    with user(place, _OTHER, introduced()), user(place, _THIRD, introduced()):
        wait_until(lambda: len(server.ranks()) == 2)
        for _ in range(2):
            with user(place, _OTHER, introduced()) as refused:
                assert refused.stdout is not None
                refused.wait(20)
    wait_until(lambda: server.refused() == {"too_many": 2})
    assert caplog.text.count(f"user {_OTHER} is closed (too_many)") == 1


def test_the_series_of_one_user_are_bounded(
    place: Path, server: TrainingServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    ours = connect()
    ours.say(hello())
    ours.say(Heartbeat(1.0, index=7, figures={"loss": 2.0}))
    ours.hear()
    figures = {f"f{number}": 1.0 for number in range(16)}
    beat = encode_message(Heartbeat(1.0, index=1, phases_ms=figures, figures=figures))
    with user(place, _OTHER, introduced(0), beat), user(place, _OTHER, introduced(1), beat):
        wait_until(lambda: len(_steps(server)) == 3)
        source = TrainingSource(server, series_of_user=40)
        for _ in range(2):
            readings = source.collect().readings
        runs = [dict(one.labels).get("run") for one in readings]
        assert (runs.count(f"{_OTHER}:r"), runs.count("r")) == (40, 6)
        left_out = [one for one in readings if one.metric == "stepscope_agent_training_series_left_out"]
        assert [(one.value, one.labels) for one in left_out] == [(34.0, (("uid", str(_OTHER)),))]
    assert caplog.text.count("are left out") == 1
