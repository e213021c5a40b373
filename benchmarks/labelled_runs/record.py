"""Recording of the labelled runs: each job in processes of its own, results in tar files that are whole at any time.

`python -m benchmarks.labelled_runs.record --lane LANE --out DIR [--only NAME...] [--minutes N]
[--cores 0-7]`, to try the code on any machine with `--device cpu --tiny`. A job of CPUs is forked from a process that
has imported everything, which saves most of its start, and tried once more in a fresh Python if it fails; those imports
leave no CUDA to a fork, so a job of a GPU begins fresh. Of the lanes `calls` and `headroom` the next jobs import while
one has the device.
"""

from __future__ import annotations

import os

# Before torch is imported: a fork must not have touched the driver, and ranks must not compete for cores.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host, whose name may not resolve
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")

import argparse
import gc
import importlib
import json
import logging
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.labelled_runs.archive import pack
from benchmarks.labelled_runs.call_jobs import CALL_JOBS
from benchmarks.labelled_runs.communication_jobs import COMMUNICATION_JOBS, EXCHANGE_JOBS
from benchmarks.labelled_runs.cpu_jobs import CPU_JOBS
from benchmarks.labelled_runs.gpu_jobs import GPU_JOBS
from benchmarks.labelled_runs.headroom_jobs import HEADROOM_JOBS
from benchmarks.labelled_runs.job import Bench, Job
from benchmarks.labelled_runs.measurement import measure
from benchmarks.labelled_runs.rank_jobs import RANK_JOBS
from benchmarks.labelled_runs.turns import in_turns, run_in_turn

_JOB_SECONDS, _RANKS_SECONDS = 60.0, 100.0
"""A job of one process may take, and one of several ranks."""
_IMPORTED = ("transformers", "timm", "lightning.pytorch", "accelerate", "torch_geometric.nn", "torch.distributed.fsdp")
_FROM = {"transformers": ("Trainer", "GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM")}
"""Loaded when they are asked for."""

LANES = {
    "gpu": GPU_JOBS,
    "cpu": CPU_JOBS,
    "calls": CALL_JOBS,
    "ranks": RANK_JOBS,
    "headroom": HEADROOM_JOBS,
    "communication": COMMUNICATION_JOBS,
    "exchange": EXCHANGE_JOBS,
}
IN_TURNS = ("calls", "headroom")
"""Lanes whose next jobs import while one has the device."""


def run_rank(job: Job, rank: int, device: str, folder: Path, *, is_tiny: bool) -> None:
    """Run one rank of a job in this process, rank 0 leaves the truth."""
    warnings.simplefilter("ignore")
    if job.num_ranks > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(job.num_ranks),
            "LOCAL_WORLD_SIZE": str(job.num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29511",
        }
        is_cpu = device == "cpu"
        if not is_cpu:
            device = f"cuda:{rank}"
            torch.cuda.set_device(rank)
        backend = "gloo" if is_cpu else "nccl"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=job.num_ranks)
    torch.manual_seed(rank)
    gc.freeze()  # what the imports of all jobs left is not this job's
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    bench = Bench(torch.device(device), is_tiny, scratch, rank, job.num_ranks)
    truth = measure(job, bench, folder, {})
    if rank == 0:
        (folder / "truth.json").write_text(json.dumps({job.name: truth}, indent=1))


def _forked(job: Job, rank: int, device: str, folder: Path, *, is_tiny: bool) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.setpgid(0, 0)
        run_rank(job, rank, device, folder, is_tiny=is_tiny)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _fresh(job: Job, rank: int, device: str, folder: Path, *, is_tiny: bool) -> int:
    command = [sys.executable, "-m", "benchmarks.labelled_runs.record", "--rank", str(rank), "--only", job.name]
    command += ["--out", str(folder), "--device", device, *(["--tiny"] if is_tiny else [])]
    return subprocess.Popen(command, process_group=0).pid


