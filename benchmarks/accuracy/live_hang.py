"""Accuracy of live hang detection: real jobs, hung on purpose or healthy; the guilty rank must be reported in time.

    nice python -m benchmarks.accuracy.live_hang [--hangs 20] [--at-once 1] [--healthy-minutes 10] [--ranks 8] [-o DIR]
    nice python -m benchmarks.accuracy.live_hang --backend nccl --ranks 2 --hangs 7 --at-once 4
        --healthy-minutes 7.5 [-o DIR]

Each job is hung on purpose after some steps; the agent's parts listen in their own process. A report is right if it
names exactly the guilty ranks within 30 s of the stop. Beside them a healthy job trains, in which rank 0 writes a
checkpoint for a minute, announced and not, evaluates, and all ranks wait for a compiler. NCCL's ranks do not notice
that a peer has died; gloo's do, so they are stopped instead. With nccl each rank of a job needs a GPU of its own;
jobs take turns on them, and one more fault is a kernel that never ends. Logs of ranks are in their runs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import stepscope
from benchmarks.ranks import FOR_EVER, barrier, device_of, end, forked, occupy_gpu, running, wait
from stepscope.agent.hangs.hang_detection import HangSource
from stepscope.agent.polling import ScheduledSource
from stepscope.agent.training_link.server import TrainingServer

GOAL_SECONDS = 30.0
_GIVEN_UP_SECONDS = 60.0
_STARTS_WITHIN_SECONDS = 240.0
_ENDS_WITHIN_SECONDS = 90.0
_HEALTHY = "healthy"


@dataclass(frozen=True)
class Call:
    """Report of a hang: guilty ranks, time and reporter."""

    seconds: float
    ranks: tuple[int, ...]


def main() -> int:
    """Print the table; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hangs", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1, help="number of parallel hung jobs")
    parser.add_argument("--healthy-minutes", type=float, default=10.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="folder in which the runs are kept")
    options = parser.parse_args()
    output: Path = options.output or Path(tempfile.mkdtemp())
    output.mkdir(parents=True, exist_ok=True)
    os.environ["STEPSCOPE_AGENT_SOCKET"] = f"@stepscope-live-hang-{os.getpid()}"
    told = output / "agent.jsonl"
    agent = forked(partial(run_agent, told))
    healthy_job = Job(_HEALTHY, options.ranks, (), 0, options.healthy_minutes * 60, options.backend)
    healthy = begin_job(healthy_job, output) if options.healthy_minutes else []
    healthy_ends = time.monotonic() + healthy_job.seconds + _ENDS_WITHIN_SECONDS
    jobs = [(job, output / f"{index:02}-{job.fault}") for index, job in enumerate(_drawn(options))]
    right, false, agents_seconds = 0, 0, []
    try:
        for begin in range(0, options.hangs, options.at_once):
            for job, by_agent, by_training in _hung(jobs[begin : begin + options.at_once], told):
                is_right = by_agent is not None and by_agent.ranks == job.guilty and by_agent.seconds <= GOAL_SECONDS
                right += is_right
                agents_seconds += [by_agent.seconds] if by_agent is not None else []
                said = f"agent {_words(by_agent)}; training {_words(by_training)}"
                print(f"{job.fault:10} guilty {job.guilty}: {'right' if is_right else 'WRONG'}: {said}", flush=True)
        if healthy:
            false = _false_alarms(healthy, output, told, healthy_ends - time.monotonic())
    finally:
        end([*healthy, agent])
    if agents_seconds:
        seconds = f"{statistics.median(agents_seconds):.0f} s, at most {max(agents_seconds):.0f} s"
        print(f"{right} of {options.hangs} reported right within {GOAL_SECONDS:.0f} s; median {seconds}")
    if options.healthy_minutes:
        print(f"{false} false alarms in {options.healthy_minutes:g} minutes of healthy training")
    if options.output is None:
        shutil.rmtree(output)
    return 0 if right == options.hangs and not false else 1


def _drawn(options: argparse.Namespace) -> Iterator[Job]:
    """Jobs to be hung, faults in turn, the rest drawn."""
    left_out = set() if options.ranks > 2 else {"calls_other", "two_sleep"}
    left_out |= {"kernel"} if options.backend == "gloo" else set()
    faults = [fault for fault in _DRAWN if fault not in left_out]
    chance = random.Random(options.seed)
    for index in range(options.hangs):
        fault = faults[index % len(faults)]
        guilty = tuple(sorted(chance.sample(range(options.ranks), FAULTS[fault])))
        yield Job(fault, options.ranks, guilty, 10 + chance.randrange(10), 0.0, options.backend)


