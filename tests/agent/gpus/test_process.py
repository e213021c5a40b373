"""Reader process: answers, and exits when its input ends, on request, and when it hangs."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stepscope.agent.gpus.process import ProbeProcess
from stepscope.collectors.nvml.binding import DriverUnusableError
from stepscope.collectors.nvml.collector import NvmlCollector
from stepscope.collectors.nvml.worker import serve_requests
from stepscope.core.metrics.readings import MissingReason
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml

PATIENCE_SECONDS = 30.0


def answers(probe: ProbeProcess, last: str = "end") -> list[dict[str, Any]]:
    """Everything up to the answer with this key, or to the end of the process."""
    told: list[dict[str, Any]] = []
    with selectors.DefaultSelector() as selector:
        selector.register(probe, selectors.EVENT_READ)
        while not any(last in answer for answer in told):
            assert selector.select(PATIENCE_SECONDS), told
            new, has_ended = probe.receive()
            told += new
            if has_ended:
                break
    return told


def ends(probe: ProbeProcess, within_seconds: float = PATIENCE_SECONDS) -> bool:
    end = time.monotonic() + within_seconds
    while not probe.is_gone() and time.monotonic() < end:
        time.sleep(0.01)
    return probe.is_gone()


@pytest.fixture
def probe(machine: FakeNvml) -> Iterator[ProbeProcess]:
    machine.add(profiles.h100(0))
    machine.write()
    made = ProbeProcess(10.0, 1.0, machine.environment())
    yield made
    made.kill()
    assert ends(made)


def test_it_looks_and_sweeps(probe: ProbeProcess) -> None:
    assert probe.send({"do": "look", "skip": []})
    count, found, _ = answers(probe)
    assert count == {"count": 1}
    assert found["target"]["key"] == "00000000:0F:00.0"
    assert probe.send({"do": "sweep", "keys": ["00000000:0F:00.0"]})
    read, _ = answers(probe)
    assert set(read["parts"]) == {"fast", "slow"}
    assert read["usable"]
    assert probe.send({"do": "look", "skip": [0]})
    assert answers(probe) == [{"count": 1}, {"end": True}]


def test_it_ends_when_its_input_ends(probe: ProbeProcess) -> None:
    probe.send({"do": "look", "skip": []})
    answers(probe)
    probe.finish()
    assert ends(probe)


def test_it_ends_in_the_middle_of_a_sweep_that_nobody_listens_to(probe: ProbeProcess) -> None:
    probe.send({"do": "sweep", "keys": ["00000000:0F:00.0"] * 500})  # far more than a pipe holds
    time.sleep(0.3)
    probe.finish()
    assert ends(probe)


def test_bug_dcgm_exporter_84_sigterm_ends_it_between_two_calls(probe: ProbeProcess, machine: FakeNvml) -> None:
    machine.set(0, slow_ms=300)
    machine.write()
    probe.send({"do": "look", "skip": []})
    answers(probe, "count")
    os.kill(probe.pid, signal.SIGTERM)
    assert ends(probe)
    assert probe.exit_code == 0  # by itself, not by the signal


def test_a_call_that_hangs_is_ended_by_sigterm_after_the_grace(probe: ProbeProcess, machine: FakeNvml) -> None:
    probe.send({"do": "look", "skip": []})
    answers(probe)
    machine.set(0, hang="any")
    machine.write()
    probe.send({"do": "sweep", "keys": ["00000000:0F:00.0"]})
    time.sleep(1.0)
    begin = time.monotonic()
    os.kill(probe.pid, signal.SIGTERM)
    assert not ends(probe, 0.5)
    assert ends(probe)
    assert time.monotonic() - begin >= 0.9


def test_what_the_drivers_library_prints_is_no_answer(machine: FakeNvml) -> None:
    machine.add(profiles.h100(0))
    machine.write()
    probe = ProbeProcess(10.0, 1.0, {**machine.environment(), "FAKE_NVML_CHATTERS": "1"})
    try:
        probe.send({"do": "look", "skip": []})
        assert [next(iter(answer)) for answer in answers(probe)] == ["count", "index", "end"]
    finally:
        probe.kill()
        assert ends(probe)


def test_no_driver_is_told_and_the_process_ends(machine: FakeNvml) -> None:
    machine.values["error"] = "9"
    machine.write()
    probe = ProbeProcess(10.0, 1.0, machine.environment())
    try:
        probe.send({"do": "look", "skip": []})
        (told,) = answers(probe, "unusable")
        assert told["unusable"][0] == "not_installed"
        assert ends(probe)
        assert not probe.send({"do": "look", "skip": []})
    finally:
        probe.kill()


def test_without_a_driver_it_ends_without_a_word_when_nobody_listens_any_more() -> None:
    class NoDriver(NvmlCollector):
        def count(self) -> int:
            raise DriverUnusableError(MissingReason.NOT_INSTALLED, "no driver")

    requests, ask = os.pipe()
    listen, replies = os.pipe()
    os.write(ask, b'{"do": "look", "skip": []}\n')
    os.close(ask)
    os.close(listen)
    try:
        assert serve_requests(NoDriver(), requests, replies) == 0
    finally:
        os.close(replies)
