"""Job of one GPU beside an agent, and its fault from outside: another process on the GPU, or too little CPU time."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stepscope
from benchmarks.labelled_runs.neighbours import Neighbours, of_core, of_gpu

CASES = ("healthy", "idle_process", "second_process", "cpu_starved")
_BLOCK_SECONDS, _NUM_BLOCKS = 4.0, 3
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_US, _QUOTA_US = 100_000, 30_000
"""A limit that a launching thread feels: three tenths of a core."""

Switch = Callable[[bool], None]


def training_step(device: torch.device, *, is_tiny: bool) -> Callable[[], None]:
    """A step of a small transformer: some hundred launches, 20 ms on an H200."""
    width, layers, length = (64, 2, 32) if is_tiny else (1024, 8, 1024)
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0),
        layers,
        enable_nested_tensor=False,
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(8, length, width, device=device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@contextmanager
def fault(case: str, device: torch.device) -> Iterator[tuple[Switch, dict[str, Any]]]:
    """The switch of a case's fault, and what the truth says of it."""
    if case == "healthy":
        yield lambda _: None, {}
    elif case in ("second_process", "idle_process"):
        on_gpu = of_gpu() if device.type == "cuda" else Neighbours([])
        with_switch: Switch = (lambda work: on_gpu.let(work=work)) if case == "second_process" else lambda _: None
        yield with_switch, {"other_pids": [process.pid for process in on_gpu._processes]}
        on_gpu.end()
    else:
        with _limited() as found:
            yield found


@contextmanager
def _limited() -> Iterator[tuple[Switch, dict[str, Any]]]:
    """A cgroup of this process with a CPU limit, else one core shared with busy processes."""
    group = _CGROUPS / f"stepscope-{os.getpid()}"
    try:
        with suppress(OSError):
            (_CGROUPS / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        if not (group / "cgroup.procs").exists():  # no file system of cgroups, or that of version 1
            raise OSError("no cgroup")
        (group / "cpu.max").write_text(f"max {_PERIOD_US}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        busy = of_core(2)
        yield lambda work: busy.let(work=work), {"how": "affinity"}
        busy.end()
        return
    yield (
        lambda work: void((group / "cpu.max").write_text(f"{_QUOTA_US if work else 'max'} {_PERIOD_US}")),
        {"how": "cgroup", "cpus": _QUOTA_US / _PERIOD_US},
    )
    (group / "cpu.max").write_text(f"max {_PERIOD_US}")
    (_CGROUPS / "cgroup.procs").write_text(str(os.getpid()))
    group.rmdir()


def void(_: object) -> None:
    """Forget a value."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=45.0, help="Of the profiled run; counters come every 10 s.")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    step = training_step(device, is_tiny=asked.tiny)

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def block(seconds: float) -> float:
        """Mean step of so many seconds, ms."""
        synchronize()
        began, num = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            step()
            num += 1
        synchronize()
        return (time.perf_counter() - began) * 1e3 / num

    block(1.0)
    with fault(asked.case, device) as (switch, truth):
        blocks: dict[str, list[float]] = {"with": [], "without": []}
        for number in range(2 * _NUM_BLOCKS if not asked.tiny else 2):
            switch(number % 2 == 1)
            blocks["with" if number % 2 else "without"].append(block(_BLOCK_SECONDS if not asked.tiny else 0.5))
        switch(True)
        until = time.monotonic() + asked.seconds
        with stepscope.profile(asked.case, asked.out) as prof:
            while time.monotonic() < until:
                step()
                prof.step()
        switch(False)
    truth |= {"case": asked.case, "pid": os.getpid(), "blocks_ms": blocks}
    (asked.out / f"{asked.case}.truth.json").write_text(json.dumps(truth, indent=1))


if __name__ == "__main__":
    main()
