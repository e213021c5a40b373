"""How fast do the processes of a group sum up, and is the sum right? NCCL on GPUs, gloo on CPUs."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from stepscope.workflow.preflight.device import Timing, UnsupportedError
from stepscope.workflow.preflight.timing import Stopwatch, timing_of

_PERIOD = 97
"""Of the numbers that are summed up: no two neighbours alike, and every sum exact in float32."""


class TorchGroup:
    """This process in its group."""

    def __init__(self, device: torch.device, stopwatch: Stopwatch) -> None:
        self._device = device
        self._stopwatch = stopwatch

    def join(self, rank: int, world_size: int, path: str, seconds: float) -> None:
        """Meet the others; a group from before is left.

        Args:
            rank: this process's place.
            world_size: how many there are.
            path: of a file that is not there yet.
            seconds: how long to wait for the others.

        Raises:
            UnsupportedError: torch was built without what it takes.
        """
        is_cuda = self._device.type == "cuda"
        if not dist.is_available() or not (dist.is_nccl_available() if is_cuda else dist.is_gloo_available()):
            raise UnsupportedError(f"this torch was built without {'NCCL' if is_cuda else 'gloo'}")
        if not is_cuda and Path("/sys/class/net/lo").exists():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are here; a host name may not resolve
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            init_method=f"file://{path}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=seconds),
            device_id=self._device if is_cuda else None,
        )

    def all_reduce(self, num_bytes: int, num_warm: int, num_runs: int) -> tuple[Timing, int]:
        """Sum up so often, on all members alike; the time is this member's, waiting for the others included."""
        zeros = torch.zeros(num_bytes // 4, dtype=torch.float32, device=self._device)
        self._stopwatch.times(lambda: dist.all_reduce(zeros), num_warm)
        timing = timing_of(self._stopwatch.times(lambda: dist.all_reduce(zeros), num_runs))
        pattern = torch.arange(num_bytes // 4, device=self._device).remainder_(_PERIOD)
        summed = (pattern + dist.get_rank()).float()
        dist.all_reduce(summed)
        size = dist.get_world_size()
        expected = (pattern * size + size * (size - 1) // 2).float()
        num_wrong = int((summed != expected).sum())
        dist.destroy_process_group()
        return timing, num_wrong
