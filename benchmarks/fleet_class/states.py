"""Recording of windows of GPUs that are idle, held but unused, or hung in a collective.

    python -m benchmarks.fleet_class.states OUT
    python -m benchmarks.fleet_class.accuracy OUT/windows.jsonl

Needs a GPU, and uses the first. The right class follows from what was started: no process; a sleeping process with
memory on the GPU; two NCCL ranks on that GPU over TCP, of which one never enters the all-reduce. A window begins once
each process has reported that it is ready.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.fleet_class.sampling import WINDOWS_FILE, Recorder
from benchmarks.fleet_class.windows import Labelled, write_windows
from benchmarks.ranks import FOR_EVER, free_port, pose_as_machine
from stepscope.analyzer.fleet import classify_gpu
from stepscope.core.vocabulary import Cause

_WINDOW_SECONDS = 56.0
"""A little less than the agent's minute, and as much as a hang takes to be told."""
_START_SECONDS = 90.0
"""Longest time until all processes are ready."""
_SETTLE_SECONDS = 5.0
"""After that: power is an average of a second."""
_LATE_SECONDS = 30.0
"""A window comes so long after its own length, at most."""
_HELD_BYTES = 8 << 30
_ALL_REDUCES = 5
_NUM_RANKS = 2


Work = Callable[[Event, int], None]
"""What a process of a state does, given a port for its job; it sets the event once the state has come, and stays."""


def _hold(ready: Event, _: int) -> None:
    memory = torch.zeros(_HELD_BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    ready.set()
    time.sleep(FOR_EVER)
    del memory


def _wait_for_peer(ready: Event, port: int) -> None:
    gradients = _reduced(0, port)
    dist.all_reduce(gradients)
    ready.set()
    torch.cuda.synchronize()


def _never_come(ready: Event, port: int) -> None:
    _reduced(1, port)
    ready.set()
    time.sleep(FOR_EVER)


def _reduced(rank: int, port: int) -> torch.Tensor:
    """Run some all-reduces on both ranks."""
    pose_as_machine(rank, _NUM_RANKS, port)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=FOR_EVER))
    gradients = torch.ones(64 << 20, device="cuda")
    for _ in range(_ALL_REDUCES):
        dist.all_reduce(gradients)
    torch.cuda.synchronize()
    return gradients


STATES: dict[str, tuple[Sequence[Work], Cause]] = {
    "at_rest": ((), Cause.IDLE),
    "held": ((_hold,), Cause.IDLE),
    "hung": ((_wait_for_peer, _never_come), Cause.HANG),
}
"""By name: the processes, and what that is."""


@contextmanager
def running(works: Sequence[Work]) -> Iterator[list[SpawnProcess]]:
    """Processes that run this, all of them ready.

    Raises:
        RuntimeError: one has ended, or is not ready in time.
    """
    context, port = get_context("spawn"), free_port()
    ready = [context.Event() for _ in works]
    processes = [
        context.Process(target=work, args=(event, port), daemon=True) for work, event in zip(works, ready, strict=True)
    ]
    try:
        for process in processes:
            process.start()
        until = time.monotonic() + _START_SECONDS
        while not all(event.wait(0.2) for event in ready):
            check_alive(processes)
            if time.monotonic() > until:
                raise RuntimeError("the processes did not start in time")
        yield processes
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def check_alive(processes: Sequence[SpawnProcess]) -> None:
    """Raise RuntimeError if a process has ended."""
    if any(process.exitcode is not None for process in processes):
        raise RuntimeError("a process ended early; its own output says why")


def _record(name: str, seconds: float) -> Labelled:
    """Record the first window of this state."""
    works, cause = STATES[name]
    with running(works) as processes:
        time.sleep(_SETTLE_SECONDS)
        with Recorder(1.0, seconds) as recorder:
            until = time.monotonic() + seconds + _LATE_SECONDS
            while not (cuts := [cut for cut in recorder.cuts() if cut.gpu == 0]):
                check_alive(processes)
                if time.monotonic() > until:
                    raise RuntimeError("the agent's sources tell nothing of GPU 0; see `stepscope agent check`")
                time.sleep(0.5)
    cut = cuts[0]
    length = (cut.end_ns - cut.begin_ns) / 1e9
    return Labelled(name, cut.gpu, frozenset({cause}), cut.samples, length, cut.facts, cut.host)


def main() -> None:
    """Record all states and print the class of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--window", type=float, default=_WINDOW_SECONDS, help="length of a window, seconds")
    options = parser.parse_args()
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        parser.error("unset CUDA_VISIBLE_DEVICES: the first GPU of the driver is taken")
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML's
    if not torch.cuda.is_available():
        print("a CUDA GPU is needed", file=sys.stderr)
        sys.exit(2)
    options.out.mkdir(parents=True, exist_ok=True)
    windows = []
    for name in STATES:
        windows.append(_record(name, options.window))
        write_windows(options.out / WINDOWS_FILE, windows)
        told = classify_gpu(windows[-1].samples, windows[-1].facts, windows[-1].host)
        print(f"{name}: {told.summary} ({told.confidence:.2f})", flush=True)


if __name__ == "__main__":
    main()
