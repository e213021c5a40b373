"""One rank of a training on gloo whose batches come slowly while the file `slow` is there, until `stop` is.

Usage: loading_training.py FOLDER, with RANK and WORLD_SIZE set.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

import stepscope
from stepscope.training import once


def _batches(folder: Path) -> Iterator[torch.Tensor]:
    while True:
        time.sleep(0.06 if (folder / "slow").exists() else 0.0)
        yield torch.ones(8)


def main() -> None:
    """Train."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    stop = torch.zeros(1)
    with stepscope.profile("r", folder / "runs", once(wait=10**6)) as prof:
        for _ in prof.data(_batches(folder)):
            time.sleep(0.02)
            stop.fill_(float((folder / "stop").exists()))
            dist.all_reduce(stop)
            prof.step()
            if stop.item():
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