def _hung(jobs: list[tuple[Job, Path]], told: Path) -> Iterator[tuple[Job, Call | None, Call | None]]:
    """The first calls of the agent and of training itself, for each of the jobs that run side by side."""
    ranks = [process for job, folder in jobs for process in begin_job(job, folder)]
    try:
        wait(lambda: all((folder / "stopped").exists() for _, folder in jobs), _STARTS_WITHIN_SECONDS)
        for job, folder in jobs:
            yield job, *_calls(job, folder, told)
    finally:
        end(ranks)


def _calls(job: Job, folder: Path, told: Path) -> tuple[Call | None, Call | None]:
    if not (folder / "stopped").exists():
        print(f"{folder.name} has not reached its step; see {folder}", file=sys.stderr, flush=True)
        return None, None
    stopped = (folder / "stopped").stat().st_mtime
    calls: list[Call | None] = [None, None]

    def has_both() -> bool:
        calls[:] = call_of_agent(told, folder.name, stopped), call_of_training(folder, job.world_size, stopped)
        return None not in calls

    wait(has_both, stopped + _GIVEN_UP_SECONDS - time.time())
    return calls[0], calls[1]


def _false_alarms(healthy: list[int], output: Path, told: Path, seconds: float) -> int:
    """Calls in healthy training, and one more where it does not come to its end within so many seconds."""

    def is_over() -> bool:
        healthy[:] = running(healthy)
        return not healthy

    wait(is_over, seconds)
    lines = [line for line in _lines(told) if line["run"] == _HEALTHY]
    by_training = call_of_training(output / _HEALTHY, 1 << 10, 0.0)
    return len(lines) + (by_training is not None) + bool(healthy)


def begin_job(job: Job, output: Path) -> list[int]:
    folder = output / _HEALTHY if job.fault == _HEALTHY else output
    folder.mkdir(parents=True)
    return [forked(partial(train, job, rank, folder)) for rank in range(job.world_size)]


def run_agent(told: Path) -> None:
    """The agent's own parts: its socket and its source of hangs."""
    logging.basicConfig(filename=told.with_suffix(".log"), format="%(asctime)s %(message)s")
    known: set[str] = set()
    with TrainingServer(os.environ["STEPSCOPE_AGENT_SOCKET"]) as server:
        hangs = ScheduledSource("hangs", HangSource(server.ranks), interval=1.0)
        with hangs, told.open("a") as file:
            while True:
                for finding in hangs.state().collection.findings:
                    if finding.message not in known:
                        known.add(finding.message)
                        line = {"time": time.time(), "message": finding.message, **dict(finding.labels)}
                        file.write(json.dumps(line) + "\n")
                        file.flush()
                time.sleep(0.1)


def call_of_agent(told: Path, run: str, stopped: float) -> Call | None:
    for line in _lines(told):
        if line["run"] == run:
            return Call(line["time"] - stopped, tuple(int(rank) for rank in line["ranks"].split(",") if rank))
    return None


def call_of_training(folder: Path, world_size: int, stopped: float) -> Call | None:
    """The first line "training hangs" of any rank."""
    found = []
    for log in sorted(folder.glob("rank*.log"))[:world_size]:
        for line in log.read_text().splitlines():
            if "training hangs" in line:
                found.append((float(line.split()[0]), line))
    if not found:
        return None
    at, line = min(found)
    return Call(at - stopped, tuple(ranks_in(line.split("): ", 1)[1])))


def ranks_in(message: str) -> list[int]:
    """ "ranks 1-2, 5 never ..." -> [1, 2, 5]."""
    ranks: list[int] = []
    for word in message.split()[1:]:
        first, _, last = word.rstrip(",").replace("\u2013", "-").partition("-")
        if not first.isdigit():
            break
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def _words(call: Call | None) -> str:
    return "none" if call is None else f"{list(call.ranks)} after {call.seconds:.0f} s"


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
    "swaps": 1,
}
"""With how many guilty ranks. A kernel that never ends needs a GPU. Who swaps calls two groups in the other order."""

_DRAWN = tuple(fault for fault in FAULTS if fault != "swaps")


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
    """Train as one rank, in its own process; its log goes into `folder`."""
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
    twin = dist.new_group(list(range(job.world_size)), group_desc="twin") if job.fault == "swaps" else None
    never = stepscope.once(wait=1 << 30)
    try:
        with stepscope.profile(folder.name, folder.parent, schedule=never) as prof:
            _loop(job, rank, folder, prof, device, group, twin)
    except RuntimeError:
        logging.exception("training ended")
        time.sleep(FOR_EVER)
    barrier(device)


def _loop(
    job: Job,
    rank: int,
    folder: Path,
    prof: stepscope.Profile,
    device: torch.device,
    group: dist.ProcessGroup,
    twin: dist.ProcessGroup | None,
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
            if twin is not None:
                is_other = rank in job.guilty and step == job.step
                if is_other:
                    _note(folder)
                for one in (None, twin) if is_other else (twin, None):
                    dist.all_reduce(tensor, group=one)
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


if __name__ == "__main__":
    raise SystemExit(main())
