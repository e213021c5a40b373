"""How are the ranks of a job that may hang forked, awaited and ended? Who forks them may not have touched a GPU."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from stepscope.core.forking import about_to_fork

FOR_EVER = 3600.0
"""Seconds."""


def forked(work: Callable[[], None]) -> int:
    """A process that does this and no more; its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    with about_to_fork():
        process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException:
            logging.exception("ended early")
        finally:
            os._exit(1)
    return process


def running(processes: Iterable[int]) -> list[int]:
    """Those that have not ended."""
    return [process for process in processes if os.waitpid(process, os.WNOHANG)[0] == 0]


def end(processes: Iterable[int]) -> None:
    """Kill them."""
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def wait(is_so: Callable[[], bool], seconds: float) -> None:
    """Until it is so, or for so long."""
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.1)


def device_of(backend: str, rank: int) -> torch.device:
    """Where this rank computes, each on a GPU of its own with NCCL; made the current one."""
    if backend != "nccl":
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def barrier(device: torch.device, group: dist.ProcessGroup | None = None) -> None:
    """All wait; NCCL has to be told on which GPU."""
    dist.barrier(group, device_ids=[device.index] if device.type == "cuda" else None)


def occupy_gpu() -> None:
    """A kernel of some hours. The host goes on, until it waits for it."""
    torch.cuda._sleep(1 << 45)  # type: ignore[no-untyped-call]  # as torch has it