def run_job(job: Job, device: str, folder: Path, seconds: float, *, is_tiny: bool, is_fresh: bool = False) -> bool:
    """Run a job in processes of its own, for so long at most; whether all ended well."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = _fresh if is_fresh else _forked
    running = {start(job, rank, device, folder, is_tiny=is_tiny) for rank in range(job.num_ranks)}
    everyone, until, is_good = set(running), time.monotonic() + seconds, True
    while running and is_good and time.monotonic() < until:
        for process in list(running):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                running.discard(process)
                is_good = is_good and status == 0
        time.sleep(0.05)
    for process in everyone:
        try:
            os.killpg(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for process in running:
        os.waitpid(process, 0)
    return is_good and not running


def record(lane: str, out: Path, only: list[str], minutes: float, device: str, *, is_tiny: bool) -> int:
    """Record the jobs of a lane; returns how many failed."""
    began, num_failed, is_fresh = time.monotonic(), 0, device != "cpu"
    for name in () if is_fresh or lane in IN_TURNS else _IMPORTED:
        module = importlib.import_module(name)
        for member in _FROM.get(name, ()):
            getattr(module, member)
    work = Path(os.environ.get("TMPDIR", "/tmp")) / f"labelled-{lane}"
    shutil.rmtree(work, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    print(f"{lane}: imported in {time.monotonic() - began:.0f} s", flush=True)
    until = began + minutes * 60
    jobs = [job for job in LANES[lane] if not only or job.name in only]
    if lane in IN_TURNS:
        results = in_turns(jobs, device, lambda job: work / job.name, until, is_tiny=is_tiny)
    else:
        results = _one_by_one(jobs, device, work, until, is_tiny=is_tiny)
    for job, is_good in results:
        num_failed += not is_good
        line = f"{lane}: {job.name} {'failed' if not is_good else 'recorded'} after {time.monotonic() - began:.1f} s"
        if is_good:
            truth = json.loads((work / job.name / "truth.json").read_text())[job.name]
            names = ("bare_ms", "fixed_ms", "headroom_ms", "share", "launch_ms", "bottleneck", "device_seconds")
            figures = {name: truth[name] for name in names if name in truth}
            line += f", {pack(job.name, work / job.name, out, lane)} bytes, {figures}, {truth['blocks_ms']}"
        print(line, flush=True)
        shutil.rmtree(work / job.name, ignore_errors=True)
    return num_failed


def _one_by_one(
    jobs: Sequence[Job], device: str, work: Path, until: float, *, is_tiny: bool
) -> Iterator[tuple[Job, bool]]:
    """Run jobs, each in processes of its own; yields each as it ends, and whether well."""
    for job in jobs:
        started = time.monotonic()
        if (left := until - started) < 10:
            yield job, False
            continue
        folder = work / job.name
        most = _JOB_SECONDS if job.num_ranks == 1 else _RANKS_SECONDS
        is_good = run_job(job, device, folder, min(most, left), is_tiny=is_tiny, is_fresh=device != "cpu")
        if not is_good and time.monotonic() - started < 30 and left > 60:
            is_good = run_job(job, device, folder, min(most, left - 30), is_tiny=is_tiny, is_fresh=True)
        yield job, is_good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lane", choices=LANES, default="gpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="names of jobs")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--cores", help="to run on, as 0-7")
    parser.add_argument("--device", help="cuda or cpu; by default the lane's")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the code")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--in-turn", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--apart", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = options.device or ("cpu" if options.lane in ("cpu", "communication") else "cuda")
    if options.cores:
        first, last = options.cores.split("-")
        os.sched_setaffinity(0, set(range(int(first), int(last) + 1)) & os.sched_getaffinity(0))
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if options.rank is not None:
        job = next(job for jobs in LANES.values() for job in jobs if job.name == options.only[0])
        if options.in_turn or options.apart:
            warnings.simplefilter("ignore")
            run_in_turn(job, device, options.out, is_tiny=options.tiny, apart=options.apart)
        else:
            run_rank(job, options.rank, device, options.out, is_tiny=options.tiny)
        sys.stdout.flush()
        os._exit(0)
    failed = record(options.lane, options.out, options.only, options.minutes, device, is_tiny=options.tiny)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
