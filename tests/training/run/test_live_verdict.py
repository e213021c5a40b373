"""Live verdict in the training process: who starts the process, what is passed on, and that it ends with training."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope
from stepscope.core.documents.run_directory import LIVE_VERDICT_FILE
from stepscope.core.protocol.messages import SOCKET_VARIABLE, decode_message
from stepscope.core.protocol.verdicts import LiveVerdict, live_verdict_document
from stepscope.training.hangs.stall import helper_processes
from stepscope.training.run import live_verdict, side_process
from stepscope.training.run.live_verdict import LiveVerdictProcess, LiveVerdictRelay, parse_live_verdict
from tests.training.processes import fork
from tests.training.stand_in_agent import StandInAgent


def _wait_until(is_so: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _verdict(time_ns: int, run: str = "r") -> LiveVerdict:
    return LiveVerdict(run, time_ns, "data_loading", 0.9, "slow", bottleneck=True, share=0.5)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("off", math.inf), ("on", 60.0), (5, 5.0), ("2.5", 2.5), (600, 600.0), (True, 60.0), (False, math.inf)],
)
def test_the_setting(value: float | str, seconds: float) -> None:
    assert parse_live_verdict(value) == seconds


@pytest.mark.parametrize("value", ["", "yes", 0, -3, 601, math.nan, "inf"])
def test_another_setting_is_refused(value: float | str) -> None:
    with pytest.raises(ValueError, match='"on", "off" or 1 to 600 seconds'):
        parse_live_verdict(value)


def test_a_wrong_setting_costs_one_line_and_no_measurement(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stepscope.profile("r", tmp_path, live_verdict="sometimes") as prof:
        prof.step()
        assert prof.is_measuring
    assert "stepscope measures without a live verdict" in caplog.text


class _Relay:
    def __init__(self, folder: Path) -> None:
        self.run = folder / "r"
        self.run.mkdir()
        self.lines: list[bytes] = []
        self.relay = LiveVerdictRelay(self.run, self.lines.append, look_seconds=0.0)

    def after(self, content: bytes) -> list[bytes]:
        (self.run / LIVE_VERDICT_FILE).write_bytes(content)
        self.relay.run_task()
        sent, self.lines[:] = self.lines[:], []
        return sent


def test_each_new_verdict_is_passed_on_once(tmp_path: Path) -> None:
    relay, soon = _Relay(tmp_path), time.time_ns() + 10**9
    relay.relay.run_task()
    assert relay.lines == []
    content = json.dumps(live_verdict_document(_verdict(soon))).encode()
    (line,) = relay.after(content)
    assert decode_message(line) == _verdict(soon)
    assert relay.after(content) == []
    assert len(relay.after(json.dumps(live_verdict_document(_verdict(soon + 1))).encode())) == 1


def test_what_is_old_foreign_or_no_verdict_is_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relay, soon = _Relay(tmp_path), time.time_ns() + 10**9
    good = json.dumps(live_verdict_document(_verdict(soon))).encode()
    old = json.dumps(live_verdict_document(_verdict(soon - 2 * 10**9))).encode()
    of_another_run = json.dumps(live_verdict_document(_verdict(soon, "other"))).encode()
    for content in (b"", b"[" * 10_000, good[:50], old, of_another_run, b" " * (1 << 20) + good):
        assert relay.after(content) == []
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 12345)
        assert relay.after(good) == []
    target = tmp_path / "elsewhere"
    target.write_bytes(good)
    (relay.run / LIVE_VERDICT_FILE).unlink()
    (relay.run / LIVE_VERDICT_FILE).symlink_to(target)
    relay.relay.run_task()
    assert relay.lines == []
    (relay.run / LIVE_VERDICT_FILE).unlink()
    assert len(relay.after(good)) == 1


def test_a_process_that_ends_is_started_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = (sys.executable, "-c", "raise SystemExit(3)")
    monkeypatch.setattr(side_process, "module_command", lambda *_: failing)
    monkeypatch.setattr(live_verdict, "_FIRST_AGAIN_SECONDS", 0.2)
    started: list[float] = []
    real = subprocess.Popen

    def popen(*arguments: object, **options: object) -> object:
        started.append(time.monotonic())
        return real(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", popen)
    process = LiveVerdictProcess(tmp_path, 0.0)
    while len(started) < 4:
        process.run_task()
        time.sleep(0.01)
    process.close()
    first, second, third = (later - earlier for earlier, later in itertools.pairwise(started))
    assert (first >= 0.2, second >= 0.4, third >= 0.8) == (True, True, True)
    assert helper_processes.running == set()


def _children() -> list[int]:
    """Processes that work out live verdicts of runs of this test."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"stepscope.workflow.live_verdict" in command and str(Path.cwd()).encode() in command:
                found.append(int(entry.name))
    return found


def _train(folder: Path, tell: Callable[[str], None] = lambda _: None, seconds: float = 1e9) -> None:
    until = time.monotonic() + seconds
    with stepscope.profile("r", folder, stepscope.once(wait=10**6), live_verdict=1) as prof:
        while time.monotonic() < until:
            time.sleep(0.005)
            prof.step()
            if (folder / "r" / LIVE_VERDICT_FILE).exists():
                tell("judged ")
                tell = lambda _: None  # noqa: E731


def test_the_process_ends_with_a_training_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    training = fork(lambda tell: _train(tmp_path, tell))
    training.wait_for("judged")
    (child,) = _children()
    assert os.sched_getscheduler(child) == os.SCHED_IDLE
    assert int(Path(f"/proc/{child}/oom_score_adj").read_text()) == 1000
    os.kill(training.process_id, signal.SIGKILL)
    training.end()
    _wait_until(lambda: not _children())


def test_the_agent_gets_the_verdict_and_the_process_ends_in_order(
    tmp_path: Path, socket_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SOCKET_VARIABLE, str(socket_file))
    monkeypatch.setenv(live_verdict.LIVE_VERDICT_VARIABLE, "1")
    monkeypatch.setattr(live_verdict, "_LOOK_SECONDS", 0.0)
    with (
        StandInAgent(socket_file) as agent,
        stepscope.profile("r", tmp_path, stepscope.once(wait=10**6)) as prof,
    ):
        deadline = time.monotonic() + 240
        while not agent.of(LiveVerdict):
            assert time.monotonic() < deadline
            time.sleep(0.005)
            prof.step()
        assert agent.of(LiveVerdict)[0].run == "r"
    assert _children() == []


def test_off_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with stepscope.profile("r", tmp_path) as prof:
        prof.step()
        assert prof._live_verdict is None
