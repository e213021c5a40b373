"""Is a plain PyTorch job captured on the first command, with exactly the steps that were asked for?

    python -m benchmarks.kineto_captures [--captures 20] [--ranks 1] [--poll-seconds 5]

A real agent, and for each capture a job of its own, started with KINETO_USE_DAEMON=1, and one `stepscope capture`: at
the job's first sign of life, while it imports or loads, or while it trains. The traces are judged here by the marks of
the job itself: how many optimizer steps, whether there are operators, and whether ranks begin at the step of the same
number.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

_JOB = """
import os, sys, time
import torch
import torch.distributed as dist

several = "RANK" in os.environ
if several:
    dist.init_process_group("gloo")
time.sleep(float(sys.argv[1]))  # a job that loads its data, or compiles
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)])
model = torch.nn.parallel.DistributedDataParallel(model) if several else model
optimizer = torch.optim.AdamW(model.parameters())
inputs, step = torch.randn(32, 128), 0
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
_FIRST_POLL_SECONDS = 0.5
"""From a process's socket to its first question, and to the agent's next look."""


def _start(script: Path, ranks: int, delay: float, step: float, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *launcher, str(script), str(delay), str(step)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def _agent(folder: Path, sockets: Path) -> Iterator[str]:
    """A real agent's URL."""
    command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", "127.0.0.1:0", "--socket", ""]
    command += ["--state-dir", str(folder / "state"), "--kineto-socket-dir", str(sockets)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            while "/metrics" not in (folder / "log").read_text():
                time.sleep(0.05)
            yield (folder / "log").read_text().split()[2].removesuffix("/metrics")
        finally:
            process.terminate()


def _num_processes(sockets: Path) -> int:
    """How many ask: each has a socket beside the agent's."""
    return sum(path.name.startswith("dynoconfigclient") for path in sockets.iterdir())


def _held(path: Path) -> tuple[int, int, int | None]:
    """Optimizer steps and operators in a trace, and the job's own number of its first step, where its mark is whole."""
    with gzip.open(path, "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    marks = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    numbers = [int(name.removeprefix("number ")) for name in marks if name.startswith("number ")]
    num_operators = sum(event.get("cat") == "cpu_op" for event in events)
    return sum(name.startswith("Optimizer.step#") for name in marks), num_operators, min(numbers, default=None)


def _capture(folder: Path, url: str, number: int, ranks: int, environment: dict[str, str]) -> tuple[str, float]:
    """One job, one command; what is wrong with its traces, and seconds from the command to its end."""
    num_steps = 1 + number % 5
    delay = _JOB_DELAYS[number % len(_JOB_DELAYS)]
    step = _STEP_SECONDS[number // 2 % len(_STEP_SECONDS)]
    command_delay = _COMMAND_DELAYS[number % len(_COMMAND_DELAYS)]
    before = _num_processes(folder / "sockets")
    job = _start(folder / "job.py", ranks, delay, step, environment)
    try:
        while _num_processes(folder / "sockets") < before + (1 if ranks == 1 else ranks + 1):  # torchrun asks, too
            time.sleep(0.05)
        time.sleep(_FIRST_POLL_SECONDS + command_delay)
        command = [sys.executable, "-m", "stepscope", "capture", "--agent", url, "--job", str(job.pid), "--json"]
        command += ["--token-file", str(folder / "state/token"), "--steps", str(num_steps)]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIVE_UP_SECONDS)
        seconds = time.monotonic() - began
        alive = job.poll() is None
    finally:
        job.terminate()
        job.wait()
    told = json.loads(done.stdout)["agents"][0]["ranks"] if done.stdout else []
    paths = [Path(one["path"]) for one in told if one.get("path")]
    wrong = [done.stderr.splitlines()[-1]] if done.returncode else []
    wrong += [] if len(paths) == ranks else [f"{len(paths)} traces of {ranks}"]
    wrong += [] if alive else ["the job has ended"]
    held = [_held(path) for path in paths]
    wrong += [f"{ends} steps of {num_steps}" for ends, _, _ in held if ends != num_steps]
    wrong += ["no operators" for _, operators, _ in held if not operators]
    firsts = {first for _, _, first in held if first is not None}
    wrong += [f"ranks begin at the steps {sorted(firsts)}"] if len(firsts) > 1 else []
    said = f"{num_steps} steps of {step * 1e3:.0f} ms, loop after {delay:.0f} s, command after {command_delay:.1f} s"
    print(f"{number + 1:3} {'; '.join(wrong) or 'right':8} {seconds:5.1f} s  {said}", flush=True)
    return "; ".join(wrong), seconds


def main() -> None:
    """Capture, and say how often it was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captures", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--poll-seconds", type=int, default=5, help="KINETO_CONFIG; 5 is libkineto's own")
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
        with _agent(folder, folder / "sockets") as url:
            results = [_capture(folder, url, number, options.ranks, environment) for number in range(options.captures)]
    right = [seconds for wrong, seconds in results if not wrong]
    print(f"{len(right)} of {len(results)} right on the first command", end="")
    print(f"; {min(right):.1f} to {max(right):.1f} s, median {median(right):.1f} s" if right else "")


if __name__ == "__main__":
    main()
