"""Has this machine the memory for a job whose ranks train on its processors?"""

from __future__ import annotations

import os

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.estimate.memory import memory_by_rank
from stepscope.reference_workloads.estimate.scope import refuse_unknown
from stepscope.reference_workloads.job import TrainingJob
from stepscope.workflow.processes import free_memory_bytes

_GIB = 1024**3


def refuse_without_room(job: TrainingJob, *, is_rank: bool = False) -> None:
    """Nothing is refused on GPUs, whose allocator tells, nor where no estimate knows the job.

    Args:
        is_rank: a launcher started this process as one rank; of how many here, LOCAL_WORLD_SIZE tells.

    Raises:
        UsageError: the machine would run out of memory, and end whatever the kernel chooses.
    """
    free = free_memory_bytes() if job.device_type == "cpu" else None
    needed = _bytes_on_this_machine(job, is_rank=is_rank)
    if free is not None and needed is not None and needed > free:
        raise UsageError(
            f"{job.preset.name} on processors takes {needed / _GIB:,.1f} GiB of this machine, which has "
            f"{free / _GIB:,.1f} GiB free",
            what_next="use --preset tiny, or a machine with GPUs",
        )


def _bytes_on_this_machine(job: TrainingJob, *, is_rank: bool) -> float | None:
    try:
        refuse_unknown(job.plan, job.preset)
    except UsageError:
        return None
    num_ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1) if is_rank else job.plan.world_size
    mean = sum(rank.peak_bytes for rank in memory_by_rank(job.plan, job.preset, job.recipe)) / job.plan.pp
    return mean * num_ranks
