"""Agent link: survives an agent that comes, goes, sends garbage or stalls, and never disturbs training."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.protocol.captures import CaptureRequest
from stepscope.core.protocol.messages import (
    Bye,
    Cancel,
    Heartbeat,
    Hello,
    Message,
    ProtocolError,
    Welcome,
    encode_message,
)
from stepscope.training import agent_link as subject
from stepscope.training.agent_link import AgentConnection, socket_path
from tests.training.processes import fork
from tests.training.stand_in_agent import StandInAgent


class _User:
    """Says who it is, and remembers what it was told."""

    def __init__(self) -> None:
        self.tick_seconds = 0.05
        self.told: list[Message] = []
        self.faults: list[ProtocolError] = []
        self.num_ticks = 0

    def hello(self) -> bytes:
        return encode_message(Hello("r", "/runs/r", 0, 0, 1, os.getpid(), "h", 1))

    def heartbeat(self) -> bytes:
        return encode_message(Heartbeat(age_ms=1.0, figures=dict.fromkeys(map(str, range(64)), 1)))

    def receive(self, message: Message) -> None:
        self.told.append(message)

    def receive_unreadable(self, error: ProtocolError) -> None:
        self.faults.append(error)

    def tick(self) -> None:
        self.num_ticks += 1


@pytest.fixture
def user() -> _User:
    return _User()


@pytest.fixture
def link(socket_file: Path, user: _User, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentConnection]:
    monkeypatch.setattr(subject, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(subject, "_FIRST_RETRY_SECONDS", 0.02)
    link = AgentConnection(str(socket_file), user)
    yield link
    link.close()
    assert not link.is_running


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def _until(is_so: object, seconds: float = 20.0) -> None:
    assert callable(is_so)
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_hello_comes_first_then_steps_and_at_last_bye(socket_file: Path, link: AgentConnection) -> None:
    with StandInAgent(socket_file) as agent:
        link.start()
        link.start()
        agent.wait_until(lambda: len(agent.of(Heartbeat)) >= 3)
        link.close()
        agent.wait_until(lambda: bool(agent.of(Bye)))
    kinds = [type(message) for _, message in agent.heard]
    assert kinds[0] is Hello
    assert kinds[-1] is Bye
    assert kinds.count(Hello) == kinds.count(Bye) == agent.num_connections == 1


def test_what_the_agent_says_is_heard_and_the_answer_goes_out_at_once(
    socket_file: Path, link: AgentConnection, user: _User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "HEARTBEAT_SECONDS", 30.0)
    with StandInAgent(socket_file) as agent:
        link.start()
        agent.wait_until(lambda: bool(agent.of(Hello)))
        agent.say(CaptureRequest("a", 3))
        agent.say(b'{"type":"later"}\n\n' + encode_message(Cancel("a")))
        _until(lambda: len(user.told) == 2, 5.0)
        link.send(encode_message(Welcome(7)))  # any line will do
        agent.wait_until(lambda: bool(agent.of(Welcome)), 5.0)
    assert user.told == [CaptureRequest("a", 3), Cancel("a")]


def test_an_agent_that_goes_and_comes_again_is_told_who_speaks_and_gets_the_answers_of_meanwhile(
    socket_file: Path, link: AgentConnection
) -> None:
    with StandInAgent(socket_file) as agent:
        link.start()
        agent.wait_until(lambda: bool(agent.of(Heartbeat)))
    link.send(encode_message(Welcome(8)))
    time.sleep(0.2)
    with StandInAgent(socket_file) as agent:
        agent.wait_until(lambda: bool(agent.of(Welcome)) and bool(agent.of(Heartbeat)))
    assert isinstance(agent.heard[0][1], Hello)


def test_without_a_socket_the_thread_still_ticks(link: AgentConnection, user: _User) -> None:
    assert not link.has_agent
    link.start()
    _until(lambda: user.num_ticks >= 3)
    assert link.is_running
    assert (user.told, user.faults) == ([], [])


def test_wake_makes_it_tick_at_once(link: AgentConnection, user: _User, monkeypatch: pytest.MonkeyPatch) -> None:
    link.wake()  # nobody is there yet
    assert not link.is_running
    monkeypatch.setattr(user, "tick_seconds", 30.0)
    link.start()
    _until(lambda: user.num_ticks == 1)
    link.wake()
    _until(lambda: user.num_ticks == 2, 5.0)
    time.sleep(0.2)
    assert user.num_ticks == 2  # once for each call


@pytest.mark.parametrize("garbage", [b"x" * 70_000, b"no\njson\nat all\n\xff\n", b"[" * 9000 + b"\n" + b"[]\n" * 9])
def test_garbage_ends_the_connection_with_one_warning(
    socket_file: Path, link: AgentConnection, user: _User, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    with StandInAgent(socket_file, on_hello=garbage) as agent:
        link.start()
        agent.wait_until(lambda: agent.num_connections >= 3)
    (warning,) = _warnings(caplog)
    assert "goes on without the agent" in warning
    assert "its messages cannot be read" in warning
    assert user.told == []


def test_a_request_that_cannot_be_read_is_handed_on_with_its_id(
    socket_file: Path, link: AgentConnection, user: _User, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = b'{"type":"capture","id":"a","steps":0}\n'
    with StandInAgent(socket_file, on_hello=wrong * 5 + encode_message(Cancel("a"))) as agent:
        link.start()
        agent.wait_until(lambda: bool(user.told))
    assert [fault.capture_id for fault in user.faults] == ["a"] * 5
    assert _warnings(caplog) == []


def test_an_agent_of_another_version_is_left_alone_with_one_warning(
    socket_file: Path, link: AgentConnection, user: _User, caplog: pytest.LogCaptureFixture
) -> None:
    with StandInAgent(
        socket_file, on_hello=encode_message(Welcome(2)) + encode_message(CaptureRequest("a", 3))
    ) as agent:
        link.start()
        _until(lambda: bool(_warnings(caplog)))
        time.sleep(0.3)
    assert agent.num_connections == 1
    assert user.told == []
    (warning,) = _warnings(caplog)
    assert warning.endswith(f"the agent at {socket_file}: it speaks version 2, this stepscope version 1; update one")


def test_an_agent_that_never_reads_is_left_in_the_end_and_answers_are_kept_within_bounds(
    socket_file: Path, link: AgentConnection, user: _User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_NOT_READING_SECONDS", 0.3)
    with StandInAgent(socket_file, reads=False) as agent:
        link.start()
        agent.wait_until(lambda: agent.num_connections == 1)
        seconds = []
        for _ in range(3000):
            started = time.perf_counter()
            link.send(b"x" * 1000 + b"\n")
            seconds.append(time.perf_counter() - started)
        agent.wait_until(lambda: agent.num_connections >= 2)
        assert len(link._queue) <= 64
        ticks = user.num_ticks
        _until(lambda: user.num_ticks > ticks + 2)
    assert sorted(seconds)[-10] < 0.1  # the socket is full for a third of a second each time


def test_a_flood_is_read_slowly_so_that_training_keeps_pythons_lock(
    socket_file: Path, link: AgentConnection, user: _User
) -> None:
    with StandInAgent(socket_file) as agent:
        link.start()
        agent.wait_until(lambda: bool(agent.of(Hello)))
        line, started = encode_message(CaptureRequest("a", 3)), time.monotonic()
        stop = threading.Event()

        def flood() -> None:
            while not stop.is_set():
                try:
                    agent.say(line * 1000)
                except OSError:
                    return

        flooding = threading.Thread(target=flood)
        flooding.start()
        time.sleep(1.0)
        num_bytes, seconds = len(user.told) * len(line), time.monotonic() - started
        link.close()
        stop.set()
        flooding.join()
    assert 0 < num_bytes <= (seconds / 0.05 + 2) * 4096


def test_a_user_that_fails_does_not_end_the_thread(
    link: AgentConnection, user: _User, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise KeyError("mine")

    monkeypatch.setattr(user, "tick", fail)
    link.start()
    _until(lambda: len(calls) >= 4)
    assert link.is_running


def test_a_forked_child_lets_go_of_the_connection_and_the_parent_keeps_it(
    socket_file: Path, link: AgentConnection
) -> None:
    with StandInAgent(socket_file) as agent:
        link.start()
        agent.wait_until(lambda: bool(agent.of(Heartbeat)))
        assert link._socket is not None
        descriptor = link._socket.fileno()

        def child(_: object) -> None:
            assert not Path(f"/proc/self/fd/{descriptor}").exists()
            link.send(b"from the child\n")
            link.close()
            assert not link.is_running

        assert fork(child).end() == 0
        before = len(agent.of(Heartbeat))
        agent.wait_until(lambda: len(agent.of(Heartbeat)) > before)
        assert agent.num_connections == 1


def test_where_the_socket_is_looked_for(monkeypatch: pytest.MonkeyPatch, socket_file: Path, user: _User) -> None:
    assert socket_path() is None
    monkeypatch.delenv("STEPSCOPE_AGENT_SOCKET")
    assert socket_path() == "/run/stepscope/agent.sock"
    monkeypatch.setenv("STEPSCOPE_AGENT_SOCKET", "@abstract")
    assert socket_path() == "@abstract"
    assert not AgentConnection(None, user).has_agent
    assert not AgentConnection(str(socket_file), user).has_agent
    assert AgentConnection("@abstract", user).has_agent


@pytest.mark.parametrize("path", ["/" + "x" * 300, "@" + "x" * 300, "/dev/null", "/"])
def test_a_path_that_no_socket_can_have_is_an_agent_that_is_away(path: str, user: _User) -> None:
    link = AgentConnection(path, user)
    link.start()
    _until(lambda: user.num_ticks >= 1)
    assert link.is_running
    link.close()
    assert not link.is_running
