"""Watchdog: a stuck step is reported with its operation, and a slow one is ignored."""

from __future__ import annotations

import ctypes
import datetime
import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.training import background_loop
from stepscope.training.hangs.stall import is_thread_compiling
from stepscope.training.steps import listeners
from stepscope.training.steps.telemetry import StepRecord
from tests.training.processes import Training, fork

torch = pytest.importorskip("torch")

_LIMIT = 1.0

Tell = Callable[[str], None]


pytestmark = pytest.mark.usefixtures("no_job")


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_loop, "_EVERY_SECONDS", 0.05)
    monkeypatch.delenv("STEPSCOPE_STUCK_AFTER", raising=False)


def _state(run: Path, rank: int = 0) -> dict[str, Any] | None:
    path = run / "flight" / f"rank{rank}.stuck.json"
    return json.loads(path.read_text()) if path.exists() else None


def _train(out: Path, last_step: Callable[[stepscope.Profile], object], limit: float | None = _LIMIT) -> None:
    with stepscope.profile("r", out, stuck_after=limit) as prof:
        for _ in range(3):
            prof.step()
        last_step(prof)
        prof.step()


def test_a_step_that_waits_for_ever_is_told_once_with_where_it_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def wait_for_nothing(_: stepscope.Profile) -> None:
        threading.Event().wait(2.5 * _LIMIT)

    _train(tmp_path, wait_for_nothing)
    messages = [record.getMessage() for record in caplog.records if "step 3" in record.getMessage()]
    assert len(messages) == 2
    assert "step 3 of rank 0 has not ended for" in messages[0]
    assert "stuck in wait (threading.py" in messages[0]
    assert "step 3 is over after" in messages[1]
    state = _state(tmp_path / "r")
    assert state is not None
    assert (state["schema"], state["rank"], state["step"], state["is_still"]) == ("stepscope.stuck/1", 0, 3, True)
    assert state["began_ns"] + _LIMIT * 1e9 <= state["seen_ns"] < state["ended_ns"]
    main = next(thread for thread in state["threads"] if thread["name"] == "MainThread")
    assert "wait_for_nothing" in {frame["name"] for frame in main["frames"]}
    stacks = (tmp_path / "r" / "flight" / "rank0.stacks.txt").read_text()
    assert "wait_for_nothing" in stacks
    assert "step 3 open for" in stacks


def test_steps_that_wait_for_figures_of_the_gpu_are_on_disk_before_anyone_kills_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepRecord, "is_settled", False)  # a GPU that gets nowhere
    monkeypatch.setattr(listeners, "_LONGEST_WAIT_SECONDS", 0.1)
    steps = tmp_path / "r" / "steps" / "rank0.jsonl"
    on_disk: list[str] = []

    def last_step(_: stepscope.Profile) -> None:
        on_disk.append(steps.read_text())
        time.sleep(2.5 * _LIMIT)
        on_disk.append(steps.read_text())

    _train(tmp_path, last_step)
    before, after = ([json.loads(line)["index"] for line in text.splitlines()] for text in on_disk)
    assert (before, after) == ([], [0, 1, 2])


@pytest.mark.parametrize(
    ("span", "where"), [("data", "the wait for data"), ("checkpoint", "phase checkpoint"), ("none", "sleep_long")]
)
def test_where_it_waits_is_said_by_what_has_a_name(tmp_path: Path, span: str, where: str) -> None:
    def sleep_long() -> int:
        time.sleep(2.0 * _LIMIT)
        return 0

    def last_step(prof: stepscope.Profile) -> None:
        if span == "data":
            next(iter(prof.data(iter(sleep_long, 1))))
        elif span == "checkpoint":
            with prof.phase("checkpoint"):
                sleep_long()
        else:
            sleep_long()

    _train(tmp_path, last_step)
    state = _state(tmp_path / "r")
    assert state is not None
    assert where in state["where"]


def _compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.ones(8, 8) @ torch.ones(8, 8)


def _wait_for_helper(seconds: float) -> None:
    code = f"import time; t = time.time()\nwhile time.time() < t + {seconds}: pass"
    subprocess.run([sys.executable, "-c", code], check=True)


def _write_a_checkpoint(folder: Path, seconds: float) -> None:
    until, block = time.monotonic() + seconds, bytes(1 << 20)
    with (folder / "checkpoint").open("wb", buffering=0) as file:
        for block_of in iter(lambda: block, None):
            file.write(block_of)
            file.seek(0)
            if time.monotonic() > until:
                return
            time.sleep(0.02)


