"""Independent simulation of data-parallel GPUs that accumulate gradients, all ranks alike, on an ideal machine."""

from __future__ import annotations

from dataclasses import dataclass

from tests.analyzer.build import TraceBuilder

_NUM_STEPS, _FIRST_STEP, _LAUNCH_US = 4, 5, 2


@dataclass(frozen=True, slots=True)
class DeviceExchange:
    """Steps of a job; times are microseconds.

    Attributes:
        buckets: what the reduction of each takes, and its elements.
        compute: of the backward pass before each bucket; the forward pass takes as much in all.
        copies: of the gradients into a bucket, and of all back.
        reducing: the last so many of the passes reduce the gradients.
    """

    buckets: tuple[tuple[int, int], ...]
    compute: int = 2_000
    copies: int = 100
    passes: int = 1
    reducing: int = 1
    num_ranks: int = 2


class _Gpu:
    def __init__(self, rank: int, size: int) -> None:
        self.trace = TraceBuilder(rank=rank, world_size=size)
        self.group = tuple(range(size))
        self.host = self.compute = self.communication = 0

    def kernel(self, name: str, duration: int) -> int:
        """Launch a kernel; returns its start."""
        start = max(self.host + _LAUNCH_US, self.compute)
        self.trace.kernel(start, start + duration, launch=self.host, launch_end=self.host + _LAUNCH_US, name=name)
        self.host += _LAUNCH_US
        self.compute = start + duration
        return start

    def under(self, span: str, name: str, duration: int) -> int:
        """Launch a kernel inside of an operator's span; returns the kernel's start."""
        begin = self.host
        self.host += 1
        start = self.kernel(name, duration)
        self.host += 1
        self.trace.operator(span, begin, self.host)
        return start

    def reduce(self, takes: int, elements: int) -> None:
        self.trace.runtime("cudaEventRecord", self.host, self.host + 1)
        self.trace.runtime("cudaStreamWaitEvent", self.host + 1, self.host + 2)
        launch = self.host + 2
        self.host = launch + 1
        start = max(self.host, self.compute, self.communication)
        end = start + takes
        self.trace.collective("allreduce", start, end, launch=launch, group=self.group, elements=elements)
        self.communication = end

    def await_reductions(self) -> None:
        self.trace.runtime("cudaStreamWaitEvent", self.host, self.host + 1)
        self.host += 1
        self.compute = max(self.compute, self.communication)


def run(job: DeviceExchange) -> tuple[list[TraceBuilder], float]:
    """The traces, and the mean whole step from first kernel to first kernel, ms."""
    gpus = [_Gpu(rank, job.num_ranks) for rank in range(job.num_ranks)]
    bounds: list[int] = []
    for number in range(_NUM_STEPS):
        for gpu in gpus:
            begin = gpu.host
            starts = [_pass(job, gpu, reduces=place >= job.passes - job.reducing) for place in range(job.passes)]
            gpu.trace.annotation("Optimizer.step#Adam.step", gpu.host, gpu.host + 6)
            gpu.host += 1
            gpu.kernel("adam", 300)
            gpu.host += 10
            gpu.trace.step(_FIRST_STEP + number, begin, gpu.host)
        bounds.append(starts[0])
    return [gpu.trace for gpu in gpus], (bounds[-1] - bounds[0]) / (len(bounds) - 1) / 1e3


def _pass(job: DeviceExchange, gpu: _Gpu, *, reduces: bool) -> int:
    begin = gpu.host
    gpu.host += 1
    first = gpu.kernel("gemm_forward", job.compute * len(job.buckets))
    gpu.host += 1
    gpu.trace.annotation("DistributedDataParallel.forward", begin, gpu.host)
    for takes, elements in job.buckets:
        gpu.kernel("gemm_backward", job.compute)
        if reduces:
            gpu.under("torch::distributed::reducer::mul_out", "copy_in", job.copies)
            gpu.reduce(takes, elements)
    if reduces:
        gpu.await_reductions()
        gpu.under("torch.distributed.ddp.reducer::copy_bucket_to_grad", "copy_out", job.copies)
    return first
