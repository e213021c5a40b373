"""The last step that has ended outlives the process that a signal kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import stepscope
from stepscope.training import once
from stepscope.training.steps.reached_step import (
    LAST_STEP,
    LAST_STEP_NS,
    OFFSET_NS,
    Reached,
    ReachedStep,
)

_ROOT = Path(__file__).resolve().parents[3]


def _note(reached: ReachedStep, step: int, end_ns: int) -> None:
    reached.places[LAST_STEP], reached.places[LAST_STEP_NS], reached.places[OFFSET_NS] = step, end_ns, 1_000


def test_what_a_killed_attempt_left_is_taken_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed = ReachedStep(run, tmp_path)
    assert killed.before is None
    killed.begin(2, 10, 5_000)
    _note(killed, 17, 8_000)
    again = ReachedStep(run, tmp_path)
    assert again.before == Reached(2, 5_000, 17, 9_000)
    assert ReachedStep(run, tmp_path).before is None
    assert ReachedStep(tmp_path / "other", tmp_path).before is None


def test_an_attempt_that_ended_no_step_or_in_order_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ReachedStep(run, tmp_path).begin(1, 0, 5_000)
    orderly = ReachedStep(run, tmp_path)
    assert orderly.before is None
    orderly.begin(2, 0, 5_000)
    _note(orderly, 3, 8_000)
    num_open = len(os.listdir("/proc/self/fd"))
    orderly.close()
    orderly.close()
    assert len(os.listdir("/proc/self/fd")) == num_open - 1
    assert [path.name for path in tmp_path.iterdir()] == []


def test_without_shared_memory_and_with_a_foreign_file_it_does_nothing(tmp_path: Path) -> None:
    for folder in (tmp_path / "absent", Path("/dev/null")):
        reached = ReachedStep(tmp_path / "run", folder)
        reached.begin(1, 0, 5_000)
        assert reached.places[LAST_STEP] == -1
        assert reached.before is None
        reached.close()
    first = ReachedStep(tmp_path / "run", tmp_path)
    (path,) = tmp_path.iterdir()
    first.close()
    path.symlink_to(tmp_path / "elsewhere")
    assert ReachedStep(tmp_path / "run", tmp_path).before is None
    assert not (tmp_path / "elsewhere").exists()


_KILLED = """
import os, signal, sys, time
import stepscope
from stepscope.training import once
with stepscope.profile("r", sys.argv[1], once(wait=10**6), first_step=int(sys.argv[2])) as prof:
    for _ in range(int(sys.argv[3])):
        prof.step()  # no line of it is written by then
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_manifest_tells_how_far_a_killed_attempt_had_come(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), "4", "7"],
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    with stepscope.profile("r", tmp_path, once(wait=10**6), first_step=8) as prof:
        prof.step()
    killed, last = json.loads((tmp_path / "r" / "run.json").read_text())["attempts"]
    assert (killed["first_step"], killed["last_step"], killed["end_ns"]) == (4, 10, None)
    assert killed["start_ns"] <= killed["first_step_ns"] <= killed["last_step_ns"] <= last["start_ns"]
    assert (last["first_step"], last["last_step"], last["ended"]) == (8, None, "finished")
