"""One rank of a training job under torchrun that is killed at given steps and resumes from its checkpoint.

Usage: goodput_training.py FOLDER, which has job.json; see goodput.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import stepscope
from stepscope.training import once

_CHECKPOINT = "checkpoint.pt"


def main() -> None:
    """Train, note the end of each step, and be killed."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, attempt = dist.get_rank(), len(list(folder.glob("killed-*")))  # a start that fails counts as a restart
    dist.barrier()
    weight = torch.ones(64, 64, requires_grad=True)
    step = 0
    if (folder / _CHECKPOINT).exists():
        state = torch.load(folder / _CHECKPOINT)
        step = state["step"]
        weight.data.copy_(state["weight"])
    kill_at, killed = job["kills"][attempt] if attempt < len(job["kills"]) else (-1, ())
    clock = os.open(folder / f"clock-{attempt}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with stepscope.profile(out=folder / "runs", schedule=once(wait=10**6), first_step=step) as prof:
        os.write(clock, f"\n{step} {time.time():.6f}".encode())  # a start that fails leaves a line of its own
        while step < job["num_steps"]:
            (weight @ weight).sum().backward()  # type: ignore[no-untyped-call]
            assert weight.grad is not None
            time.sleep(job["step_ms"] / 1e3)
            dist.all_reduce(weight.grad)
            weight.grad = None
            prof.step()
            os.write(clock, f" {time.time():.6f}".encode())
            if step == kill_at and rank in killed:
                (folder / f"killed-{attempt}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            step += 1
            if step % job["every"] == 0:
                _save({"step": step, "weight": weight}, folder, rank)
    dist.destroy_process_group()


def _save(state: dict[str, object], folder: Path, rank: int) -> None:
    if rank == 0:
        torch.save(state, folder / f".{_CHECKPOINT}")
        (folder / f".{_CHECKPOINT}").rename(folder / _CHECKPOINT)
    dist.barrier()


if __name__ == "__main__":
    main()
