"""Counters end to end: fake driver, real agent parts, real processes and the client that training has."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.polling import SourceState
from stepscope.agent.sources import AgentSources
from stepscope.agent.training_link.connection import TrainingConnection, TrainingPeer
from stepscope.agent.training_link.counter_feed import CounterFeed
from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.training_link.training_source import TrainingSource
from stepscope.core.metrics.readings import GPU, PROCESS, Collection, Reading, labels_of
from stepscope.core.protocol.captures import CaptureRequest
from stepscope.core.protocol.counters import COUNTERS, Counters
from stepscope.core.protocol.messages import Cancel, Message, ProtocolError, Welcome, encode_message
from stepscope.training.agent_link import AgentConnection
from tests.agent.training_link.conftest import Process, hello, wait_until
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml

_QUICK = ProbeTiming(interval=0.1, slow_poll=0.2, deadline=1.0, start_deadline=20, look=2.0, slow=0.3, grace=2)
Connect = Callable[[], Process]


def _holders(machine: FakeNvml, *pids: int) -> None:
    for gpu, pid in enumerate(pids):
        machine.set(gpu, compute__count=1, compute__0__pid=pid, compute__0__memory=1 << 30)
    machine.write()


def test_each_process_gets_its_own_gpu_whatever_it_says(
    machine: FakeNvml, server: TrainingServer, connect: Connect
) -> None:
    for index in range(2):
        machine.add(profiles.h100(index))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        _holders(machine, os.getpid(), other.pid)
        with (
            AgentSources(_QUICK, environment=machine.environment()) as sources,
            CounterFeed(server, sources.states, interval=0.1, seconds=1.0),
        ):
            process, old = connect(), connect()
            process.say(hello(wants=(COUNTERS,), gpu_uuid="GPU-00000001-0000-4000-8000-000000000000"))
            old.say(hello(1))
            assert process.hear() == old.hear() == Welcome()
            end = time.monotonic() + 60
            while True:
                message = process.hear()
                assert isinstance(message, Counters)
                if message.gpus and message.host is not None and message.host.times_ns:
                    break
                assert time.monotonic() < end
            (gpu,) = message.gpus
            assert gpu.uuid == "GPU-00000000-0000-4000-8000-000000000000"
            assert 2 <= len(gpu.times_ns) <= 20
            assert set(gpu.values) >= {"sm_clock_hertz", "power_watts", "temperature_celsius", "utilization_ratio"}
            assert (gpu.other_processes, gpu.other_memory_bytes) == (0, 0)
            assert gpu.age_ms is not None
            assert gpu.age_ms < 5000
            assert "cpu_iowait_seconds_total" in message.host.values
            following = process.hear()
            assert isinstance(following, Counters)
            assert following.gpus[0].times_ns[0] > gpu.times_ns[-1]
            server.send(Cancel("c"), [next(rank.key for rank in server.ranks() if rank.rank == 1)])
            assert old.hear() == Cancel("c")  # no counters before it: it has not asked for them
        other.communicate(b"\n")


def test_one_that_does_not_read_gets_no_more_and_keeps_its_connection(server: TrainingServer, connect: Connect) -> None:
    deaf, well = connect(), connect()
    for rank, process in enumerate((deaf, well)):
        process.say(hello(rank, wants=(COUNTERS,)))
    assert well.hear() == Welcome()
    wait_until(lambda: len(server.counter_takers()) == 2)
    keys = {rank.rank: rank.key for rank in server.ranks()}
    line = encode_message(Counters(1, 10.0, missing={f"m{number}": "x" * 200 for number in range(60)}))

    def send_until_left() -> bool:
        for key in keys.values():
            server.send_counters(key, line)
        assert isinstance(well.hear(), Counters)
        return len(server.counter_takers()) == 1

    wait_until(send_until_left)
    assert server.num_left_counters == 1
    readings = {one.metric: one.value for one in TrainingSource(server).collect().readings}
    assert readings["stepscope_agent_training_counters_left_total"] == 1.0
    server.send(CaptureRequest("c", 3), [keys[0]])
    heard: list[Message] = []
    while not heard or isinstance(heard[-1], Counters | Welcome):
        heard.append(deaf.hear())
    assert heard[-1] == CaptureRequest("c", 3)


def test_another_message_that_waits_costs_one_message_of_counters() -> None:
    client = TrainingConnection(TrainingPeer(1, 0), 0.0)
    client.receive(encode_message(hello(wants=(COUNTERS,))), 0.0)
    client.queue(encode_message(Cancel("c")))
    assert client.queue_counters(b"one\n")
    assert b"one" not in client.unsent
    client.unsent = b""
    assert client.queue_counters(b"two\n")
    assert client.unsent == b"two\n"
    assert client.queue_counters(b"three\n")
    assert not client.queue_counters(b"four\n")
    assert not client.takes_counters


def test_a_process_id_that_another_process_has_by_now_gives_nothing(server: TrainingServer, connect: Connect) -> None:
    process = connect()
    process.say(hello(wants=(COUNTERS,)))
    process.hear()
    labels = labels_of(gpu=0, uuid="GPU-0")

    def states() -> list[SourceState]:
        now = time.time_ns()
        held = Reading(GPU + "process_memory_bytes", 1.0, labels_of(gpu=0, uuid="GPU-0", pid=os.getpid()), now)
        return [SourceState("nvml", Collection((Reading(GPU + "power_watts", 9.0, labels, now), held)), now)]

    for ticks, num_gpus in ((None, 1), (1, 0)):
        told = {} if ticks is None else {"start_ticks": lambda _: 1}
        with CounterFeed(server, states, interval=0.05, seconds=0.2, **told):  # type: ignore[arg-type]
            message = process.hear()
            assert isinstance(message, Counters)
            assert len(message.gpus) == num_gpus
        wait_until(lambda: not server._outbox)


class _Training:
    """The user of a training process's connection, as of before there were counters."""

    tick_seconds = 1.0

    def __init__(self, wants: tuple[str, ...]) -> None:
        self.wants = wants
        self.heard: list[object] = []

    def hello(self) -> bytes:
        return encode_message(hello(wants=self.wants))

    def heartbeat(self) -> bytes:
        return b'{"type":"step","age_ms":1.0}\n'

    def receive(self, message: Message) -> None:
        self.heard.append(message)

    def receive_unreadable(self, error: ProtocolError) -> None:
        self.heard.append(error)

    def tick(self) -> None:
        pass


