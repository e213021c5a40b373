"""Rank of a pool: a process with one GPU that serves all cases of a call, one after another."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.labelled_runs.job import Bench, Job
from benchmarks.labelled_runs.measurement import BareSteps, measure, measure_apart
from benchmarks.ranks import barrier
from benchmarks.several_gpus.agent_cost import measure_agent_cost
from stepscope.reference_workloads.processes import die_with

STACKS, STACKS_SIGNAL = "rank{}.stacks", signal.SIGRTMIN + 3
"""File in the folder of the pool to which a rank writes its stacks when it is sent the signal."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank runs.

    Attributes:
        jobs: table of jobs by name, as `module:name`.
        folder: of the pool, with its store.
        imports: what its cases import, as `module` or `module:name`.
    """

    rank: int
    num_ranks: int
    device: str
    jobs: str
    folder: Path
    imports: tuple[str, ...] = ()
    is_tiny: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """What all ranks of a pool do next.

    Attributes:
        kind: measure (blocks and a profiled run), blocks, agent_cost, or meet (a barrier, after a failure).
        job: name.
        folder: where the run and its truth go.
        apart: bare steps that were measured before.
        sets: of faults, for blocks.
        agent: its process and port.
    """

    kind: str
    job: str = ""
    folder: Path = Path()
    apart: Mapping[frozenset[str], BareSteps] = field(default_factory=dict)
    sets: tuple[frozenset[str], ...] = ()
    agent: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank made of a task.

    Attributes:
        trouble: a traceback, None where all went well.
        result: of the task.
        seconds: it took.
    """

    trouble: str | None
    result: Any
    seconds: float


def serve(pipe: Connection, parent: int, place: RankPlace) -> None:
    """Join the process group, then do tasks until the pipe ends."""
    die_with(parent)
    os.setpgid(0, 0)  # with its loader's workers it is killed as one
    multiprocessing.set_start_method("fork", force=True)  # of workers, as in a process that was not spawned
    stacks = (place.folder / STACKS.format(place.rank)).open("w")
    faulthandler.enable(stacks)  # a crash is told too
    faulthandler.register(STACKS_SIGNAL, file=stacks)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    try:
        missing = _imported(place.imports)
        device = _joined(place)
    except BaseException:
        pipe.send(Answer(traceback.format_exc(), None, time.monotonic() - began))
        return
    gc.collect()
    gc.freeze()  # what the imports left is no job's
    pipe.send(Answer(None, missing, time.monotonic() - began))
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            break
        began, trouble, result = time.monotonic(), None, None
        try:
            with _as_before(device):
                result = _done(task, place, device)
        except BaseException:
            trouble = traceback.format_exc()
        pipe.send(Answer(trouble, result, time.monotonic() - began))
    sys.stdout.flush()
    os._exit(0)  # peers may be gone: no destructor of a group may wait for them


def _imported(names: tuple[str, ...]) -> list[str]:
    """Import what the cases need; returns what cannot be: its cases will say so."""
    missing = []
    for name in names:
        try:
            pkgutil.resolve_name(name)
        except Exception as error:
            missing.append(f"{name}: {type(error).__name__}: {error}")
    return missing


def _joined(place: RankPlace) -> torch.device:
    rank, num_ranks = str(place.rank), str(place.num_ranks)
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    if place.device == "cpu":
        device, backend = torch.device("cpu"), "gloo"
    else:
        torch.cuda.set_device(place.rank)
        device, backend = torch.device("cuda", place.rank), "nccl"
    store = f"file://{place.folder.absolute()}/store"
    dist.init_process_group(backend, init_method=store, rank=place.rank, world_size=place.num_ranks)
    dist.all_reduce(torch.ones(1 << 20, device=device))  # links the ranks
    barrier(device)
    return device


def _done(task: Task, place: RankPlace, device: torch.device) -> Any:
    barrier(device)
    if task.kind == "meet":
        return None
    torch.manual_seed(place.rank)
    scratch = task.folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as at_end:
        bench = Bench(device, place.is_tiny, scratch, place.rank, place.num_ranks, at_end)
        if task.kind == "agent_cost":
            return measure_agent_cost(bench, task.agent)
        job: Job = pkgutil.resolve_name(place.jobs)[task.job]
        if task.kind == "blocks":
            return measure_apart(job, bench, task.sets)
        truth = measure(job, bench, task.folder, task.apart) | {"num_ranks": place.num_ranks}
    if place.rank == 0:
        (task.folder / "truth.json").write_text(json.dumps({job.name: truth}, indent=1))
    return truth


@contextlib.contextmanager
def _as_before(device: torch.device) -> Iterator[None]:
    """Give back what a case took, and what it set for its process."""
    environment, outputs = dict(os.environ), (sys.stdout, sys.stderr)
    precision, benchmark = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.stdout, sys.stderr = outputs
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = benchmark
        if (state := sys.modules.get("accelerate.state")) is not None:
            state.AcceleratorState._reset_state(reset_partial_state=True)
            state.GradientState._reset_state()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
