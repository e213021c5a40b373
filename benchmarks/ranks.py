"""Ranks of a benchmark's job: forked processes that may hang, and all ranks of a workload on one GPU.

The forking process must not have used a GPU. NCCL rejects two ranks of one host on one GPU, so there each rank claims
another host and they communicate over TCP.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stepscope.core.errors import StepscopeError, UnreachableError, UsageError
from stepscope.core.process import about_to_fork
from stepscope.reference_workloads.launch import WorkloadResult, run_workload
from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.reference_workloads.processes import die_with

FOR_EVER = 3600.0
"""Seconds."""


def forked(work: Callable[[], None]) -> int:
    """Fork a process that only runs this; return its id."""
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
    """Processes that have not ended."""
    return [process for process in processes if os.waitpid(process, os.WNOHANG)[0] == 0]


def end(processes: Iterable[int]) -> None:
    """Kill the processes."""
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def wait(is_so: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition holds, or for so long."""
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
    """Barrier of all ranks; NCCL needs the GPU."""
    dist.barrier(group, device_ids=[device.index] if device.type == "cuda" else None)


def occupy_gpu() -> None:
    """Launch a kernel of some hours. The host continues until it waits for it."""
    torch.cuda._sleep(1 << 45)  # type: ignore[no-untyped-call]  # as torch has it


_END_SECONDS = 10.0


def pose_as_machine(rank: int, world_size: int, port: int) -> None:
    """Act as the only rank of a machine, for a job whose store is at this local port."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"NCCL_HOSTID": f"machine-{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}


def free_port() -> int:
    """Port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run_on_one_gpu(plan: ParallelPlan, *, out: str | os.PathLike[str], run: str, **options: Any) -> WorkloadResult:
    """What `run_workload` does and returns, for rank 0. When a rank fails, or this is interrupted, all are killed.

    Raises:
        UsageError: the run directory holds something: launched ranks would add to it.
        UnreachableError: a rank died.
        StepscopeError: what a rank refused.
    """
    folder = Path(out) / run
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError("holds something", where=str(folder), what_next="choose another folder")
    context, port = get_context("spawn"), free_port()
    pipes = [context.Pipe(duplex=False) for _ in range(plan.world_size)]
    ranks = [
        context.Process(
            target=_be_rank, args=(theirs, os.getpid(), rank, plan, port, {"out": out, "run": run, **options})
        )
        for rank, (_, theirs) in enumerate(pipes)
    ]
    try:
        for rank, (_, theirs) in zip(ranks, pipes, strict=True):
            rank.start()
            theirs.close()
        results = results_of([ours for ours, _ in pipes])
        for rank in ranks:
            rank.join(_END_SECONDS)
        return results[0]
    finally:
        for rank in ranks:
            if rank.pid is not None:
                rank.kill()
                rank.join()


def results_of(pipes: list[connection.Connection]) -> list[WorkloadResult]:
    """Results of all ranks, in rank order."""
    results: dict[int, WorkloadResult] = {}
    while len(results) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        for pipe in connection.wait(list(waiting)):
            assert isinstance(pipe, connection.Connection)
            rank = waiting[pipe]
            try:
                result = pipe.recv()
            except EOFError:
                raise UnreachableError(f"rank {rank} died; its own output says why") from None
            if isinstance(result, StepscopeError):
                raise result
            results[rank] = result
    return [results[rank] for rank in range(len(pipes))]


def _be_rank(
    pipe: connection.Connection, parent: int, rank: int, plan: ParallelPlan, port: int, options: dict[str, Any]
) -> None:
    die_with(parent)
    pose_as_machine(rank, plan.world_size, port)
    try:
        pipe.send(run_workload(plan, **options))
    except StepscopeError as error:
        pipe.send(error)
