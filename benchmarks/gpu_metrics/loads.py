"""Work of known size for GPUs, with the time it was done and the cycles of the SMs.

python -m benchmarks.gpu_metrics.loads RANK RANKS FOLDER SECONDS     a rank of all-reduces, which waits for a line first

NVML reports the configured clock. While tensor cores work, SMs have about 10% fewer cycles than that, so a kernel reads
their own counters.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_SOURCE = """
extern "C" __global__ void read_cycles(long long* cycles) {
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    long long now = clock64();
    while (clock64() < now + 40000) {}  // until every SM has its block
    if (threadIdx.x == 0) cycles[sm] = now;
}
"""
_THREADS = 1024


class CycleCounter:
    """Reads the counters of the device that was current when it was made.

    Raises:
        RuntimeError: the kernel cannot be compiled.
    """

    def __init__(self) -> None:
        self._num_sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._kernel = torch.cuda._compile_kernel(_SOURCE, "read_cycles")

    def read(self) -> Tensor:
        """Launch a reading on the current stream: cycle counter of each SM, 0 if it was not reached.

        Returns:
            (SMs,) int64, in the host's memory: filled once the stream is past it, without waiting for what comes after.
        """
        cycles = torch.zeros(self._num_sms, dtype=torch.int64, pin_memory=True)
        self._kernel(grid=(self._num_sms, 1, 1), block=(_THREADS, 1, 1), args=[cycles])
        return cycles


def mean_of(cycles: Tensor) -> float:
    """Mean of the SMs' counters; NaN where one was not reached."""
    return float(cycles.double().mean()) if bool(cycles.all()) else float("nan")


_BURST_SECONDS = 0.05
_CALIBRATION = 5
ALL_REDUCE_MIB = (256, 1024)


class Load(NamedTuple):
    """Unit of work that can be repeated.

    Attributes:
        launch: does it once, on the device that is current.
        amount: FLOP or bytes of it.
    """

    launch: Callable[[], object]
    amount: float


class Work(NamedTuple):
    """Work that was done, evenly over this time, in seconds since the epoch.

    Attributes:
        cycles: what an SM's counter said at the end, the mean of all; NaN where it was not read.
    """

    begin: float
    end: float
    amount: float
    cycles: float = float("nan")


def done_within(work: list[Work], begin: float, end: float) -> float:
    """How much of it was done in this time."""
    shares = ((max(0.0, min(end, one.end) - max(begin, one.begin)), one) for one in work)
    return sum(one.amount * seconds / (one.end - one.begin) for seconds, one in shares if one.end > one.begin)


def cycles_within(work: list[Work], begin: float, end: float) -> float:
    """Cycles that an SM had in this time, rest included; NaN where they were not read from before it until after it."""
    read = [one for one in work if not math.isnan(one.cycles)]
    if not read or begin < read[0].end or end > read[-1].end:
        return float("nan")
    cycles = 0.0
    for earlier, later in itertools.pairwise(read):
        seconds = min(end, later.end) - max(begin, earlier.end)
        if seconds > 0:
            cycles += (later.cycles - earlier.cycles) * seconds / (later.end - earlier.end)
    return cycles


def matmul(size: int) -> Load:
    """Square product of random bf16."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    return Load(lambda: torch.mm(a, b, out=product), 2.0 * size**3)


def copy(num_bytes: int) -> Load:
    """Copy within the GPU's memory: each byte is read and written."""
    source = torch.zeros(num_bytes // 4, device="cuda")
    target = torch.empty_like(source)
    return Load(lambda: target.copy_(source), 2.0 * num_bytes)


def read(num_bytes: int) -> Load:
    """A sum: each byte is read."""
    source = torch.zeros(num_bytes // 4, device="cuda")
    return Load(source.sum, float(num_bytes))


def to_gpu(num_bytes: int) -> Load:
    """Copy from pinned memory of the host."""
    source = torch.zeros(num_bytes // 4, pin_memory=True)
    target = torch.empty(num_bytes // 4, device="cuda")
    return Load(lambda: target.copy_(source, non_blocking=True), float(num_bytes))


def from_gpu(num_bytes: int) -> Load:
    """Copy to pinned memory of the host."""
    source = torch.zeros(num_bytes // 4, device="cuda")
    target = torch.empty(num_bytes // 4, pin_memory=True)
    return Load(lambda: target.copy_(source, non_blocking=True), float(num_bytes))


def seconds_of(load: Load) -> float:
    """Seconds that one repetition takes."""
    load.launch()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(_CALIBRATION):
        load.launch()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / _CALIBRATION


def run(load: Load, seconds: float, duty: float = 1.0) -> list[Work]:
    """Bursts of some 50 ms with rest between them, on the current device; at a duty of 1 always one more is queued."""
    count = max(1, round(_BURST_SECONDS / seconds_of(load)))
    work: list[Work] = []
    counter = CycleCounter()
    queued: deque[tuple[float, Any, torch.Tensor]] = deque()
    ended = time.time()

    def wait_for_oldest() -> None:
        nonlocal ended
        launched, event, cycles = queued.popleft()
        event.synchronize()
        begin, ended = max(launched, ended), time.time()
        work.append(Work(begin, ended, load.amount * count, mean_of(cycles)))

    until = ended + seconds
    while time.time() < until:
        launched, event = time.time(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        for _ in range(count):
            load.launch()
        queued.append((launched, event, counter.read()))
        event.record()
        if duty < 1.0:
            wait_for_oldest()
            time.sleep((work[-1].end - work[-1].begin) * (1.0 / duty - 1.0))
        elif len(queued) > 1:
            wait_for_oldest()
    while queued:
        wait_for_oldest()
    return work


def run_on_all(make: Callable[[], Load], seconds: float, duty: float = 1.0) -> list[list[Work]]:
    """`run` on all GPUs at the same time, from a thread each; what each has done."""

    def on_one(index: int) -> list[Work]:
        with torch.cuda.device(index):
            return run(make(), seconds, duty)

    with ThreadPoolExecutor(torch.cuda.device_count()) as pool:
        work = list(pool.map(on_one, range(torch.cuda.device_count())))
    torch.cuda.empty_cache()
    return work


def _all_reduces(mib: int, seconds: float) -> list[Work]:
    """All ranks do as many: rank 0 tells how many bursts of how many there are. Amount: what each sends, and receives,
    in a ring."""
    tensor = torch.zeros(mib * 1024**2 // 4, device="cuda")
    num_ranks = dist.get_world_size()
    load = Load(lambda: dist.all_reduce(tensor), mib * 1024**2 * 2.0 * (num_ranks - 1) / num_ranks)
    seconds_of(load)  # the first ones set up their channels
    each = seconds_of(load)
    count = max(1, round(_BURST_SECONDS / each))
    agreed = torch.tensor([count, max(1, round(seconds / (count * each)))], device="cuda")
    dist.broadcast(agreed, 0)
    count, num_bursts = agreed.tolist()
    work: list[Work] = []
    began = time.time()
    for _ in range(num_bursts):
        for _ in range(count):
            load.launch()
        torch.cuda.synchronize()
        ended = time.time()
        work.append(Work(began, ended, load.amount * count))
        began = ended
    return work


def _rank(rank: int, num_ranks: int, folder: Path, seconds: float) -> None:
    if not sys.stdin.readline():
        return
    torch.cuda.set_device(rank)
    rendezvous = f"file://{folder / 'rendezvous'}"
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=rendezvous, rank=rank, world_size=num_ranks, device_id=device)
    told = {mib: _all_reduces(mib, seconds) for mib in ALL_REDUCE_MIB}
    (folder / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    _rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
