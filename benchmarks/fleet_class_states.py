"""Is a GPU at rest, one that is held but unused, and one whose collective hangs, told as such? Records windows of each.

    python -m benchmarks.fleet_class_states OUT
    python -m benchmarks.fleet_class_accuracy OUT/windows.jsonl

Needs one GPU. What is right is known by what was started: nobody; a process with memory on the GPU that sleeps; two
ranks of NCCL, of which one never comes to the all-reduce, both on the first GPU and talking as over TCP.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.fleet_class_sampling import WINDOWS_FILE, Recorder
from benchmarks.forked_ranks import FOR_EVER
from benchmarks.labelled_windows import Labelled, write_windows
from benchmarks.ranks_on_one_gpu import free_port, pose_as_machine
from stepscope.analyzer.fleet import classify
from stepscope.core.causes import Cause

_WINDOW_SECONDS = 56.0
"""A little less than the agent's minute, and as much as a hang takes to be told."""
_START_SECONDS = 20.0
"""Until all processes have the GPU, and its power has settled."""
_HELD_BYTES = 8 << 30
_ALL_REDUCES = 5


def _nobody() -> list[SpawnProcess]:
    return []


def _holder() -> list[SpawnProcess]:
    return [get_context("spawn").Process(target=_hold)]


def _hung_job() -> list[SpawnProcess]:
    port = free_port()
    return [get_context("spawn").Process(target=_hang, args=(rank, port)) for rank in range(2)]


STATES: dict[str, tuple[Callable[[], list[SpawnProcess]], Cause]] = {
    "at_rest": (_nobody, Cause.IDLE),
    "held": (_holder, Cause.IDLE),
    "hung": (_hung_job, Cause.HANG),
}
"""By name: what runs, and what that is."""


def _hold() -> None:
    memory = torch.zeros(_HELD_BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    time.sleep(FOR_EVER)
    del memory


def _hang(rank: int, port: int) -> None:
    pose_as_machine(rank, 2, port)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=FOR_EVER))
    gradients = torch.ones(64 << 20, device="cuda")
    for _ in range(_ALL_REDUCES):
        dist.all_reduce(gradients)
    torch.cuda.synchronize()
    if rank == 0:
        dist.all_reduce(gradients)
        torch.cuda.synchronize()
    time.sleep(FOR_EVER)


@contextmanager
def _running(processes: list[SpawnProcess]) -> Iterator[None]:
    for process in processes:
        process.start()
    try:
        yield
        if any(process.exitcode is not None for process in processes):
            raise RuntimeError("a process ended early")
    finally:
        for process in processes:
            process.kill()
            process.join()


def _record(name: str, seconds: float) -> Labelled:
    """The last window of this state."""
    start, cause = STATES[name]
    with _running(start()):
        time.sleep(_START_SECONDS if cause is Cause.HANG else _START_SECONDS / 4)
        with Recorder(1.0, seconds) as recorder:
            while not (cuts := [cut for cut in recorder.cuts() if cut.gpu == 0]):
                time.sleep(0.5)
    cut = cuts[-1]
    length = (cut.end_ns - cut.begin_ns) / 1e9
    return Labelled(name, cut.gpu, frozenset({cause}), cut.samples, length, cut.facts, cut.host)


def main() -> None:
    """Record all, and say what each is taken for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--window", type=float, default=_WINDOW_SECONDS, help="seconds")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a GPU that CUDA can use", file=sys.stderr)
        sys.exit(2)
    options.out.mkdir(parents=True, exist_ok=True)
    windows = []
    for name in STATES:
        windows.append(_record(name, options.window))
        write_windows(options.out / WINDOWS_FILE, windows)
        told = classify(windows[-1].samples, windows[-1].facts, windows[-1].host)
        print(f"{name}: {told.summary} ({told.confidence:.2f})", flush=True)


if __name__ == "__main__":
    main()
