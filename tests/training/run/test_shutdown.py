"""Shutdown: everything is kept when the process is asked to end, and it ends as it would without stepscope."""

from __future__ import annotations

import gc
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import stepscope
from stepscope.training import once
from stepscope.training.run import shutdown
from stepscope.training.run.run_files import WholeLinesFile
from stepscope.training.steps import telemetry
from tests.training.processes import fork

torch = pytest.importorskip("torch")

Tell = Callable[[str], None]


def _sleep(tell: Tell) -> None:
    tell("sleeps")
    time.sleep(60)


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "steps" / "rank0.jsonl").read_text().splitlines()]


def _ended(run: Path) -> str | None:
    ended: str | None = json.loads((run / "run.json").read_text())["attempts"][-1]["ended"]
    return ended


@pytest.mark.usefixtures("no_job")
class TestSignals:
    """SIGTERM and SIGHUP, from outside, to a process that measures."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_a_process_that_trains_keeps_all_its_steps_and_dies_by_the_signal(
        self, tmp_path: Path, number: signal.Signals
    ) -> None:
        def train(tell: Tell) -> None:
            with stepscope.profile("r", tmp_path, once(wait=0, warmup=0, active=10_000)) as prof:
                for step in range(10_000):
                    torch.ones(8, 8) @ torch.ones(8, 8)
                    prof.step()
                    if step == 40:
                        tell("forty")
                    time.sleep(0.001)

        training = fork(train)
        training.wait_for("forty")
        os.kill(training.process_id, number)
        assert training.end() == -number
        assert _ended(tmp_path / "r") == "signal"
        steps = [line["index"] for line in _lines(tmp_path / "r")]
        assert steps == list(range(len(steps)))
        assert len(steps) >= 41
        trace = json.loads(gzip.decompress((tmp_path / "r" / "traces" / "step0" / "rank0.json.gz").read_bytes()))
        assert trace["stepscope_whole_steps"] == steps
        assert not list((tmp_path / "r").rglob("*.part"))

    def test_a_process_that_waits_in_c_dies_within_seconds_and_keeps_its_steps(self, tmp_path: Path) -> None:
        def train(tell: Tell) -> None:
            store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True)
            with stepscope.profile("r", tmp_path) as prof:
                prof.step()
                tell("waits")
                store.get("never set")  # C++, without Python's lock

        training = fork(train)
        training.wait_for("waits")
        time.sleep(0.2)
        begun = time.monotonic()
        os.kill(training.process_id, signal.SIGTERM)
        assert training.end() == -signal.SIGTERM
        assert time.monotonic() - begun < 6
        assert [line["index"] for line in _lines(tmp_path / "r")] == [0]
        assert _ended(tmp_path / "r") == "signal"

    def test_a_disk_that_does_not_answer_holds_up_neither_death_nor_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(telemetry, "_CLOSES_WITHIN_SECONDS", 1.0)
        monkeypatch.setattr(WholeLinesFile, "write", lambda *_: time.sleep(60))

        def train(tell: Tell) -> None:
            with stepscope.profile("r", tmp_path) as prof:
                prof.step()
                time.sleep(1.5)  # the background_loop waits for the disk
                tell("waits")
                if is_told:
                    time.sleep(60)

        for is_told in (True, False):
            training = fork(train)
            training.wait_for("waits")
            begun = time.monotonic()
            if is_told:
                os.kill(training.process_id, signal.SIGTERM)
            assert training.end() == (-signal.SIGTERM if is_told else 0)
            assert time.monotonic() - begun < 12

    def test_a_second_signal_changes_nothing(self, tmp_path: Path) -> None:
        def train(tell: Tell) -> None:
            with stepscope.profile("r", tmp_path, once(wait=0, warmup=0, active=10_000)) as prof:
                for _ in range(10_000):
                    prof.step()
                    tell("steps")
                    time.sleep(0.01)

        training = fork(train)
        training.wait_for("steps")
        for _ in range(5):
            os.kill(training.process_id, signal.SIGTERM)
            time.sleep(0.002)
        assert training.end() == -signal.SIGTERM
        assert _ended(tmp_path / "r") == "signal"
        assert (tmp_path / "r" / "traces" / "step0" / "rank0.json.gz").exists()

    def test_a_signal_inside_a_method_of_ours_waits_until_it_is_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from stepscope.training.captures.runner import CaptureRunner

        def train(tell: Tell) -> None:
            def slowly(*_: object) -> None:
                tell("inside")
                time.sleep(0.5)

            with stepscope.profile("r", tmp_path) as prof:
                monkeypatch.setattr(CaptureRunner, "move_to", slowly)
                prof.step()
                time.sleep(30)

        training = fork(train)
        training.wait_for("inside")
        os.kill(training.process_id, signal.SIGTERM)
        assert training.end() == -signal.SIGTERM
        assert [line["index"] for line in _lines(tmp_path / "r")] == [0]

    @pytest.mark.parametrize("is_before", [True, False])
    def test_a_handler_of_the_users_decides_and_training_may_go_on(self, tmp_path: Path, is_before: bool) -> None:
        def train(tell: Tell) -> None:
            came: list[int] = []
            ours: Any = None

            def theirs(number: int, frame: FrameType | None) -> None:
                came.append(number)
                if callable(ours):  # as frameworks do that keep the handler they found
                    ours(number, frame)

            if is_before:
                signal.signal(signal.SIGTERM, theirs)
            with stepscope.profile("r", tmp_path) as prof:
                if not is_before:
                    ours = signal.signal(signal.SIGTERM, theirs)
                prof.step()
                tell("trains")
                while not came:
                    time.sleep(0.01)
                prof.step()
            assert came == [signal.SIGTERM]
            assert signal.getsignal(signal.SIGTERM) is theirs

        training = fork(train)
        training.wait_for("trains")
        os.kill(training.process_id, signal.SIGTERM)
        assert training.end() == 0
        assert [line["index"] for line in _lines(tmp_path / "r")] == [0, 1]
        assert _ended(tmp_path / "r") == "signal"

    @pytest.mark.parametrize("is_left", [True, False])
    def test_a_handler_that_leaves_dying_to_the_one_it_found_ends_the_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_left: bool
    ) -> None:
        monkeypatch.setattr(shutdown, "_PASSED_ON_SECONDS", 0.3)

        def train(tell: Tell) -> None:
            def theirs(number: int, frame: FrameType | None) -> None:
                if callable(found):
                    found(number, frame)
                else:
                    os._exit(70)

            with stepscope.profile("r", tmp_path) as prof:
                found = signal.signal(signal.SIGTERM, theirs)
                while not is_left:
                    prof.step()
                    tell("trains")
                    time.sleep(0.01)
            tell("trains")
            time.sleep(30)

        training = fork(train)
        training.wait_for("trains")
        begun = time.monotonic()
        os.kill(training.process_id, signal.SIGTERM)
        assert training.end() == -signal.SIGTERM
        assert time.monotonic() - begun < 10
        assert _ended(tmp_path / "r") == ("finished" if is_left else "signal")

    def test_a_handler_that_passes_the_signal_on_and_leaves_the_loop_has_all_the_time_it_needs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutdown, "_PASSED_ON_SECONDS", 0.1)

        def train(tell: Tell) -> None:
            came: list[int] = []

            def theirs(number: int, frame: FrameType | None) -> None:
                came.append(number)
                if callable(found):
                    found(number, frame)

            with stepscope.profile("r", tmp_path) as prof:
                found = signal.signal(signal.SIGTERM, theirs)
                while not came:
                    tell("trains")
                    time.sleep(0.01)
                    prof.step()
                with prof.phase("checkpoint"):
                    time.sleep(0.5)
            time.sleep(0.3)

        training = fork(train)
        training.wait_for("trains")
        os.kill(training.process_id, signal.SIGTERM)
        assert training.end() == 0
        assert _ended(tmp_path / "r") == "signal"

    def test_a_handler_of_the_users_that_leaves_keeps_its_exit_status(self, tmp_path: Path) -> None:
        def train(tell: Tell) -> None:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            with stepscope.profile("r", tmp_path, once(wait=0, warmup=0, active=10_000)) as prof:
                prof.step()
                tell("trains")
                while True:
                    torch.ones(8, 8) @ torch.ones(8, 8)

        training = fork(train)
        training.wait_for("trains")
        os.kill(training.process_id, signal.SIGTERM)
        assert training.end() == 143
        assert [line["index"] for line in _lines(tmp_path / "r")] == [0]
        assert _ended(tmp_path / "r") == "signal"
        assert (tmp_path / "r" / "traces" / "step0" / "rank0.json.gz").exists()

    def test_an_ignored_signal_stays_ignored_and_another_listener_keeps_its_descriptor(self, tmp_path: Path) -> None:
        def train(_: Tell) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with stepscope.profile("r", tmp_path):
                assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _read_end, write_end = os.pipe2(os.O_NONBLOCK)
            signal.set_wakeup_fd(write_end)
            with stepscope.profile("r", tmp_path):
                assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            assert signal.set_wakeup_fd(-1) == write_end

        assert fork(train).end() == 0

    def test_afterwards_everything_is_as_it_was(self, tmp_path: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with stepscope.profile("r", tmp_path):
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.set_wakeup_fd(-1) == -1
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_profile_that_was_forgotten_gives_the_signal_back(self, tmp_path: Path) -> None:
        stepscope.profile("r", tmp_path).__enter__().step()
        gc.collect()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert [line["index"] for line in _lines(tmp_path / "r")] == [0]

    def test_off_by_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STEPSCOPE_SIGNALS", "off")
        with stepscope.profile("r", tmp_path):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_a_forked_child_is_killed_by_the_signal_and_its_parent_hears_nothing(self, tmp_path: Path) -> None:
        with stepscope.profile("r", tmp_path) as prof:
            for child in [fork(_sleep) for _ in range(3)]:
                child.wait_for("sleeps")
                os.kill(child.process_id, signal.SIGTERM)
                assert child.end() == -signal.SIGTERM
            prof.step()
        assert _ended(tmp_path / "r") == "finished"


_FIRST_PROCESS = """
import os, signal, sys, stepscope
assert os.getpid() == 1
with stepscope.profile("r", sys.argv[1]) as prof:
    prof.step()
    os.kill(1, signal.SIGTERM)  # a container's first process ignores what it does not handle
    prof.step()
