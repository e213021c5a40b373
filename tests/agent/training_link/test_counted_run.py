"""A job under `profile()` beside an agent on the fake driver: its run has counters, its verdict the injected fault."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepscope
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.sources import AgentSources
from stepscope.agent.training_link.counter_feed import CounterFeed
from stepscope.agent.training_link.server import TrainingServer
from stepscope.core.documents.analysis import Analysis
from stepscope.core.protocol.messages import SOCKET_VARIABLE
from stepscope.core.text.verdict import verdict_text
from stepscope.core.vocabulary import Cause, Reason
from stepscope.store.counter_records import read_counters
from stepscope.training import profiling_session
from stepscope.training.run import counter_log
from stepscope.workflow.analyze import analyze
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml

pytest.importorskip("torch")

_QUICK = ProbeTiming(interval=0.1, slow_poll=0.2, deadline=1.0, start_deadline=20, look=2.0, slow=0.3, grace=2)
_STEP_SECONDS, _SLOW_SECONDS = 0.03, 0.12
_HEAT = {"clock__1": 800, "throttle_mask": 0x40}
_COOL = {"clock__1": 1980, "throttle_mask": 0x0}


@pytest.fixture
def agent(
    machine: FakeNvml, server: TrainingServer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeNvml]:
    """An agent that reads one GPU, on which this process is; it sends counters once a second."""
    monkeypatch.setenv(SOCKET_VARIABLE, str(place))
    monkeypatch.setattr(counter_log, "_LEAST_SECONDS", 0.1)
    monkeypatch.setattr(profiling_session, "make_run_delay", list)  # of the machine that runs the tests
    machine.add(profiles.h100(0))
    machine.set(0, compute__count=1, compute__0__pid=os.getpid(), compute__0__memory=1 << 30, **_COOL)
    machine.write()
    with (
        AgentSources(_QUICK, environment=machine.environment()) as sources,
        CounterFeed(server, sources.states, interval=0.1, seconds=0.3),
    ):
        yield machine


def _trained(folder: Path, fault: Callable[[bool], None], *, is_slow: bool = True) -> Analysis:
    """A run that is disturbed twice for a while: the analysis of its records."""
    run = folder / "r"
    with stepscope.profile("r", folder, stepscope.once(wait=10_000)) as prof:
        until = time.monotonic() + 60
        while not any(one.gpus for rank in read_counters(run)[0] for one in rank.messages):
            assert time.monotonic() < until
            time.sleep(_STEP_SECONDS)
            prof.step()
        for _ in range(2):
            for is_on in (False, True, False):
                fault(is_on)
                until = time.monotonic() + (1.5 if is_on else 0.8)
                while time.monotonic() < until:
                    time.sleep(_SLOW_SECONDS if is_on and is_slow else _STEP_SECONDS)
                    prof.step()
        time.sleep(0.8)
    return analyze([str(run)]).analysis


def test_a_throttled_gpu(tmp_path: Path, agent: FakeNvml) -> None:
    def heat(is_on: bool) -> None:
        agent.set(0, **(_HEAT if is_on else _COOL))
        agent.write()

    analysis = _trained(tmp_path, heat)
    assert (analysis.verdict.cause, analysis.verdict.reasons) == (Cause.THROTTLED, [Reason.HEAT])
    text = verdict_text(analysis)
    assert "the SM clock is" in text.evidence
    assert "heat throttles the GPU" in text.evidence
    assert not text.counters


@contextmanager
def _other() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


def test_another_process_on_the_gpu(tmp_path: Path, agent: FakeNvml) -> None:
    with _other() as pid:

        def share(is_on: bool) -> None:
            agent.set(0, compute__count=1 + is_on, compute__1__pid=pid, compute__1__memory=3 << 30)
            agent.write()

        analysis = _trained(tmp_path, share)
    assert (analysis.verdict.cause, analysis.verdict.reasons) == (Cause.CONTENTION, [Reason.GPU_SHARED])
    named = f"process {pid} of user {os.getuid()} has 3 GiB of its memory"
    assert named in verdict_text(analysis).evidence


def test_a_process_and_heat_that_slow_no_step_are_no_reason(tmp_path: Path, agent: FakeNvml) -> None:
    def both(is_on: bool) -> None:
        agent.set(0, compute__count=1 + is_on, compute__1__pid=1, compute__1__memory=3 << 30)
        agent.set(0, **(_HEAT if is_on else _COOL))
        agent.write()

    verdict = _trained(tmp_path, both, is_slow=False).verdict
    assert not {Reason.GPU_SHARED, Reason.HEAT, Reason.LOW_CLOCK} & set(verdict.reasons)
    assert verdict.cause not in {Cause.THROTTLED, Cause.CONTENTION}
