"""What do the jobs of `live_hang` train, and how are they hung?"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import stepscope
from benchmarks.forked_ranks import FOR_EVER, barrier, device_of, occupy_gpu

_MINUTE = 60.0
_STEP_SECONDS = 0.1

FAULTS: dict[str, int] = {
    "sleeps": 1,
    "holds_lock": 1,
    "stops": 1,
    "dies": 1,
    "leaves": 1,
    "data": 1,
    "two_sleep": 2,
    "calls_other": 1,
    "kernel": 1,
}
"""With how many guilty ranks. A kernel that never ends needs a GPU."""


@dataclass(frozen=True)
class Job:
    """One training job; healthy ones last `seconds`."""

    fault: str
    world_size: int
    guilty: tuple[int, ...]
    step: int
    seconds: float
    backend: str = "gloo"


def train(job: Job, rank: int, folder: Path) -> None:
    """One rank, in a process of its own; what it logs goes into `folder`."""
    logging.basicConfig(filename=folder / f"rank{rank}.log", format="%(created)f %(levelname)s %(message)s", force=True)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job.world_size)}
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    torch.set_num_threads(1)
    device = device_of(job.backend, rank)
    store = f"file://{folder.absolute() / 'store'}"
    dist.init_process_group(
        job.backend, init_method=store, rank=rank, world_size=job.world_size, timeout=timedelta(seconds=FOR_EVER)
    )
    half = [list(range(job.world_size // 2)), list(range(job.world_size // 2, job.world_size))]
    groups = [dist.new_group(ranks, group_desc="half") for ranks in half]
    group = groups[int(rank in half[1])]
    never = stepscope.once(wait=1 << 30)
    try:
        with stepscope.profile(folder.name, folder.parent, schedule=never) as prof:
            _loop(job, rank, folder, prof, device, group)
    except RuntimeError:
        logging.exception("training ended")
        time.sleep(FOR_EVER)
    barrier(device)


def _loop(
    job: Job, rank: int, folder: Path, prof: stepscope.Profile, device: torch.device, group: dist.ProcessGroup
) -> None:
    begin, pauses = time.monotonic(), dict(_PAUSES)
    tensor, model = torch.ones(4096, device=device), torch.nn.Linear(64, 64, device=device)
    for step, batch in enumerate(prof.data(_batches(job, rank, folder))):
        if job.fault in _AT and rank in job.guilty and step == job.step:
            _note(folder)
            if _AT[job.fault]():
                return
        if job.fault == "calls_other" and rank in job.guilty and step == job.step:
            _note(folder)
            barrier(device, group)
        try:
            model(batch.to(device)).sum().backward()
            dist.all_reduce(tensor, group=group)
            dist.all_reduce(torch.tensor([1.0], device=device))
            seconds = time.monotonic() - begin
            is_over = torch.tensor([float(bool(job.seconds) and seconds > job.seconds)], device=device)
            dist.broadcast(is_over, 0)
        except RuntimeError:  # a peer has died: as under NCCL, nobody notices
            logging.info("a peer is gone", exc_info=True)
            time.sleep(FOR_EVER)
        if is_over:
            return
        share = torch.tensor([seconds / job.seconds if job.seconds else 0.0], device=device)
        dist.broadcast(share, 0)
        for at in [at for at in pauses if float(share) > at]:
            pauses.pop(at)(rank, folder, prof)
            barrier(device)
        time.sleep(_STEP_SECONDS)
        prof.step(loss=1.0)


def _batches(job: Job, rank: int, folder: Path) -> Iterator[torch.Tensor]:
    for step in range(1 << 30):
        if job.fault == "data" and rank in job.guilty and step == job.step:
            _note(folder)
            time.sleep(FOR_EVER)
        yield torch.ones(4, 64)


def _note(folder: Path) -> None:
    (folder / "stopped").touch()


def _sleep() -> bool:
    time.sleep(FOR_EVER)
    return True


def _die() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def _stop() -> bool:
    os.kill(os.getpid(), signal.SIGSTOP)
    return True


def _hold_lock() -> bool:
    ctypes.PyDLL(None).sleep(int(FOR_EVER))
    return True


def _occupy() -> bool:
    occupy_gpu()
    return False


_AT: dict[str, Callable[[], bool]] = {
    "sleeps": _sleep,
    "two_sleep": _sleep,
    "holds_lock": _hold_lock,
    "stops": _stop,
    "dies": _die,
    "leaves": lambda: True,
    "kernel": _occupy,
}


def _told_checkpoint(rank: int, _: Path, prof: stepscope.Profile) -> None:
    """Rank 0 waits for a storage that is far away."""
    if rank == 0:
        with prof.phase("checkpoint"):
            time.sleep(_MINUTE)


def _checkpoint(rank: int, folder: Path, _: stepscope.Profile) -> None:
    """Rank 0 writes for a minute, and says nothing."""
    end = time.monotonic() + _MINUTE
    while rank == 0 and time.monotonic() < end:
        torch.save(torch.ones(1 << 20), folder / "weights.pt")


def _compile(_: int, __: Path, ___: stepscope.Profile) -> None:
    """Each rank waits for a process that computes, as torch.compile does for its workers."""
    code = f"import time\nend = time.monotonic() + {_MINUTE / 2}\nwhile time.monotonic() < end: pass"
    subprocess.run(["nice", "-n", "10", sys.executable, "-c", code], check=False)


def _evaluate(rank: int, _: Path, __: stepscope.Profile) -> None:
    """Rank 0 computes."""
    end, model = time.monotonic() + _MINUTE * 0.75, torch.nn.Linear(64, 64)
    while rank == 0 and time.monotonic() < end:
        model(torch.ones(16, 64))


_PAUSES: dict[float, Callable[[int, Path, stepscope.Profile], None]] = {
    0.1: _checkpoint,
    0.3: _told_checkpoint,
    0.5: _compile,
    0.75: _evaluate,
}
"""At which share of a healthy job."""
