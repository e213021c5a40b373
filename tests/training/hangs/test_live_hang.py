"""Live hang detection: all ranks report during a long step, and the culprit is found without an agent."""

from __future__ import annotations

import datetime
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope
from stepscope.training import background_loop
from stepscope.training.hangs import live_hang
from stepscope.training.hangs.stall import HelperProcesses, ThreadProgress, is_thread_saving
from tests.training.processes import Training, fork

torch = pytest.importorskip("torch")

_WORLD = 3

Tell = Callable[[str], None]

pytestmark = pytest.mark.usefixtures("no_job")


def _job(out: Path) -> list[Training]:
    """Ranks of which the last stands still in the fourth step, where the others wait for it."""

    def train(rank: int, _: Tell) -> None:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(_WORLD)}
        background_loop._EVERY_SECONDS = 0.05
        live_hang._FIRST_SECONDS, live_hang._ASK_AGAIN_SECONDS = 3.2, 0.5
        logging.basicConfig(filename=out / f"rank{rank}.log", force=True)
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{out}/meet",
            rank=rank,
            world_size=_WORLD,
            timeout=datetime.timedelta(minutes=10),
        )
        with stepscope.profile("r", out, stuck_after=1.0) as prof:
            for _step in range(3):
                torch.distributed.all_reduce(torch.ones(2))
                prof.step()
            if rank == _WORLD - 1:
                threading.Event().wait(60)
            torch.distributed.all_reduce(torch.ones(2))
            prof.step()

    return [fork(lambda tell, rank=rank: train(rank, tell)) for rank in range(_WORLD)]  # type: ignore[misc]


def test_all_ranks_speak_within_seconds_and_the_lowest_says_who_holds_training_up(tmp_path: Path) -> None:
    ranks = _job(tmp_path)
    log = tmp_path / "rank0.log"
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (log.exists() and "training hangs" in log.read_text()):
            time.sleep(0.1)
    finally:
        for rank in ranks:
            os.kill(rank.process_id, signal.SIGKILL)
            rank.end()
    said = [line for line in log.read_text().splitlines() if "training hangs" in line]
    assert "(host, confidence 95%): rank 2 never called the collective" in said[0]
    assert "training hangs" not in (tmp_path / "rank1.log").read_text()
    live = tmp_path / "r" / "flight" / "live"
    states = [json.loads((live / f"rank{rank}.state").read_text()) for rank in range(_WORLD)]
    assert [state["is_in_collective"] for state in states] == [True, True, False]
    assert max(state["since_ns"] for state in states) - min(state["since_ns"] for state in states) < 10e9
    assert all((live / f"rank{rank}").stat().st_size for rank in range(_WORLD))


def test_a_long_step_that_ends_leaves_nothing_and_a_rank_alone_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_loop, "_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(live_hang, "_STATE_EVERY_SECONDS", 0.1)
    live = tmp_path / "r" / "flight" / "live"
    with stepscope.profile("r", tmp_path, stuck_after=0.5) as prof:
        prof.step()
        with prof.phase("checkpoint"):
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not (live / "rank0.state").exists():
                time.sleep(0.02)
            state = json.loads((live / "rank0.state").read_text())
        prof.step()
        while time.monotonic() < deadline and live.exists():
            time.sleep(0.02)
        assert not live.exists()
    assert (state["rank"], state["step"], state["doing"]) == (0, 1, "phase checkpoint")


@pytest.mark.parametrize(
    ("filename", "function", "saves"),
    [
        ("/home/me/train.py", "save_checkpoint", True),
        ("/env/torch/distributed/checkpoint/filesystem.py", "write", True),
        ("/env/torch/utils/checkpoint.py", "checkpoint", False),  # recomputes activations
        ("/home/me/train.py", "train", False),
    ],
)
def test_who_writes_a_checkpoint_is_known_by_file_or_name(filename: str, function: str, saves: bool) -> None:
    names = {"look": lambda: is_thread_saving(threading.get_ident())}
    exec(compile(f"def {function}():\n    return look()", filename, "exec"), names)
    assert names[function]() is saves


def test_a_loop_that_mostly_waits_in_one_line_is_seen_to_move() -> None:
    ended = threading.Event()

    def wait_often() -> None:
        while not ended.wait(0.02):
            sum(range(20_000))

    thread = threading.Thread(target=wait_often)
    thread.start()
    try:
        assert thread.ident is not None
        stillness = ThreadProgress(thread.ident, num_samples=500)
        stillness.look()
        time.sleep(0.5)
        assert stillness.look() == 0
    finally:
        ended.set()
        thread.join()


def test_what_our_own_processes_compute_and_read_is_counted_apart() -> None:
    own = HelperProcesses()
    program = "sum(range(3_000_000)); open('/dev/zero', 'rb').read(5_000_000)"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        own.running.add(process.pid)
        while (code := own.reap(process.pid)) is None:
            time.sleep(0.02)
        process.returncode = code
    assert (code, own.running) == (0, set())
    assert own.seconds > 0
    assert own.num_bytes > 5_000_000
    assert own.reap(process.pid) == -1


def test_ranks_that_leave_one_after_the_other_when_long_work_ends_are_no_hang(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check = live_hang.LiveHangCheck(tmp_path, 0, 2)
    hang = {"state": "hang", "kind": "unknown", "ranks": [1], "silent_ranks": [1], "step": 3, "age_seconds": 60.0}
    hang |= {"confidence": 0.8, "summary": "rank 1 left no dump"}
    check._log_verdict(hang | {"state": "busy", "ranks": [0]})
    check._log_verdict(hang)
    assert not caplog.records
    check._log_verdict(hang)
    assert "training hangs in step 3 for 60 s" in caplog.text
