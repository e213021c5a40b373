"""Counters of the agent in the run directory: whole lines, at no cost to training, whatever the agent does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope
from stepscope.core.documents.run_counters import counters_line
from stepscope.core.documents.run_directory import RankFile
from stepscope.core.protocol.counters import COUNTERS, Counters, GpuCounters, HostCounters
from stepscope.core.protocol.messages import SOCKET_VARIABLE, Hello
from stepscope.store.counter_records import read_counters
from stepscope.training.run.counter_log import CounterLog
from tests.training.processes import fork
from tests.training.stand_in_agent import StandInAgent

pytest.importorskip("torch")

_MESSAGE = Counters(
    7 * 10**9,
    10.0,
    (GpuCounters("GPU-0", (5, 6), {"power_watts": (90.5, None)}, {"software_power_cap": (1.0, 0.0)}, 3.5, 1, 2e9),),
    HostCounters((4,), {"pressure_io_some_seconds_total": (1.5,)}),
    missing={"x": "not_supported"},
)


def test_profile_keeps_the_messages_of_the_agent(
    tmp_path: Path, socket_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(socket_file))
    with StandInAgent(socket_file) as agent, stepscope.profile("r", tmp_path, stepscope.once(wait=50)) as prof:
        agent.wait_until(lambda: bool(agent.of(Hello)))
        assert agent.of(Hello)[0].wants == (COUNTERS,)
        agent.say(b'{"type":"counters","time_ns":"damaged"}\n')
        for _ in range(50):  # of a flood one is kept
            agent.say(_MESSAGE)
        path = tmp_path / "r" / RankFile.COUNTERS.path(0)
        agent.wait_until(path.exists)
        prof.step()
    (rank,), notices = read_counters(tmp_path / "r")
    assert (rank.rank, rank.messages, notices) == (0, [_MESSAGE], [])


def test_a_run_without_an_agent_has_no_file(tmp_path: Path) -> None:
    with stepscope.profile("r", tmp_path) as prof:
        prof.step()
    assert not (tmp_path / "r" / "metrics").exists()
    assert read_counters(tmp_path / "r") == ([], [])


def test_lines_are_whole_after_a_kill_and_the_next_attempt_goes_on(tmp_path: Path) -> None:
    path = tmp_path / RankFile.COUNTERS.path(3)

    def train(tell: Callable[[str], None]) -> None:
        log = CounterLog(path)
        log.take(_MESSAGE)
        log.run_task()
        tell("written")
        time.sleep(60)

    training = fork(train)
    training.wait_for("written")
    os.kill(training.process_id, signal.SIGKILL)
    assert training.end() == -signal.SIGKILL
    with path.open("ab") as file:
        file.write(counters_line(_MESSAGE)[:40])
    (rank,), notices = read_counters(tmp_path)
    assert (len(rank.messages), notices) == (1, [])
    log = CounterLog(path)
    log.take(_MESSAGE)
    log.close()
    assert [len(rank.messages) for rank in read_counters(tmp_path)[0]] == [2]


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics").write_text("in the way")
    log = CounterLog(tmp_path / RankFile.COUNTERS.path(0))
    for _ in range(3):
        log.take(_MESSAGE)
        log._taken_at = None
        log.run_task()
    log.close()
    assert caplog.text.count("no longer kept") == 1


def test_messages_of_a_disk_that_does_not_answer_are_bounded(tmp_path: Path) -> None:
    log = CounterLog(tmp_path / RankFile.COUNTERS.path(0))
    for number in range(100):
        log.take(Counters(number))
        log._taken_at = None
    log.close()
    (rank,), _ = read_counters(tmp_path)
    assert [message.time_ns for message in rank.messages] == list(range(92, 100))
