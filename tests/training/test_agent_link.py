"""An agent that starts during training is found, and hears of the newest step for as long as the next one lasts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import stepscope
from stepscope.core.protocol.messages import SOCKET_VARIABLE, Heartbeat, Hello
from tests.training.stand_in_agent import StandInAgent

pytest.importorskip("torch")


def test_an_agent_is_found_though_the_clock_was_set_back(
    tmp_path: Path, socket_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(socket_file))
    with stepscope.profile("r", tmp_path, stepscope.once(wait=50)) as prof:
        prof.step()
        now = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
        with StandInAgent(socket_file) as agent:
            prof.step()
            for _ in range(2):
                time.sleep(0.3)  # steps are taken in some times a second
                prof.step()
            agent.wait_until(lambda: bool(agent.of(Hello)), 5.0)


def test_the_newest_step_is_told_while_the_next_one_lasts(
    tmp_path: Path, socket_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(socket_file))
    with StandInAgent(socket_file) as agent, stepscope.profile("r", tmp_path, stepscope.once(wait=50)) as prof:
        for _ in range(2):
            prof.step()
            time.sleep(0.6)  # the records of steps are made some times a second, at the end of one
        prof.step()
        agent.wait_until(lambda: any(beat.index == 2 for beat in agent.of(Heartbeat)), 5.0)
        heard = len(agent.of(Heartbeat))
        agent.wait_until(lambda: len(agent.of(Heartbeat)) > heard, 5.0)
        assert agent.of(Heartbeat)[-1].index == 2
