"""Small jobs for pools on gloo: one that trains, and some that fail, hang or die."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.labelled_runs.job import Bench, Fault, Job, Loop, Training


def _trains(bench: Bench) -> Training:
    module = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def learn(batch: torch.Tensor, _on: object) -> bool:
        module(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return True

    hooks = {"sleep": lambda _: time.sleep(0.01 * bench.rank)}
    return Loop(learn, lambda num, _: [torch.ones(4, 8)] * num, hooks, kept=os.environ.get("SEVERAL_GPUS_TEST"))


def _on_rank_1(act: Callable[[], object]) -> Callable[[Bench], Training]:
    """A job of which rank 1 acts while the other waits for it."""

    def make(bench: Bench) -> Training:
        if bench.rank == 1:
            act()
        dist.barrier()
        return _trains(bench)

    return make


def _fails() -> None:
    raise ValueError("not on rank 1")


def _fails_everywhere(_bench: Bench) -> Training:
    raise ValueError("on no rank")


_SLEEP = Fault("sleep", ("host_bound", "straggler"), ranks=(1,))

JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job("trains", "DDP, rank 1 sleeps", _trains, (_SLEEP,), num_rounds=1),
        Job("plain", "DDP, nothing wrong", _trains, num_rounds=1),
        Job("fails_everywhere", "all ranks fail", _fails_everywhere),
        Job("fails_on_one", "a rank fails, the other waits", _on_rank_1(_fails)),
        Job("hangs", "a rank sleeps", _on_rank_1(lambda: time.sleep(600))),
        Job("dies", "a rank dies", _on_rank_1(lambda: os._exit(3))),
        Job(
            "by_environment",
            "DDP with a variable",
            _trains,
            (Fault("variable", ("communication",), environment={"SEVERAL_GPUS_TEST": "1"}),),
            num_rounds=1,
        ),
    )
}
