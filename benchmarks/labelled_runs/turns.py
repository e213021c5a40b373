"""Turns of jobs on one device: a process imports what it needs, waits for the device, and holds it until it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.labelled_runs.job import Bench, Job
from benchmarks.labelled_runs.measurement import BareSteps, measure, measure_apart

_MOST_AT_ONCE = 3
"""Processes, of which one has the device and the others import."""
_LOCK, _TRUTH, _APART = "device.lock", "truth.json", "apart-{}.json"
_MOST_SECONDS = 100
"""That a process may hold the device."""


def run_in_turn(job: Job, device: str, folder: Path, *, is_tiny: bool, apart: str | None = None) -> None:
    """Run a job, or its change that is measured apart, in this process; leaves the truth or the blocks in `folder`."""
    running = (
        []
        if apart
        else [
            (change.name, _start(job, device, folder, is_tiny, change.name))
            for change in job.changes
            if change.is_apart
        ]
    )
    for name in job.imports:
        pkgutil.resolve_name(name)
    import torch._dynamo

    blocks = {}
    for name, process in running:
        if process.wait():
            raise RuntimeError(f"{job.name}: {name} failed")
        blocks[frozenset({name})] = BareSteps(json.loads((folder / _APART.format(name)).read_text()), 0.0)
    lock = open(folder.parent / _LOCK, "w")  # noqa: SIM115 - held until the process ends
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.alarm(_MOST_SECONDS)
    began = time.monotonic()
    torch.manual_seed(0)
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    bench = Bench(torch.device(device), is_tiny, scratch)
    if apart:
        on = frozenset({apart})
        blocks_ms = measure_apart(job, bench, [on])[on].blocks_ms
        (folder / _APART.format(apart)).write_text(json.dumps(blocks_ms))
    else:
        truth = measure(job, bench, folder, blocks) | {"device_seconds": round(time.monotonic() - began, 1)}
        (folder / _TRUTH).write_text(json.dumps({job.name: truth}, indent=1))


def _start(job: Job, device: str, folder: Path, is_tiny: bool, apart: str | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.labelled_runs.record", "--rank", "0", "--only", job.name]
    command += ["--out", str(folder), "--device", device, *(["--tiny"] if is_tiny else [])]
    command += ["--apart", apart] if apart else ["--in-turn"]
    return subprocess.Popen(command, process_group=None if apart else 0)


def in_turns(
    jobs: Sequence[Job], device: str, folder_of: Callable[[Job], Path], until: float, *, is_tiny: bool
) -> Iterator[tuple[Job, bool]]:
    """Run jobs, each in a process of its own, until a time of the monotonic clock; yields each as it ends, and whether
    well."""
    waiting, running = deque(jobs), dict[int, tuple[Job, subprocess.Popen[bytes]]]()
    while waiting or running:
        while waiting and len(running) < _MOST_AT_ONCE and time.monotonic() < until:
            job = waiting.popleft()
            folder = folder_of(job)
            folder.mkdir(parents=True)
            process = _start(job, device, folder, is_tiny)
            running[process.pid] = job, process
        time.sleep(0.05)
        is_late = time.monotonic() >= until
        for pid, (job, process) in list(running.items()):
            if process.poll() is None and not is_late:
                continue
            del running[pid]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what it left: workers of loaders and of compilers
            yield job, process.wait() == 0
        if is_late:
            yield from ((job, False) for job in waiting)
            return
