"""Overhead of `stepscope run` on an unchanged script. Ratios of runs with and without it, in pairs.

    python -m benchmarks.speed.run_overhead [--step-ms 3,30] [--pairs 12] [--steps 300] [--out FILE.json]

The script trains a small network on batches of a DataLoader and prints its seconds per step. The two runs of a pair
follow each other directly, in alternating order, so that a busy machine slows both. Before them: the cost for a Python
that never trains, at its start alone and at its start with torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measurement import interval_of, measure
from stepscope.training.captures.schedule import DEFAULT_SCHEDULE
from stepscope.zero_code.launch import RunOptions, launch_environment

_UNDER = [sys.executable, "-m", "stepscope", "run", "--first", "1000000", "--"]
"""Armed, never capturing: a capture costs what torch's profiler costs, whoever asks for it."""

_SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(0)
num_layers, num_steps, settle = int(sys.argv[1]), int(sys.argv[2]), 20
layers = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU()) for _ in range(num_layers)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
wall = cpu = 0.0
for step, batch in enumerate(DataLoader(torch.randn(32 * (settle + num_steps), 128), batch_size=32)):
    if step == settle:
        wall, cpu = time.perf_counter(), time.process_time()
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print((time.perf_counter() - wall) / num_steps, (time.process_time() - cpu) / num_steps)
"""


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Of a step or a start: by the clock, and of all processors."""

    wall: float
    cpu: float


def _of_a_step(script: Path, num_layers: int, num_steps: int, *, under: bool) -> _Seconds:
    command = [*(_UNDER if under else []), sys.executable, str(script), str(num_layers), str(num_steps)]
    ran = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=True)
    return _Seconds(*map(float, ran.stdout.split()[-2:]))


def _layers_for(script: Path, step_ms: float) -> int:
    few, many = (_of_a_step(script, layers, 100, under=False).cpu for layers in (1, 9))
    return max(1, round(1 + (step_ms / 1e3 - few) / max((many - few) / 8, 1e-6)))


def _of_a_start(code: str, *, under: bool) -> _Seconds:
    """Cost of the start of Python alone: `stepscope run` itself starts once per job and is excluded."""
    options = RunOptions("runs", None, "auto", DEFAULT_SCHEDULE, with_stack=False)
    ran = measure([sys.executable, "-c", code], launch_environment(options, os.environ) if under else None)
    return _Seconds(ran.wall_seconds, ran.cpu_seconds)


def _pairs(measured: Callable[[bool], _Seconds], num_pairs: int) -> list[tuple[_Seconds, _Seconds]]:
    """Pairs of runs without and with stepscope, in alternating order."""
    pairs = []
    for pair in range(num_pairs):
        if pair % 2:
            without, under = measured(False), measured(True)
        else:
            under, without = measured(True), measured(False)
        pairs.append((without, under))
    return pairs


def _report(name: str, pairs: list[tuple[_Seconds, _Seconds]]) -> dict[str, tuple[float, float, float]]:
    """Added ms and ratio, by the clock and of processors: median, lower and upper bound."""
    found: dict[str, tuple[float, float, float]] = {}
    for clock in ("wall", "cpu"):
        times = [(getattr(without, clock), getattr(under, clock)) for without, under in pairs]
        added = interval_of([1e3 * (under - without) for without, under in times])
        ratio = interval_of([under / without for without, under in times])
        usual = 1e3 * statistics.median(without for without, _ in times)
        found |= {f"{clock} ms added": added, f"{clock} ratio": ratio, f"{clock} ms without": (usual, usual, usual)}
        percent = " ".join(f"{100 * (value - 1):+.2f}" for value in ratio)
        print(f"{name:18}{clock:5}{usual:9.2f} ms, added {added[0]:+.3f} ms; % with bounds: {percent}", flush=True)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", default="3,30")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = {}
    for name, code in {"start": "pass", "start with torch": "import torch"}.items():
        pairs = _pairs(lambda under, code=code: _of_a_start(code, under=under), arguments.pairs)  # type: ignore[misc]
        results[name] = _report(name, pairs)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(_SCRIPT)
        for step_ms in map(float, arguments.step_ms.split(",")):
            num_layers = _layers_for(script, step_ms)

            def step(under: bool, num_layers: int = num_layers) -> _Seconds:
                return _of_a_step(script, num_layers, arguments.steps, under=under)

            results[f"step of {step_ms:g} ms"] = _report(f"step of {step_ms:g} ms", _pairs(step, arguments.pairs))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
