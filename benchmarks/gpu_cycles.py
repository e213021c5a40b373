"""How many cycles did the SMs really have? By their own counters, read by a kernel. Needs a GPU.

NVML tells the clock that is set. While tensor cores are at work, SMs have some 10 % fewer cycles than that.
"""

from __future__ import annotations

import torch
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
        """Launch a reading on the current stream: each SM's cycles so far, 0 where it was not reached.

        Returns:
            (SMs,) int64, in the host's memory: filled once the stream is past it, without waiting for what comes after.
        """
        cycles = torch.zeros(self._num_sms, dtype=torch.int64, pin_memory=True)
        self._kernel(grid=(self._num_sms, 1, 1), block=(_THREADS, 1, 1), args=[cycles])
        return cycles


def mean_of(cycles: Tensor) -> float:
    """Mean of the SMs' counters; NaN where one was not reached."""
    return float(cycles.double().mean()) if bool(cycles.all()) else float("nan")
