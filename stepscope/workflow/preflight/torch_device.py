"""Device measured with torch: a GPU, or the CPU where the code is tried. Changes no settings of the GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stepscope.collectors.host.machine import parse_cpu_list
from stepscope.workflow.preflight import device as answers

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_PERIOD = 97
"""Of the numbers that are summed up: no two neighbours alike, and every sum exact in float32."""


class CudaStopwatch:
    """Preflight's clock by CUDA events, all queued before the first is waited for: launches cost host time only."""

    def times(self, work: Callable[[], object], num_runs: int) -> list[float]:
        """See `Stopwatch`; on the current stream of the current device."""
        event: Any = torch.cuda.Event  # it has no types
        edges = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(num_runs)]
        for begin, end in edges:
            begin.record()
            work()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in edges]


class HostStopwatch:
    """Preflight's clock of the host, for work that is done when its call returns."""

    def times(self, work: Callable[[], object], num_runs: int) -> list[float]:
        """See `Stopwatch`."""
        times = []
        for _ in range(num_runs):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        return times


class TorchDevice:
    """A device that a preflight measures with torch, or all that a process sees.

    The parent calls its methods by name, with their arguments as JSON (`worker_process`). A call may raise
    UnsupportedError; anything else is the device's failure.

    Args:
        device_type: "cuda" or "cpu".
    """

    def __init__(self, device_type: str) -> None:
        self._is_cuda = device_type == "cuda"
        self._device = torch.device("cuda:0" if self._is_cuda else "cpu")
        self._stopwatch = CudaStopwatch() if self._is_cuda else HostStopwatch()
        # sums of a split product are not rounded to 16 bits in between: what is exact stays exact
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def describe(self, beside: str = "") -> answers.WorkerDescription:
        """The devices that this process sees.

        Args:
            beside: PCI address of a GPU next to which this process runs from now on; empty: anywhere.
        """
        versions = {"torch": str(torch.__version__)}
        if not self._is_cuda:
            return answers.WorkerDescription(versions, [answers.DeviceFacts(0, "CPU", "")])
        versions |= {"cuda": torch.version.cuda} if torch.version.cuda else {}
        versions |= {"hip": torch.version.hip} if torch.version.hip else {}
        if not torch.cuda.is_available():
            return answers.WorkerDescription(versions, [])
        if beside:
            _run_beside(beside)
        return answers.WorkerDescription(versions, [_facts(index) for index in range(torch.cuda.device_count())])

    def copy(self, num_bytes: int, pace: answers.Pace) -> answers.Timing:
        """Copy within the device's memory."""
        return self._transfer(self._filled(num_bytes), self._device, pace)

    def upload(self, num_bytes: int, pace: answers.Pace) -> answers.Timing:
        """Copy from pinned host memory to the device."""
        self._check_host()
        return self._transfer(self._filled(num_bytes).cpu().pin_memory(), self._device, pace)

    def download(self, num_bytes: int, pace: answers.Pace) -> answers.Timing:
        """Copy from the device to pinned host memory."""
        self._check_host()
        return self._transfer(self._filled(num_bytes), torch.device("cpu"), pace)

    def multiply(self, dtype: str, size: int, pace: answers.Pace) -> answers.Timing:
        """Multiply two square matrices of normally distributed numbers.

        Args:
            dtype: one of `DTYPES` of core.documents.machine_checks.
        """
        return answers.time_runs(self._stopwatch, normal_product(dtype, size, self._device), pace)

    def check_products(self, dtype: str, size: int, num_repeats: int) -> answers.ProductErrors:
        """Repeat one product, and make one whose exact result is known."""
        differing = count_differing(normal_product(dtype, size, self._device), num_repeats)
        return answers.ProductErrors(num_repeats, differing, count_wrong(dtype, size, self._device))

    def copy_to_peer(self, source: int, target: int, num_bytes: int, pace: answers.Pace) -> answers.Timing:
        """Copy from one visible device to another.

        torch copies on the source's current stream, by direct access where there is any.
        """
        if not self._is_cuda:
            raise answers.UnsupportedError("the CPU has no peers")
        with torch.cuda.device(source):
            sent = torch.arange(num_bytes // 4, dtype=torch.int32, device=f"cuda:{source}")
            received = torch.zeros_like(sent, device=f"cuda:{target}")
            timing = answers.time_runs(self._stopwatch, lambda: received.copy_(sent, non_blocking=True), pace)
        expected = torch.arange(num_bytes // 4, dtype=torch.int32, device=f"cuda:{target}")
        return replace(timing, num_wrong=4 * int((received != expected).sum()))

    def join(self, rank: int, world_size: int, path: str, seconds: float) -> None:
        """Meet the others; a group from before is left.

        Args:
            path: of a file that is not there yet.
            seconds: how long to wait for the others.

        Raises:
            UnsupportedError: torch was built without what it takes.
        """
        if not dist.is_available() or not (dist.is_nccl_available() if self._is_cuda else dist.is_gloo_available()):
            raise answers.UnsupportedError(f"this torch was built without {'NCCL' if self._is_cuda else 'gloo'}")
        if not self._is_cuda and Path("/sys/class/net/lo").exists():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are here; a host name may not resolve
        dist.init_process_group(
            "nccl" if self._is_cuda else "gloo",
            init_method=f"file://{path}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=seconds),
            device_id=self._device if self._is_cuda else None,
        )

    def all_reduce(self, num_bytes: int, num_warm: int, num_runs: int) -> answers.Timing:
        """Sum up so often, on all members alike; the time is this member's, waiting for the others included."""
        zeros = torch.zeros(num_bytes // 4, dtype=torch.float32, device=self._device)
        self._stopwatch.times(lambda: dist.all_reduce(zeros), num_warm)
        timing = answers.timing_of(self._stopwatch.times(lambda: dist.all_reduce(zeros), num_runs))
        pattern = torch.arange(num_bytes // 4, device=self._device).remainder_(_PERIOD)
        summed = (pattern + dist.get_rank()).float()
        dist.all_reduce(summed)
        size = dist.get_world_size()
        expected = (pattern * size + size * (size - 1) // 2).float()
        num_wrong = int((summed != expected).sum())
        dist.destroy_process_group()
        return replace(timing, num_wrong=num_wrong)

    def _filled(self, num_bytes: int) -> torch.Tensor:
        """Numbers that are not all alike: memory compresses none of it."""
        return torch.randint(-(2**31), 2**31 - 1, (num_bytes // 4,), dtype=torch.int32, device=self._device)

    def _check_host(self) -> None:
        if not self._is_cuda:
            raise answers.UnsupportedError("the CPU's memory is the host's")

    def _transfer(self, source: torch.Tensor, to: torch.device, pace: answers.Pace) -> answers.Timing:
        """Copy; memory of the host is pinned where there is a GPU."""
        is_pinned = self._is_cuda and to.type == "cpu"
        target = torch.zeros(source.shape, dtype=source.dtype, device=to, pin_memory=is_pinned)
        timing = answers.time_runs(self._stopwatch, lambda: target.copy_(source, non_blocking=True), pace)
        return replace(timing, num_wrong=4 * int((target != source.to(to)).sum()))


def _facts(index: int) -> answers.DeviceFacts:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))  # from torch 2.4 on
    return answers.DeviceFacts(index, properties.name, uuid)


def _run_beside(pci_bus_id: str) -> None:
    """Run on the cores next to the GPU, so that its host memory is there too; where it is not known, anywhere."""
    try:
        text = (_PCI_DEVICES / pci_bus_id[-12:].lower() / "local_cpulist").read_text()
        near = (parse_cpu_list(text) or frozenset()) & os.sched_getaffinity(0)
        if near:
            os.sched_setaffinity(0, near)
    except OSError:
        return


_TYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "tfloat32": torch.float32,
    "float32": torch.float32,
    "float8": torch.float8_e4m3fn,
}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHECKED_ROWS = 8
_SEED = 20


def normal_product(dtype: str, size: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """Preflight's product of two square matrices, always the same.

    They are normally distributed, as weights and activations are: zeros and whole numbers draw less power.

    Raises:
        UnsupportedError: the device has no units for this type.
    """
    generator = torch.Generator(device).manual_seed(_SEED)
    left, right = (torch.randn(size, size, generator=generator, device=device) for _ in range(2))
    return _product_of(dtype, left, right)


def count_differing(product: Callable[[], torch.Tensor], num_repeats: int) -> int:
    """Number of repeats of a preflight's product that are not bit for bit the first.

    Args:
        product: may give its result in the same memory each time.
        num_repeats: after the first.
    """
    first = _bits(product()).clone()
    return sum(not torch.equal(first, _bits(product())) for _ in range(num_repeats))


def count_wrong(dtype: str, size: int, device: torch.device) -> int:
    """Wrong elements of a preflight's product of -1, 0 and 1.

    All its sums are whole numbers far below 2 ** 24, so that every order of summation and every unit gives the same
    bits once rounded to the result's type. It is compared with the float32 product, which other units make, and rows
    of that one with the host's in float64.

    Raises:
        UnsupportedError: the device has no units for this type.
    """
    generator = torch.Generator(device).manual_seed(_SEED)
    left, right = (torch.randint(-1, 2, (size, size), generator=generator, device=device).float() for _ in range(2))
    result = _product_of(dtype, left, right, fast=False)()
    exact = _product_of("float32", left, right)()
    rows = torch.arange(0, size, max(1, size // _CHECKED_ROWS))
    on_host = left[rows.to(device)].cpu().double() @ right.cpu().double()
    wrong_rows = (exact[rows.to(device)].cpu().double() != on_host).sum()
    return int((result != exact.to(result.dtype)).sum()) + int(wrong_rows)


def _bits(result: torch.Tensor) -> torch.Tensor:
    """The result as whole numbers, so that two NaN of the same bits are equal."""
    return result.view(_BITS[result.element_size()])


def _product_of(
    dtype: str, left: torch.Tensor, right: torch.Tensor, *, fast: bool = True
) -> Callable[[], torch.Tensor]:
    """
    Args:
        dtype: a word of `core.preflight.DTYPES`.
        left, right: float32.
        fast: whether float8 products may be summed up in fewer bits than float32 has.
    """
    _check_units(dtype, left.device)
    if dtype == "float8":
        return _scaled_product_of(left, right, fast=fast)
    left, right = left.to(_TYPES[dtype]), right.to(_TYPES[dtype])
    result = torch.empty_like(left)
    precision = "high" if dtype == "tfloat32" else "highest"

    def product() -> torch.Tensor:
        torch.set_float32_matmul_precision(precision)
        return torch.matmul(left, right, out=result)

    return product


def _scaled_product_of(left: torch.Tensor, right: torch.Tensor, *, fast: bool) -> Callable[[], torch.Tensor]:
    """cuBLASLt takes the second factor by columns, one scale a matrix, and gives bfloat16."""
    first, second = left.to(_TYPES["float8"]), right.t().contiguous().to(_TYPES["float8"]).t()
    one = torch.ones((), dtype=torch.float32, device=left.device)
    return lambda: torch._scaled_mm(
        first, second, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def _check_units(dtype: str, device: torch.device) -> None:
    if device.type == "cpu":
        if dtype in ("tfloat32", "float8"):
            raise answers.UnsupportedError("the CPU has no units for it")
        return
    if torch.version.hip:
        if dtype in ("tfloat32", "float8"):
            raise answers.UnsupportedError("not measured on AMD GPUs")
        return
    if dtype == "float8" and torch.__version__ < "2.5":
        raise answers.UnsupportedError("torch has such products from 2.5 on")
    capability = torch.cuda.get_device_capability(device)
    least = {"bfloat16": (8, 0), "tfloat32": (8, 0), "float8": (8, 9), "float16": (7, 0)}.get(dtype, (0, 0))
    if capability < least:
        raise answers.UnsupportedError(f"compute capability {capability[0]}.{capability[1]} has no units for it")
