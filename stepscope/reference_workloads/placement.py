"""Placement of a job: devices, a launcher's ranks, whether CPU and host memory suffice, and its own run directory."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile

from stepscope.core.errors import DataError, UsageError
from stepscope.core.text.numbers import counted
from stepscope.reference_workloads.estimate.flops import step_flops
from stepscope.reference_workloads.estimate.memory import memory_by_rank
from stepscope.reference_workloads.estimate.pipeline import refuse_not_estimated
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.workflow.fan_out.engine import free_memory_bytes

_KINETO_SILENT = "99"
_UNSET = "unset it to train on this machine, or start with torchrun"


def is_launched_rank(plan: ParallelPlan) -> bool:
    """Whether torchrun or Slurm started this process as one rank of the workload.

    Raises:
        UsageError: the launcher's variables do not match this plan.
    """
    if not {"RANK", "WORLD_SIZE"} <= set(os.environ):
        return False
    numbers = {variable: _number(variable) for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    plan.check_world(numbers["WORLD_SIZE"])
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise UsageError(f"a job of {numbers['WORLD_SIZE']} has no rank {numbers['RANK']}", where="RANK")
    missing = [variable for variable in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(variable)]
    if missing:
        raise UsageError(f"RANK and WORLD_SIZE are set, but not {' and '.join(missing)}", what_next=_UNSET)
    return True


def is_main_rank() -> bool:
    """Whether this process of a workload prints and writes: rank 0, or the only process.

    Raises:
        UsageError: RANK is not a number.
    """
    rank = _number("RANK")
    return rank == 0 or "WORLD_SIZE" not in os.environ


def refuse_launcher(what: str) -> None:
    """Reference workload: refuse to start its ranks where a launcher has started this process.

    `what` is the command that would start them.

    Raises:
        UsageError: it has.
    """
    if "RANK" in os.environ:
        raise UsageError(
            f"is set by a launcher, and {what} starts its own ranks",
            where="RANK",
            what_next="start it once, without torchrun, or unset it",
        )


def _number(variable: str) -> int:
    text = os.environ.get(variable, "0")
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"is not a rank or size: {text!r}", where=variable, what_next=_UNSET)
    return int(text)


def device_type_of(device: str, plan: ParallelPlan, simulate_compute_ms: float, *, is_rank: bool) -> str:
    """Device type that a workload trains on, "cpu" or "cuda", for "cpu", "cuda" or "auto".

    Raises:
        UsageError: there is no such device here, there are too few, or layers would sleep on one.
    """
    if device not in {"auto", "cpu", "cuda"}:
        raise UsageError(f'a device is "auto", "cpu" or "cuda", not {device!r}')
    # From 2.13 on torch's profiler writes two lines a capture and rank into the progress on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", _KINETO_SILENT)
    import torch

    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device here", what_next="use --device cpu")
    if simulate_compute_ms:
        raise UsageError(
            "simulated compute makes CPU ranks act as devices; this machine has GPUs", what_next="use --device cpu"
        )
    if not is_rank and plan.world_size > torch.cuda.device_count():
        raise UsageError(
            f"the plan needs {counted(plan.world_size, 'GPU')}, this machine has {torch.cuda.device_count()}",
            what_next="use --device cpu or smaller sizes",
        )
    return "cuda"


_GIB = 1024**3
_TERA = 1e12
_MAX_FLOPS = 1e13
"""Largest step that runs on CPUs unless the user chose them: some minutes of a few cores."""


def refuse_on_processors(job: TrainingJob, *, is_asked_for: bool, is_rank: bool = False) -> None:
    """Refuse a workload that this machine's CPUs or memory cannot carry; GPU jobs pass.

    Args:
        is_asked_for: the user chose the CPU explicitly.
        is_rank: a launcher started this process as one rank; of how many here, LOCAL_WORLD_SIZE tells.

    Raises:
        UsageError: a step would take minutes and nobody asked for that, or the machine would run out of memory, and end
            whatever the kernel chooses.
    """
    if job.device_type != "cpu" or not _is_known(job):
        return
    flops = step_flops(job.preset, job.recipe).executed
    if not is_asked_for and flops > _MAX_FLOPS:
        raise UsageError(
            f"torch finds no GPU here, and a step of {job.preset.name} is {flops / _TERA:,.0f} TFLOP: minutes or hours "
            "on CPUs",
            what_next="use --preset tiny, or --device cpu to insist",
        )
    num_ranks = _ranks_here() if is_rank else job.plan.world_size
    mean = sum(rank.peak_bytes for rank in memory_by_rank(job.plan, job.preset, job.recipe)) / job.plan.pp
    needed, free = mean * num_ranks, free_memory_bytes()
    if free is not None and needed > free:
        raise UsageError(
            f"{job.preset.name} on the CPU takes {needed / _GIB:,.1f} GiB of this machine, which has "
            f"{free / _GIB:,.1f} GiB free",
            what_next="use --preset tiny, or a machine with GPUs",
        )


def _is_known(job: TrainingJob) -> bool:
    try:
        refuse_not_estimated(job.plan, job.preset)
    except UsageError:
        return False
    return True


def _ranks_here() -> int:
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(text)) if text.isascii() and text.isdigit() else 1


_HOLDS_SOMETHING = {errno.ENOTEMPTY, errno.EEXIST}


@contextmanager
def claimed_run_directory(wanted: Path, first_folder: str, *, may_be_numbered: bool) -> Iterator[Path]:
    """Reference workload: claim a run directory for one run; removed again if it stays empty after a failure.

    Args:
        wanted: absent, or empty.
        first_folder: what it has in it from the start on, which is what tells others that it is taken.
        may_be_numbered: where it is taken, the first free one of <name>-2, <name>-3, ... will do.

    Raises:
        UsageError: it holds something: another run has it.
        DataError: it cannot be made or written.
    """
    was_there = wanted.exists()
    run_directory = _take(wanted, first_folder, may_be_numbered=may_be_numbered)
    try:
        yield run_directory
    except BaseException:
        with suppress(OSError):  # it holds something
            (run_directory / first_folder).rmdir()
            if run_directory != wanted or not was_there:
                run_directory.rmdir()
        raise


def share_run_directory(run_directory: Path) -> None:
    """Make the run directory that all ranks of a launched workload share, also at its second start.

    Raises:
        DataError: it cannot be made or written.
    """
    with naming_option(run_directory, "--out"):
        run_directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=run_directory) as file:
            file.write(b"1")


def _take(wanted: Path, first_folder: str, *, may_be_numbered: bool) -> Path:
    with naming_option(wanted, "--out"):
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            run_directory = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            if _appears(run_directory, first_folder):
                return run_directory
            if not may_be_numbered:
                raise UsageError("the run directory is not empty", where=str(wanted), what_next="choose another name")
    raise AssertionError("count has no end")


def _appears(run_directory: Path, first_folder: str) -> bool:
    """Whether it is ours now: a folder that holds something is moved over an empty one at once, and over no other."""
    beside = run_directory.resolve().parent
    with tempfile.TemporaryDirectory(prefix=f".{run_directory.name[:100]}-", dir=beside) as made:
        whole = Path(made) / "run"
        (whole / first_folder).mkdir(parents=True)
        try:
            whole.rename(run_directory.resolve())  # a link may lead to it
        except OSError as error:
            if error.errno not in _HOLDS_SOMETHING:
                raise
            return False
        return True


@contextmanager
def naming_option(folder: Path, option: str) -> Iterator[None]:
    """Reference workload: turn errors of writing into one that names the option for its folder.

    Raises:
        DataError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise DataError(
            f"cannot be written ({why})", where=str(folder), what_next=f"choose another {option}"
        ) from error