def test_the_client_of_training_takes_counters_and_what_comes_behind_them(place: Path, server: TrainingServer) -> None:
    training = _Training((COUNTERS,))
    connection = AgentConnection(str(place), training)
    connection.start()
    wait_until(lambda: len(server.counter_takers()) == 1)
    (rank,) = server.ranks()
    for _ in range(3):
        server.send_counters(rank.key, encode_message(Counters(1, 10.0, missing={"gpu": "not_yet"})))
    server.send(CaptureRequest("c", 3), [rank.key])
    wait_until(lambda: CaptureRequest("c", 3) in training.heard)
    assert not any(isinstance(one, ProtocolError) for one in training.heard)
    connection.close()


def test_a_process_on_no_gpu_gets_what_is_its_own(server: TrainingServer, connect: Connect) -> None:
    process = connect()
    process.say(hello(wants=(COUNTERS,)))
    process.hear()
    with CounterFeed(server, list, interval=0.05, seconds=0.3):
        message = process.hear()
        assert isinstance(message, Counters)
        assert message.host is not None
        assert message.host.values["process_cpu_seconds_total"][-1]
    known = Reading(PROCESS + "info", 1.0, labels_of(pid=os.getpid(), command="python", cgroup="/"), time.time_ns())
    states = [SourceState("host", Collection((known,)), time.time_ns())]
    with CounterFeed(server, lambda: states, interval=0.05, seconds=0.3):  # another source reads it
        message = process.hear()
        assert isinstance(message, Counters)
        assert message.host is None or "process_cpu_seconds_total" not in message.host.values
