"""Training script of a case, for `stepscope run -- torchrun ... -m benchmarks.several_gpus.script NAME`.

It knows nothing of stepscope: the loop of the case with its faults, as many steps as the default captures need.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.labelled_runs.job import Bench, Job
from benchmarks.labelled_runs.measurement import num_profiled_steps
from benchmarks.ranks import barrier


class NoClock:
    """Clock of a loop that nobody times."""

    options: dict[str, Any] | None = None

    def data(self, loader: Iterable[Any]) -> Iterable[Any]:
        return loader

    def step(self, *, is_useful: bool = True) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--table", required=True, help="jobs by name, as module:name")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if options.device != "cpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if options.device == "cpu" else "nccl")
    torch.manual_seed(rank)
    scratch = options.folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    job: Job = pkgutil.resolve_name(options.table)[options.name]
    bench = Bench(device, options.tiny, scratch, rank, num_ranks)
    with bench.at_end:
        job.make(bench).train(num_profiled_steps(job), frozenset(fault.name for fault in job.faults), NoClock())
    barrier(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
