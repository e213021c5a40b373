"""Reliability of Kineto captures: a plain PyTorch job is captured on the first command, with the requested steps.

    python -m benchmarks.agent.kineto_captures [--captures 20] [--ranks 1] [--poll-seconds 5]
        [--at-once 1] [--device cuda]

A real agent, and for each capture a new job, started with KINETO_USE_DAEMON=1, and one `stepscope capture`: at the
job's first sign of life, while it imports or loads, or while it trains. The traces are checked against the marks of the
job itself: number of optimizer steps, presence of operators and (on a GPU) kernels, and the same first step on all
ranks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any

from benchmarks.agent.real_agent import started_agent

_JOB = """
import os, sys, time
import torch
import torch.distributed as dist

several, device = "RANK" in os.environ, "cpu"
if sys.argv[3] == "cuda":
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    torch.cuda.set_device(device)
if several:
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
time.sleep(float(sys.argv[1]))  # a job that loads its data, or compiles
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)]).to(device)
model = torch.nn.parallel.DistributedDataParallel(model) if several else model
optimizer = torch.optim.AdamW(model.parameters())
inputs, step = torch.randn(32, 128, device=device), 0
while True:
    with torch.profiler.record_function(f"number {step}"):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        time.sleep(float(sys.argv[2]))
        optimizer.step()
    step += 1
"""
_JOB_DELAYS = (0.0, 3.0, 8.0, 14.0)
_STEP_SECONDS = (0.003, 0.02, 0.1, 0.4)
_COMMAND_DELAYS = (0.0, 2.0, 6.5)
_GIVE_UP_SECONDS = 300.0
_ASKS_WITHIN_SECONDS = 120.0
_NUM_LINES = 40
_FIRST_POLL_SECONDS = 0.5
"""From a process's socket to its first question, and to the agent's next look."""


@dataclass(frozen=True)
class _Setting:
    """What all captures have in common; `starting` is held while a job starts, as sockets do not say whose they are."""

    folder: Path
    url: str
    ranks: int
    device: str
    environment: dict[str, str]
    starting: Lock

    @property
    def num_processes(self) -> int:
        """How many ask: each has a socket beside the agent's."""
        return sum(path.name.startswith("dynoconfigclient") for path in (self.folder / "sockets").iterdir())

    def start(self, delay: float, step: float) -> subprocess.Popen[bytes]:
        """A job of which all processes ask.

        Raises:
            TimeoutError: they do not.
        """
        nproc = f"--nproc-per-node={self.ranks}"
        launcher = [] if self.ranks == 1 else ["-m", "torch.distributed.run", "--standalone", nproc]
        command = [sys.executable, *launcher, str(self.folder / "job.py"), str(delay), str(step), self.device]
        with self.starting, (self.folder / "jobs.log").open("ab") as log:
            expected = self.num_processes + (1 if self.ranks == 1 else self.ranks + 1)  # torchrun asks, too
            job = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            end = time.monotonic() + _ASKS_WITHIN_SECONDS
            while self.num_processes < expected:
                if job.poll() is not None or time.monotonic() > end:
                    _end(job)
                    raise TimeoutError("the job does not ask")
                time.sleep(0.05)
        return job


def _end(job: subprocess.Popen[bytes]) -> None:
    job.terminate()
    try:
        job.wait(timeout=30)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


@dataclass(frozen=True)
class _Held:
    """Content of a trace: optimizer steps, operators, kernels, and the job's number of its first whole step."""

    num_steps: int
    num_operators: int
    num_kernels: int
    first: int | None