print("went on")
"""


@pytest.mark.usefixtures("no_job")
def test_the_first_process_of_a_container_trains_on_as_it_would_have(tmp_path: Path) -> None:
    container = ["unshare", "-rpf", "--mount-proc", sys.executable, "-c"]
    if shutil.which("unshare") is None or subprocess.run([*container, ""], capture_output=True, check=False).returncode:
        pytest.skip("no process can be the first of a space of its own here")
    done = subprocess.run(
        [*container, _FIRST_PROCESS, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert [line["index"] for line in _lines(tmp_path / "r")] == [0]
    assert _ended(tmp_path / "r") == "signal"


_NEVER_LEFT = """
import sys, stepscope
prof = stepscope.profile("r", sys.argv[1], stepscope.once(wait=0, warmup=0, active=9))
prof.__enter__()
for _ in range(3):
    prof.step()
if sys.argv[2] == "exception":
    raise KeyError("mine")
if sys.argv[2] == "status 3":
    sys.exit(3)
"""


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize(
    ("how", "status", "ended"), [("end", 0, "finished"), ("exception", 1, "exception"), ("status 3", 3, "finished")]
)
def test_a_with_block_that_is_never_left_is_closed_when_python_ends(
    tmp_path: Path, how: str, status: int, ended: str
) -> None:
    command = [sys.executable, "-c", _NEVER_LEFT, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert "stepscope" not in done.stderr.replace("stepscope.", ""), done.stderr
    assert [line["index"] for line in _lines(tmp_path / "r")] == [0, 1, 2]
    assert _ended(tmp_path / "r") == ended
    trace = json.loads(gzip.decompress((tmp_path / "r" / "traces" / "step0" / "rank0.json.gz").read_bytes()))
    assert trace["stepscope_whole_steps"] == [0, 1, 2]


@pytest.mark.usefixtures("no_job")
def test_workers_of_a_forking_loader_write_nothing_and_hold_nothing_up(tmp_path: Path) -> None:
    class Data(torch.utils.data.Dataset[int]):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> int:
            return index

    def train(_: Tell) -> None:
        with stepscope.profile("r", tmp_path, once(wait=2, warmup=1, active=2)) as prof:
            for _epoch in range(2):
                loader = torch.utils.data.DataLoader(Data(), 4, num_workers=2, multiprocessing_context="fork")
                for _batch in prof.data(loader):
                    prof.step()

    assert fork(train).end() == 0
    assert [line["index"] for line in _lines(tmp_path / "r")] == list(range(16))
    assert _ended(tmp_path / "r") == "finished"
    files = sorted(str(path.relative_to(tmp_path / "r")) for path in (tmp_path / "r").rglob("*") if path.is_file())
    assert files == ["ranks/rank0.json", "run.json", "steps/rank0.jsonl", "traces/step3/rank0.json.gz"]
