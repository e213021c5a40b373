"""Can this machine's processors train a job, as they must where there is no GPU?"""

from __future__ import annotations

import os

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.estimate.flops import step_flops
from stepscope.reference_workloads.estimate.memory import memory_by_rank
from stepscope.reference_workloads.estimate.scope import refuse_unknown
from stepscope.reference_workloads.job import TrainingJob
from stepscope.workflow.processes import free_memory_bytes

_GIB = 1024**3
_TERA = 1e12
_MOST_FLOPS = 1e13
"""Of a step that processors are given unasked: some minutes of a few cores."""


def refuse_on_processors(job: TrainingJob, *, is_asked_for: bool, is_rank: bool = False) -> None:
    """Nothing is refused on GPUs, whose allocator tells, nor where no estimate knows the job.

    Args:
        is_asked_for: the user has said that processors are to train it.
        is_rank: a launcher started this process as one rank; of how many here, LOCAL_WORLD_SIZE tells.

    Raises:
        UsageError: a step would take minutes and nobody asked for that, or the machine would run out of memory, and end
            whatever the kernel chooses.
    """
    if job.device_type != "cpu" or not _is_known(job):
        return
    flops = step_flops(job.preset, job.recipe).executed
    if not is_asked_for and flops > _MOST_FLOPS:
        raise UsageError(
            f"torch finds no GPU here, and a step of {job.preset.name} is {flops / _TERA:,.0f} TFLOP: minutes or hours "
            "for processors",
            what_next="use --preset tiny, or --device cpu to insist",
        )
    needed, free = _bytes_on_this_machine(job, is_rank=is_rank), free_memory_bytes()
    if free is not None and needed > free:
        raise UsageError(
            f"{job.preset.name} on processors takes {needed / _GIB:,.1f} GiB of this machine, which has "
            f"{free / _GIB:,.1f} GiB free",
            what_next="use --preset tiny, or a machine with GPUs",
        )


def _is_known(job: TrainingJob) -> bool:
    try:
        refuse_unknown(job.plan, job.preset)
    except UsageError:
        return False
    return True


def _bytes_on_this_machine(job: TrainingJob, *, is_rank: bool) -> float:
    num_ranks = _ranks_here() if is_rank else job.plan.world_size
    mean = sum(rank.peak_bytes for rank in memory_by_rank(job.plan, job.preset, job.recipe)) / job.plan.pp
    return mean * num_ranks


def _ranks_here() -> int:
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if told.isascii() and told.isdigit() else 1