@pytest.mark.parametrize("work", ["compute", "helper", "checkpoint"])
def test_a_step_that_takes_long_but_gets_on_is_not_stuck(
    tmp_path: Path, work: str, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = 2.5 * _LIMIT
    works = {
        "compute": lambda _: _compute(seconds),
        "helper": lambda _: _wait_for_helper(seconds),
        "checkpoint": lambda _: _write_a_checkpoint(tmp_path, seconds),
    }
    _train(tmp_path, works[work])
    assert _state(tmp_path / "r") is None
    assert not [record for record in caplog.records if "stuck in" in record.getMessage()]


@pytest.mark.parametrize("is_there", [False, True])
def test_training_without_trouble_leaves_no_trace_of_the_watch(tmp_path: Path, is_there: bool) -> None:
    if is_there:  # torch is told to dump into it, and makes no folder
        (tmp_path / "r" / "flight").mkdir(parents=True)
    _train(tmp_path, lambda _: time.sleep(0.3))
    assert (tmp_path / "r" / "flight").exists() is is_there
    assert not list((tmp_path / "r").glob("flight/*"))


@pytest.mark.parametrize(
    ("filename", "compiles"),
    [
        ("/env/torch/_dynamo/convert_frame.py", True),
        ("/env/triton/compiler/compiler.py", True),
        ("/env/torch/_dynamo/eval_frame.py", False),  # also there when compiled code runs
        ("/home/me/train.py", False),
    ],
)
def test_compiling_is_told_from_running_what_was_compiled(filename: str, compiles: bool) -> None:
    names: dict[str, Any] = {"look": lambda: is_thread_compiling(threading.get_ident())}
    exec(compile("def work():\n    return look()", filename, "exec"), names)
    assert names["work"]() is compiles


def test_a_thread_that_keeps_pythons_lock_has_its_stacks_written_all_the_same(tmp_path: Path) -> None:
    def keep_the_lock(_: stepscope.Profile) -> None:
        time.sleep(0.3)  # until the watch has begun
        ctypes.PyDLL(None).usleep(int(2.5 * _LIMIT * 1e6))

    def train(_: Tell) -> None:
        _train(tmp_path, keep_the_lock)

    assert fork(train).end() == 0
    stacks = (tmp_path / "r" / "flight" / "rank0.stacks.txt").read_text()
    assert "keep_the_lock" in stacks


def test_off_looks_at_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_STUCK_AFTER", "off")
    _train(tmp_path, lambda _: time.sleep(2 * _LIMIT), limit=None)
    assert not (tmp_path / "r" / "flight").exists()


def test_the_calls_limit_comes_before_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_STUCK_AFTER", "off")
    _train(tmp_path, lambda _: time.sleep(3 * _LIMIT))
    assert (tmp_path / "r" / "flight").exists()


def test_a_directory_that_goes_away_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def last_step(_: stepscope.Profile) -> None:
        time.sleep(0.2)
        shutil.rmtree(tmp_path / "r")
        (tmp_path / "r").write_text("a file now")
        time.sleep(2 * _LIMIT)

    _train(tmp_path, last_step)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 3


def _ranks(out: Path, step: Callable[[int, Any], object], limit: float) -> list[Training]:
    """Two processes that train together with gloo; `step` is their fourth."""

    def train(rank: int, _: Tell) -> None:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{out}/meet",
            rank=rank,
            world_size=2,
            timeout=datetime.timedelta(minutes=10),
        )
        _train(out, lambda _: step(rank, torch.distributed), limit)
        torch.distributed.barrier()

    return [fork(lambda tell, rank=rank: train(rank, tell)) for rank in range(2)]  # type: ignore[misc]


def test_ranks_that_wait_in_a_collective_say_so_before_anyone_kills_them(tmp_path: Path) -> None:
    def step(rank: int, distributed: Any) -> None:
        if rank == 1:
            threading.Event().wait(60)
        distributed.all_reduce(torch.ones(2))

    ranks = _ranks(tmp_path, step, _LIMIT)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not all(
        (tmp_path / "r" / "flight" / f"rank{rank}").exists() for rank in range(2)
    ):
        time.sleep(0.05)
    for rank in ranks:
        os.kill(rank.process_id, signal.SIGKILL)
        rank.end()
    states = [_state(tmp_path / "r", rank) for rank in range(2)]
    assert states[0] is not None
    assert states[1] is not None
    assert (states[0]["step"], states[0]["where"], states[0]["ended_ns"]) == (3, "all_reduce", None)
    assert states[0]["collective"]["name"] == "gloo:all_reduce"
    assert "wait" in states[1]["where"]
    assert states[1]["collective"] is None
    record = pickle.loads((tmp_path / "r" / "flight" / "rank0").read_bytes())  # torch's, of this test
    assert [entry["profiling_name"] for entry in record["entries"] if not entry["retired"]] == ["gloo:all_reduce"]


def test_ranks_that_wait_for_one_at_work_are_not_stuck(tmp_path: Path) -> None:
    def step(rank: int, distributed: Any) -> None:
        if rank == 0:
            _compute(5 * _LIMIT)  # it evaluates
        distributed.barrier()

    assert [rank.end() for rank in _ranks(tmp_path, step, 2 * _LIMIT)] == [0, 0]
    assert [_state(tmp_path / "r", rank) for rank in range(2)] == [None, None]
    assert not list((tmp_path / "r").glob("flight/.*"))
