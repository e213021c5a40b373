"""How does torch measure a GPU, or the CPU where the code is tried? Nothing changes the cards' settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stepscope.collectors.host.cpu_sets import parse_cpu_list
from stepscope.workflow.preflight.device import DeviceFacts, Pace, Products, Timing, UnsupportedError
from stepscope.workflow.preflight.timing import time_runs
from stepscope.workflow.preflight.torch_group import TorchGroup
from stepscope.workflow.preflight.torch_products import count_differing, count_wrong, normal_product

_PCI_DEVICES = Path("/sys/bus/pci/devices")


class CudaStopwatch:
    """CUDA events around each run, all queued before the first is waited for: launching costs the host's time only."""

    def times(self, work: Callable[[], object], num_runs: int) -> list[float]:
        """See `timing.Stopwatch`; on the current stream of the current device."""
        event: Any = torch.cuda.Event  # it has no types
        edges = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(num_runs)]
        for begin, end in edges:
            begin.record()
            work()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in edges]


class HostStopwatch:
    """The host's clock, for work that is done when its call returns."""

    def times(self, work: Callable[[], object], num_runs: int) -> list[float]:
        """See `timing.Stopwatch`."""
        times = []
        for _ in range(num_runs):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        return times


class TorchDevice:
    """See `device.Device`."""

    def __init__(self, device_type: str) -> None:
        """
        Args:
            device_type: "cuda" or "cpu".
        """
        self._is_cuda = device_type == "cuda"
        self._device = torch.device("cuda:0" if self._is_cuda else "cpu")
        self._stopwatch = CudaStopwatch() if self._is_cuda else HostStopwatch()
        self._group = TorchGroup(self._device, self._stopwatch)
        # sums of a split product are not rounded to 16 bits in between: what is exact stays exact
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def describe(self, beside: str) -> tuple[dict[str, str], list[DeviceFacts]]:
        """See `device.Device`."""
        versions = {"torch": str(torch.__version__)}
        if not self._is_cuda:
            return versions, [DeviceFacts(0, "CPU", "", 0, 0)]
        versions |= {"cuda": torch.version.cuda} if torch.version.cuda else {}
        versions |= {"hip": torch.version.hip} if torch.version.hip else {}
        if not torch.cuda.is_available():
            return versions, []
        if beside:
            _run_beside(beside)
        return versions, [_facts(index) for index in range(torch.cuda.device_count())]

    def copy(self, num_bytes: int, pace: Pace) -> tuple[Timing, int]:
        """See `device.Device`."""
        return self._transfer(self._filled(num_bytes), self._device, pace)

    def upload(self, num_bytes: int, pace: Pace) -> tuple[Timing, int]:
        """See `device.Device`."""
        self._check_host()
        return self._transfer(self._filled(num_bytes).cpu().pin_memory(), self._device, pace)

    def download(self, num_bytes: int, pace: Pace) -> tuple[Timing, int]:
        """See `device.Device`."""
        self._check_host()
        return self._transfer(self._filled(num_bytes), torch.device("cpu"), pace)

    def multiply(self, dtype: str, size: int, pace: Pace) -> Timing:
        """See `device.Device`."""
        return time_runs(self._stopwatch, normal_product(dtype, size, self._device), pace)

    def check_products(self, dtype: str, size: int, num_repeats: int) -> Products:
        """See `device.Device`."""
        differing = count_differing(normal_product(dtype, size, self._device), num_repeats)
        return Products(num_repeats, differing, count_wrong(dtype, size, self._device))

    def copy_to_peer(self, source: int, target: int, num_bytes: int, pace: Pace) -> tuple[Timing, bool, int]:
        """See `device.Device`. torch copies on the source's current stream, and opens direct access where there is."""
        if not self._is_cuda:
            raise UnsupportedError("the CPU has no peers")
        is_direct = torch.cuda.can_device_access_peer(source, target)
        with torch.cuda.device(source):
            sent = torch.arange(num_bytes // 4, dtype=torch.int32, device=f"cuda:{source}")
            received = torch.zeros_like(sent, device=f"cuda:{target}")
            timing = time_runs(self._stopwatch, lambda: received.copy_(sent, non_blocking=True), pace)
        expected = torch.arange(num_bytes // 4, dtype=torch.int32, device=f"cuda:{target}")
        return timing, is_direct, 4 * int((received != expected).sum())

    def join(self, rank: int, world_size: int, path: str, seconds: float) -> None:
        """See `device.Device`."""
        self._group.join(rank, world_size, path, seconds)

    def all_reduce(self, num_bytes: int, num_warm: int, num_runs: int) -> tuple[Timing, int]:
        """See `device.Device`."""
        return self._group.all_reduce(num_bytes, num_warm, num_runs)

    def _filled(self, num_bytes: int) -> torch.Tensor:
        """Numbers that are not all alike: memory compresses none of it."""
        return torch.randint(-(2**31), 2**31 - 1, (num_bytes // 4,), dtype=torch.int32, device=self._device)

    def _check_host(self) -> None:
        if not self._is_cuda:
            raise UnsupportedError("the CPU's memory is the host's")

    def _transfer(self, source: torch.Tensor, to: torch.device, pace: Pace) -> tuple[Timing, int]:
        """Copy; memory of the host is pinned where there is a GPU."""
        is_pinned = self._is_cuda and to.type == "cpu"
        target = torch.zeros(source.shape, dtype=source.dtype, device=to, pin_memory=is_pinned)
        timing = time_runs(self._stopwatch, lambda: target.copy_(source, non_blocking=True), pace)
        return timing, 4 * int((target != source.to(to)).sum())


def _facts(index: int) -> DeviceFacts:
    told = torch.cuda.get_device_properties(index)
    uuid = str(getattr(told, "uuid", ""))  # from torch 2.4 on
    return DeviceFacts(index, told.name, uuid, told.multi_processor_count, told.total_memory)


def _run_beside(pci_bus_id: str) -> None:
    """Run on the cores next to the GPU, so that its host memory is there too; where it is not known, anywhere."""
    try:
        text = (_PCI_DEVICES / pci_bus_id[-12:].lower() / "local_cpulist").read_text()
        near = (parse_cpu_list(text) or frozenset()) & os.sched_getaffinity(0)
        if near:
            os.sched_setaffinity(0, near)
    except OSError:
        return
