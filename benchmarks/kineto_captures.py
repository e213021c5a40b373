"""Is a plain PyTorch job captured on the first command, with exactly the steps that were asked for?

    python -m benchmarks.kineto_captures [--captures 20] [--ranks 1] [--poll-seconds 5]

Each capture is of a job of its own, started with KINETO_USE_DAEMON=1, and asked for once: at its first sign of life,
while it imports or loads, or while it trains. The traces are judged here by the marks that the job itself made: how
many optimizer steps, whether there are operators, and whether several ranks begin at the step of the same number.
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
from pathlib import Path
from statistics import median
from typing import Any

from stepscope.collectors.kineto_daemon.desk import KinetoDesk, News, Wish

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
_GIVE_UP_SECONDS = 180.0


def _start(script: Path, ranks: int, delay: float, step: float, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *launcher, str(script), str(delay), str(step)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _told(desk: KinetoDesk, keys: tuple[str, ...], capture_id: str) -> dict[str, News]:
    told: dict[str, News] = {}
    end = time.monotonic() + _GIVE_UP_SECONDS
    while time.monotonic() < end and len(told) < len(keys):
        told |= {one.outcome.key: one for one in desk.news() if one.outcome.state.is_final}
        time.sleep(0.02)
    return {key: one for key, one in told.items() if one.capture_id == capture_id}


def _held(path: Path) -> tuple[int, int, int | None]:
    """Optimizer steps and operators in a trace, and the job's own number of its first step, where its mark is whole."""
    with gzip.open(path, "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    marks = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    numbers = [int(name.removeprefix("number ")) for name in marks if name.startswith("number ")]
    num_operators = sum(event.get("cat") == "cpu_op" for event in events)
    return sum(name.startswith("Optimizer.step#") for name in marks), num_operators, min(numbers, default=None)


def _capture(folder: Path, number: int, ranks: int, environment: dict[str, str]) -> tuple[str, float]:
    """One job, one command; what is wrong with its traces, and seconds from the command to the traces."""
    num_steps = 1 + number % 5
    delay = _JOB_DELAYS[number % len(_JOB_DELAYS)]
    step = _STEP_SECONDS[number // 2 % len(_STEP_SECONDS)]
    command_delay = _COMMAND_DELAYS[number % len(_COMMAND_DELAYS)]
    sockets = folder / f"sockets{number}"
    sockets.mkdir()
    with KinetoDesk(folder / f"runs{number}", socket_folder=str(sockets)) as desk:
        job = _start(folder / "job.py", ranks, delay, step, {**environment, "KINETO_IPC_SOCKET_DIR": str(sockets)})
        try:
            while len(desk.targets()) < ranks or (ranks > 1 and any(t.place.rank is None for t in desk.targets())):
                time.sleep(0.05)
            time.sleep(command_delay)
            keys = tuple(target.key for target in desk.targets())
            began = time.monotonic()
            desk.request(Wish(f"capture-{number}", keys, num_steps))
            told = _told(desk, keys, f"capture-{number}")
            seconds = time.monotonic() - began
            alive = job.poll() is None
        finally:
            job.terminate()
            job.wait()
    wrong = [f"{one.outcome.state} ({one.outcome.reason})" for one in told.values() if one.path is None]
    wrong += [] if len(told) == ranks else [f"{len(told)} of {ranks} processes answered"]
    wrong += [] if alive else ["the job has ended"]
    held = [_held(one.path) for one in told.values() if one.path is not None]
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
        if options.poll_seconds != 5:
            environment["KINETO_CONFIG"] = str(folder / "kineto.conf")
        results = [_capture(folder, number, options.ranks, environment) for number in range(options.captures)]
    right = [seconds for wrong, seconds in results if not wrong]
    print(f"{len(right)} of {len(results)} right on the first command", end="")
    print(f"; {min(right):.1f} to {max(right):.1f} s, median {median(right):.1f} s" if right else "")


if __name__ == "__main__":
    main()
