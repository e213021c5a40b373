"""Train with all ranks on the first GPU, each as if alone on a machine: they talk as over TCP. For machines of one GPU.

NCCL refuses two ranks on a GPU of one host, so each rank is told to be on another.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.reference_workloads.launch import WorkloadResult, run_workload
from stepscope.reference_workloads.plan import ParallelPlan


def pose_as_machine(rank: int, world_size: int, port: int) -> None:
    """Be the one rank of a machine, for a job whose store is at this port here."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"NCCL_HOSTID": f"machine-{rank}", "NCCL_SOCKET_IFNAME": "lo"}


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run_on_one_gpu(plan: ParallelPlan, **options: Any) -> WorkloadResult:
    """What `run_workload` does and returns, for rank 0.

    Raises:
        StepscopeError: as `run_workload`; the first of any rank. The others are killed.
    """
    port = free_port()
    with ProcessPoolExecutor(plan.world_size, get_context("spawn")) as pool:
        ranks = [pool.submit(_train, rank, plan, port, options) for rank in range(plan.world_size)]
        failed = [rank for rank in wait(ranks, return_when=FIRST_EXCEPTION).done if rank.exception() is not None]
        if failed:
            for process in list(pool._processes.values()):
                with suppress(OSError):
                    process.kill()
            error = failed[0].exception()
            raise error if isinstance(error, StepscopeError) else StepscopeError(f"a rank failed: {error!r}")
        return ranks[0].result()


def _train(rank: int, plan: ParallelPlan, port: int, options: dict[str, Any]) -> WorkloadResult:
    pose_as_machine(rank, plan.world_size, port)
    return run_workload(plan, **options)
