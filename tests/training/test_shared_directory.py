"""Eight ranks that share one run directory lose only their open steps, whenever and however each ends."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import stepscope
from tests.training.full_disk import run_on_small_disk
from tests.training.processes import Training, fork

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_job")

_NUM_RANKS = 8
Tell = Callable[[str], None]


def _start(out: Path, rank: int) -> Training:
    def train(tell: Tell) -> None:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(_NUM_RANKS), "LOCAL_RANK": str(rank)}
        with stepscope.profile("r", out, stepscope.every(25, warmup=1, active=2), ranks=[0, 3], first_step=0) as prof:
            for step in range(1_000_000):
                torch.ones(8, 8) @ torch.ones(8, 8)
                time.sleep(0.01)
                prof.step(loss=1.0 / (step + 1))
                tell(f"{step} ")

    return fork(train)


def _told_steps(training: Training) -> int:
    """How many steps an ended process has told."""
    text = b""
    while part := os.read(training.told, 1 << 16):
        text += part
    return len(text.split())


def _attempts(path: Path) -> list[list[int]]:
    """The indices of each attempt; every line is whole."""
    content = path.read_bytes() if path.exists() else b""  # killed before it had begun
    assert content == b"" or content.endswith(b"\n")
    attempts: list[list[int]] = []
    for line in content.splitlines():
        index = json.loads(line)["index"]
        if index == 0:
            attempts.append([])
        attempts[-1].append(index)
    return attempts


@pytest.mark.parametrize("seed", [5])
def test_whoever_is_killed_whenever(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kept: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(_NUM_RANKS)}
    running = {rank: _start(tmp_path, rank) for rank in range(_NUM_RANKS)}
    for _ in range(_NUM_RANKS):
        time.sleep(chance.uniform(0.05, 0.3))
        rank = chance.randrange(_NUM_RANKS)
        how = chance.choice([signal.SIGKILL, signal.SIGTERM])
        os.kill(running[rank].process_id, how)
        told = _told_steps(running[rank])
        assert running[rank].end() == -how
        kept[rank].append((how, told))
        running[rank] = _start(tmp_path, rank)
    for rank, training in running.items():
        os.kill(training.process_id, signal.SIGTERM)
        told = _told_steps(training)
        assert training.end() == -signal.SIGTERM
        kept[rank].append((signal.SIGTERM, told))

    for path in (tmp_path / "r").rglob("*"):
        if path.suffix == ".gz":
            trace = json.loads(gzip.decompress(path.read_bytes()))
            assert len(trace["stepscope_whole_steps"]) in {1, 2}
        if path.suffix == ".json":
            json.loads(path.read_text())
    for rank, ends in kept.items():
        attempts = _attempts(tmp_path / "r" / "steps" / f"rank{rank}.jsonl")
        for attempt in attempts:
            assert attempt == list(range(len(attempt)))
        told_well = [told for how, told in ends if how == signal.SIGTERM and told]
        lengths = [len(attempt) for attempt in attempts]
        for told in told_well:  # the step that ran may have ended before the signal came
            assert told in lengths or told + 1 in lengths
    assert not [path for path in (tmp_path / "r").rglob("*.part") if ".rank" not in path.name]
    _no_leftovers_after_a_clean_start(tmp_path)


def _no_leftovers_after_a_clean_start(out: Path) -> None:
    for rank in range(_NUM_RANKS):

        def train(_: Tell, rank: int = rank) -> None:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(_NUM_RANKS)}
            with stepscope.profile("r", out, ranks=[]) as prof:
                prof.step()

        assert fork(train).end() == 0
    assert list((out / "r").rglob("*.part")) == []
    attempts = json.loads((out / "r" / "run.json").read_text())["attempts"]
    assert attempts[-1]["ended"] == "finished"
    assert all(before["start_ns"] < after["start_ns"] for before, after in pairwise(attempts))


def test_finished_steps_reach_the_disk_while_the_training_thread_does_nothing(tmp_path: Path) -> None:
    def train(tell: Tell) -> None:
        with stepscope.profile("r", tmp_path) as prof:
            for _ in range(3):
                prof.step()
            tell("stepped")
            time.sleep(60)

    training = fork(train)
    training.wait_for("stepped")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _attempts(tmp_path / "r" / "steps" / "rank0.jsonl") != [[0, 1, 2]]:
        time.sleep(0.05)
    os.kill(training.process_id, signal.SIGKILL)
    assert training.end() == -signal.SIGKILL
    assert _attempts(tmp_path / "r" / "steps" / "rank0.jsonl") == [[0, 1, 2]]


_TRAIN_ON = """
import logging, os, pathlib, sys, time, torch, stepscope
warnings = []
class Warnings(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())
logging.getLogger("stepscope").addHandler(Warnings(logging.WARNING))
folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]
if what == "read-only":
    assert os.system(f"mount -o remount,ro {folder}") == 0
from stepscope.training import background_loop
background_loop._EVERY_SECONDS = 0.02
num_steps = 0
first = 0 if what == "full of a trace" else 10_000
with stepscope.profile("r", folder, stepscope.once(wait=first, warmup=1, active=3)) as prof:
    for _ in range(200):
        (torch.ones(8, 8) @ torch.ones(8, 8)).sum().item()
        prof.step(loss=1.0)
        num_steps += 1
        time.sleep(0.001)
print(num_steps, len(warnings), *warnings, sep="\\n")
steps = folder / "r" / "steps" / "rank0.jsonl"
if steps.exists():
    assert steps.read_bytes().endswith(b"\\n") or not steps.read_bytes()
assert not [path for path in folder.rglob("*.gz")], list(folder.rglob("*"))
assert not list(folder.rglob("*.part"))
"""


@pytest.mark.parametrize(
    ("what", "num_bytes", "says"),
    [
        ("full of a trace", 24 << 10, "No space left"),
        ("full of steps", 24 << 10, "No space left"),
        ("read-only", 1 << 20, "Read-only file system"),
    ],
)
def test_a_full_or_read_only_disk_costs_one_warning(tmp_path: Path, what: str, num_bytes: int, says: str) -> None:
    num_steps, num_warnings, *warnings = run_on_small_disk(tmp_path, num_bytes, _TRAIN_ON, what).splitlines()
    assert (num_steps, num_warnings) == ("200", "1"), warnings
    assert says in warnings[0]
    assert "training goes on" in warnings[0]


def test_a_directory_that_is_removed_while_training_runs_costs_at_most_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[Any] = []
    with stepscope.profile("r", tmp_path, stepscope.every(3, warmup=1, active=1)) as prof:
        for step in range(9):
            if step == 4:
                (tmp_path / "r").rename(tmp_path / "gone")  # at once: a trace may be on its way into it
                shutil.rmtree(tmp_path / "gone", ignore_errors=True)
            prof.step()
            steps.append(step)
    assert steps == list(range(9))
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) <= 1
