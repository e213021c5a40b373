"""One rank of a small data-parallel training on gloo, which ends when the file `stop` appears in its folder.

Usage: gloo_training.py RUNS_FOLDER STOP_FOLDER [slow_step], with RANK and WORLD_SIZE set.
While the file `slow` is there, rank 1's steps take 0.3 s more.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it unsaid

import stepscope
from stepscope.training import once, slow_step


def _store(folder: Path, rank: int) -> TCPStore:
    """Rank 0's, at a port that the kernel chooses: one chosen before may be another process's by now."""
    file = folder / "port"
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (folder / ".port").write_text(str(store.port))
        (folder / ".port").rename(file)
        return store
    while not file.exists():
        time.sleep(0.02)
    return TCPStore("127.0.0.1", int(file.read_text()), is_master=False)


def main() -> None:
    """Train."""
    logging.basicConfig(level=logging.WARNING)
    runs, folder = Path(sys.argv[1]), Path(sys.argv[2])
    rule = slow_step(times=3, steps=2, most=1) if "slow_step" in sys.argv else None
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=_store(folder, rank), rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    weight = torch.ones(32, 32, requires_grad=True)
    stop = torch.zeros(1)
    with stepscope.profile("r", runs, once(wait=1, active=1), capture_when=rule) as prof:
        while not stop.item():
            (weight @ weight).sum().backward()  # type: ignore[no-untyped-call]
            assert weight.grad is not None
            dist.all_reduce(weight.grad)
            time.sleep(0.03 if rule else 0.005)
            if rank == 1 and (folder / "slow").exists():
                time.sleep(0.3)
            if rank == 0 and (folder / "stop").exists():
                stop.fill_(1)
            dist.all_reduce(stop)
            prof.step(loss=float(rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
