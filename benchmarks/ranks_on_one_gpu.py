"""Train with all ranks on the first GPU, each as if alone on a machine: they talk as over TCP. For machines of one GPU.

NCCL refuses two ranks on a GPU of one host, so each rank is told to be on another.
"""

from __future__ import annotations

import os
import socket
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from stepscope.core.errors import StepscopeError, UnreachableError, UsageError
from stepscope.reference_workloads.launch import WorkloadResult, run_workload
from stepscope.reference_workloads.orphans import die_with
from stepscope.reference_workloads.plan import ParallelPlan

_END_SECONDS = 10.0


def pose_as_machine(rank: int, world_size: int, port: int) -> None:
    """Be the one rank of a machine, for a job whose store is at this port here."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"NCCL_HOSTID": f"machine-{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}


def free_port() -> int:
    """One that nobody listens at."""
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
    """Of all ranks, in their order."""
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
