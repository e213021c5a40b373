"""What did this rank's communicators do last? Written when a rank fails, where its recorder is on."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C import _distributed_c10d as recorder
from torch.distributed import distributed_c10d

from stepscope.core.run_layout import flight_path
from stepscope.reference_workloads.job import TrainingJob

logger = logging.getLogger(__name__)


def set_patience(groups: Iterable[dist.ProcessGroup | None], seconds: float) -> None:
    """How long a rank waits in these groups (None: the default one); else it is torch's own ten or thirty minutes."""
    for group in groups:
        distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def dump_flight(job: TrainingJob, rank: int) -> None:
    """Write gloo's flight recorder; NCCL's watchdog writes its own. Does nothing where recording is off."""
    if job.device_type != "cpu" or not os.environ.get("TORCH_FR_DUMP_TEMP_FILE"):
        return
    try:
        content = recorder._dump_fr_trace()  # type: ignore[attr-defined]  # torch's stubs lack it
        Path(job.out, job.run, flight_path(rank)).write_bytes(content)
    except (AttributeError, OSError, RuntimeError) as error:  # the failure itself matters more
        logger.warning("no flight recorder of rank %d: %s", rank, error)
