"""Training link server: every training process is heard, whatever the others do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.agent.training_link import connection
from stepscope.agent.training_link import server as server_module
from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.training_link.training_source import TrainingSource
from stepscope.core.protocol.captures import CaptureProgress, CaptureRequest, CaptureState, CaptureUpdate
from stepscope.core.protocol.messages import Answer, Bye, Cancel, Heartbeat, Welcome
from tests.agent.training_link.conftest import Process, hello, wait_until

Connect = Callable[[], Process]


def _steps(server: TrainingServer) -> list[int | None]:
    return [rank.heartbeat.index if rank.heartbeat else None for rank in server.ranks()]


def test_it_knows_each_process_as_long_as_it_is_there(server: TrainingServer, connect: Connect) -> None:
    first, second = connect(), connect()
    for rank, process in enumerate((first, second)):
        process.say(hello(rank, mesh={"dp": 2}, gpu_uuid="GPU-1"))
        assert process.hear() == Welcome()
    first.say(Heartbeat(5.0, "active", 7, 100.0, 10.0, {"forward": 40.0}, {"loss": 2.5}))
    wait_until(lambda: _steps(server) == [7, None])
    known = server.ranks()[0]
    assert (known.pid, known.uid, known.hello.mesh) == (os.getpid(), os.getuid(), {"dp": 2})
    assert known.heartbeat is not None
    assert known.heartbeat.ms == 100.0
    assert known.step_age_ms is not None
    assert known.step_age_ms >= 5.0
    values = {(r.metric, dict(r.labels).get("rank")): r.value for r in TrainingSource(server).collect().readings}
    assert values["stepscope_training_step_seconds", "0"] == pytest.approx(0.1)
    assert values["stepscope_training_capturing", "0"] == 1.0
    assert ("stepscope_training_step", "1") not in values  # unknown is not 0
    assert values["stepscope_agent_training_connections", None] == 2.0
    first.say(Bye())
    second.socket.close()
    wait_until(lambda: not server.ranks())
    assert {reading.metric for reading in TrainingSource(server).collect().readings} == {
        "stepscope_agent_training_connections"
    }
    assert server.refused() == {}


def test_what_is_said_to_a_process_and_what_it_answers(server: TrainingServer, connect: Connect) -> None:
    first, second = connect(), connect()
    for rank, process in enumerate((first, second)):
        process.say(hello(rank))
        process.hear()
    keys = [rank.key for rank in server.ranks()]
    request = CaptureRequest("c", 3, ranks=(1,))
    server.send(request, [keys[1], "nobody"])
    server.send(Cancel("c"), [keys[1]])
    assert [second.hear(), second.hear()] == [request, Cancel("c")]
    cancelled = CaptureProgress(CaptureState.CANCELLED)
    second.say(Answer("c", cancelled))
    taken: list[CaptureUpdate] = []

    def has_come() -> bool:
        taken.extend(server.take_updates())
        return bool(taken)

    wait_until(has_come)
    assert taken == [CaptureUpdate("c", keys[1], cancelled)]


def test_a_process_that_connects_again_is_the_same_and_another_is_not(server: TrainingServer, connect: Connect) -> None:
    first = connect()
    first.say(hello())
    first.hear()
    (before,) = server.ranks()
    again = connect()
    again.say(hello())
    again.hear()
    assert [rank.key for rank in server.ranks()] == [before.key]
    restarted = connect()
    restarted.say(hello(start_ns=2))
    restarted.hear()
    assert len({rank.key for rank in server.ranks()}) == 2


def test_nonsense_idleness_and_floods_cost_the_others_nothing(
    server: TrainingServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_HELLO_SECONDS", 1.0)
    garbage, endless, idle, turncoat, flood, other = (connect() for _ in range(6))
    garbage.say(b"{}\n" * 3)
    endless.say(b"x" * (70 << 10))
    turncoat.say(hello(3))
    turncoat.say(hello(4))
    other.say(hello(5, version=2))
    flood.say(hello(1))
    flood.hear()
    flood.socket.setblocking(False)
    line = b'{"type":"step","age_ms":1,"index":1}\n' * 1000
    num_sent = 0
    for _ in range(200):  # until the agent reads no more
        try:
            num_sent += flood.socket.send(line)
        except BlockingIOError:
            break
    for process in (garbage, endless, idle, turncoat, other):
        assert process.is_left()
    well = connect()
    well.say(hello(0))
    assert well.hear() == Welcome()
    begin = time.monotonic()
    well.say(Heartbeat(1.0, index=9))
    wait_until(lambda: 9 in _steps(server))
    assert time.monotonic() - begin < 5.0
    assert num_sent < 1 << 20  # what a kernel keeps for it, and its burst
    wait_until(lambda: sum(server.refused().values()) == 5)
    assert server.refused() == {"garbage": 2, "no_hello": 2, "other_version": 1}


def test_one_that_does_not_read_is_left(server: TrainingServer, connect: Connect) -> None:
    deaf, well = connect(), connect()
    for rank, process in enumerate((deaf, well)):
        process.say(hello(rank))
    well.hear()
    wait_until(lambda: len(server.ranks()) == 2)
    keys = {rank.rank: rank.key for rank in server.ranks()}
    request = CaptureRequest("c", 1, ranks=tuple(range(9000)))
    for _ in range(20):
        server.send(request, [keys[0]])
    wait_until(lambda: server.refused() == {"deaf": 1})
    server.send(Cancel("c"), [keys[1]])
    assert well.hear() == Cancel("c")


def test_too_many_are_turned_away_and_files_are_given_back(server: TrainingServer, connect: Connect) -> None:
    server._connections_of_user = 3
    processes = []
    for rank in range(3):
        processes.append(connect())
        processes[-1].say(hello(rank))
        processes[-1].hear()
    num_files = len(os.listdir("/proc/self/fd"))
    assert connect().is_left()
    wait_until(lambda: server.refused() == {"too_many": 1})
    assert len(os.listdir("/proc/self/fd")) == num_files + 1  # this end alone
    for process in processes:
        process.socket.close()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == num_files + 1 - 6)


def test_without_the_right_to_listen_it_goes_on_unless_it_must(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no" / "where" / "agent.sock")
    with TrainingServer(nowhere, is_required=False) as closed:
        collection = TrainingSource(closed).collect()
        assert "no socket for training" in collection.missing[0].detail
        closed.send(Cancel("c"), ["x"])
        assert closed.ranks() == ()
    with pytest.raises(Exception, match=r"no socket for training at .*--socket"), TrainingServer(nowhere):
        pass


def test_who_connects_again_and_again_waits_and_the_others_are_heard(
    place: Path, server: TrainingServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = connect()
    well.say(hello(0))
    well.hear()
    monkeypatch.setattr(server_module, "_ACCEPTS_PER_SECOND", 1000.0)
    server._accepts.use(500)
    for _ in range(50):
        Process(place).socket.close()
    well.say(Heartbeat(1.0, index=3))
    wait_until(lambda: _steps(server) == [3])
    later = connect()
    later.say(hello(1))
    assert later.hear() == Welcome()
    wait_until(lambda: len(server.ranks()) == 2)