def _held(path: Path) -> _Held:
    with gzip.open(path, "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    num_of = Counter(event.get("cat") for event in events)
    marks = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    numbers = [int(name.removeprefix("number ")) for name in marks if name.startswith("number ")]
    num_steps = sum(name.startswith("Optimizer.step#") for name in marks)
    return _Held(num_steps, num_of["cpu_op"], num_of["kernel"], min(numbers, default=None))


def _capture(setting: _Setting, number: int) -> tuple[str, float]:
    """Run one job and one command; return the errors of its traces, and seconds from the command to its end."""
    num_steps = 1 + number % 5
    delay = _JOB_DELAYS[number % len(_JOB_DELAYS)]
    step = _STEP_SECONDS[number // 2 % len(_STEP_SECONDS)]
    command_delay = _COMMAND_DELAYS[number % len(_COMMAND_DELAYS)]
    said = f"{num_steps} steps of {step * 1e3:.0f} ms, loop after {delay:.0f} s, command after {command_delay:.1f} s"
    try:
        wrong, seconds = _captured(setting, num_steps, (delay, step), command_delay)
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError) as error:
        wrong, seconds = f"{type(error).__name__}: {error}", math.nan
    print(f"{number + 1:3} {wrong or 'right':8} {seconds:5.1f} s  {said}", flush=True)
    return wrong, seconds


def _captured(setting: _Setting, num_steps: int, loop: tuple[float, float], command_delay: float) -> tuple[str, float]:
    job = setting.start(*loop)
    try:
        time.sleep(_FIRST_POLL_SECONDS + command_delay)
        command = [sys.executable, "-m", "stepscope", "capture", "--agent", setting.url, "--job", str(job.pid)]
        command += ["--json", "--token-file", str(setting.folder / "state/token"), "--steps", str(num_steps)]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIVE_UP_SECONDS)
        seconds = time.monotonic() - began
        alive = job.poll() is None
    finally:
        _end(job)
    told = json.loads(done.stdout)["agents"][0]["ranks"] if done.stdout else []
    paths = [Path(one["path"]) for one in told if one.get("path")]
    wrong = [done.stderr.splitlines()[-1]] if done.returncode else []
    wrong += [] if len(paths) == setting.ranks else [f"{len(paths)} traces of {setting.ranks}"]
    wrong += [] if alive else ["the job has ended"]
    held = [_held(path) for path in paths]
    wrong += [f"{one.num_steps} steps of {num_steps}" for one in held if one.num_steps != num_steps]
    wrong += ["no operators" for one in held if not one.num_operators]
    wrong += ["no kernels" for one in held if not one.num_kernels and setting.device == "cuda"]
    firsts = {one.first for one in held if one.first is not None}
    wrong += [f"ranks begin at the steps {sorted(firsts)}"] if len(firsts) > 1 else []
    return "; ".join(wrong), seconds


def main() -> None:
    """Run the captures and print how many were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captures", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--poll-seconds", type=int, default=5, help="poll interval in KINETO_CONFIG; libkineto's default is 5"
    )
    parser.add_argument("--at-once", type=int, default=1, help="parallel jobs and commands, at most 8")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(_JOB)
        (folder / "kineto.conf").write_text(f"ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS={options.poll_seconds}\n")
        environment = {**os.environ, "KINETO_USE_DAEMON": "1", "OMP_NUM_THREADS": "1"}
        environment["KINETO_IPC_SOCKET_DIR"] = str(folder / "sockets")
        if options.poll_seconds != 5:
            environment["KINETO_CONFIG"] = str(folder / "kineto.conf")
        (folder / "sockets").mkdir()
        with started_agent(folder, "--kineto-socket-dir", str(folder / "sockets")) as agent:
            setting = _Setting(
                folder, f"http://127.0.0.1:{agent.port}", options.ranks, options.device, environment, Lock()
            )
            with ThreadPoolExecutor(options.at_once) as threads:
                results = list(threads.map(partial(_capture, setting), range(options.captures)))
        if any(wrong for wrong, _ in results):
            print(
                "\n".join((folder / "jobs.log").read_text(errors="replace").splitlines()[-_NUM_LINES:]), file=sys.stderr
            )
    right = [seconds for wrong, seconds in results if not wrong]
    print(f"{len(right)} of {len(results)} right on the first command", end="")
    print(f"; {min(right):.1f} to {max(right):.1f} s, median {median(right):.1f} s" if right else "")


if __name__ == "__main__":
    main()
