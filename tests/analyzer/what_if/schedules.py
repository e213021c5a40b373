"""Independent simulation of a small training job on an ideal machine, written as traces.

Each step of a rank loads data, launches kernels with host work between them, reduces gradients with all other ranks,
and launches an optimizer kernel that waits for them; the host may wait for the device at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.analyzer.build import GEMM, TraceBuilder

LAUNCH_US = 2
OPTIMIZER_US = 50


FIRST_STEP = 5


@dataclass(frozen=True)
class Step:
    """One step of one rank, microseconds.

    Attributes:
        kernels: (host work before the launch, time on the device, name).
        transfer: of the reduction; the same on all ranks.
    """

    loader: int
    kernels: tuple[tuple[int, int, str], ...]
    transfer: int
    checkpoint: int = 0


@dataclass(frozen=True)
class Schedule:
    """A job; `steps[rank][number]`. With `blocking` the host waits for the device at the end of each step."""

    steps: tuple[tuple[Step, ...], ...]
    blocking: bool = False

    def each(self, change: Callable[[Step], Step]) -> Schedule:
        """The same with every step changed."""
        return replace(self, steps=tuple(tuple(change(step) for step in own) for own in self.steps))


def plain_step(*kernels: tuple[int, int], loader: int = 0, transfer: int = 30, checkpoint: int = 0) -> Step:
    return Step(loader, tuple((host, device, GEMM) for host, device in kernels), transfer, checkpoint)


@dataclass
class _Rank:
    trace: TraceBuilder
    host: int = 0
    compute: int = 0
    communication: int = 0


def run(schedule: Schedule) -> tuple[list[TraceBuilder], list[list[int]]]:
    """The traces, and each rank's whole steps in microseconds (from first kernel to first kernel)."""
    ranks = [_Rank(TraceBuilder(rank=r, world_size=len(schedule.steps))) for r in range(len(schedule.steps))]
    boundaries: list[list[int]] = [[] for _ in ranks]
    for number in range(len(schedule.steps[0])):
        own = [steps[number] for steps in schedule.steps]
        begun = [rank.host for rank in ranks]
        arrivals = []
        for place, (rank, step) in enumerate(zip(ranks, own, strict=True)):
            boundaries[place].append(_forward(rank, step))
            arrivals.append(_ready(rank))
        met = max(max(start, rank.communication) for rank, (_, start) in zip(ranks, arrivals, strict=True))
        for rank, step, (launch, start), begin in zip(ranks, own, arrivals, begun, strict=True):
            _reduce(rank, launch, max(start, rank.communication), met + step.transfer, len(ranks))
            _optimize(rank, step, blocking=schedule.blocking)
            rank.trace.step(number + FIRST_STEP, begin, rank.host)
    whole = [[end - start for start, end in pairwise(own)] for own in boundaries]
    return [rank.trace for rank in ranks], whole


def _forward(rank: _Rank, step: Step) -> int:
    """Load, launch the kernels; when the first of them started."""
    if step.loader:
        loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        rank.trace.annotation(loading, rank.host, rank.host + step.loader)
    rank.host += step.loader
    first = None
    for host, device, name in step.kernels:
        rank.host += host
        start = max(rank.host + LAUNCH_US, rank.compute)
        rank.trace.kernel(start, start + device, launch=rank.host, launch_end=rank.host + LAUNCH_US, name=name)
        rank.host += LAUNCH_US
        rank.compute = start + device
        first = start if first is None else first
    assert first is not None
    return first


def _ready(rank: _Rank) -> tuple[int, int]:
    """When the reduction is launched, and when it could start."""
    rank.trace.runtime("cudaEventRecord", rank.host, rank.host + 1)
    rank.trace.runtime("cudaStreamWaitEvent", rank.host + 1, rank.host + 2)
    launch = rank.host + 2
    rank.host = launch + 1  # the builder's communication calls take a microsecond
    return launch, max(rank.host, rank.compute)


def _reduce(rank: _Rank, launch: int, start: int, end: int, num_ranks: int) -> None:
    rank.trace.collective("allreduce", start, end, launch=launch, group=tuple(range(num_ranks)))
    rank.communication = end
    rank.trace.runtime("cudaStreamWaitEvent", rank.host, rank.host + 1)
    rank.host += 1


def _optimize(rank: _Rank, step: Step, *, blocking: bool) -> None:
    start = max(rank.host + LAUNCH_US, rank.compute, rank.communication)
    launch_end = rank.host + LAUNCH_US
    rank.trace.kernel(start, start + OPTIMIZER_US, launch=rank.host, launch_end=launch_end, name="adam")
    rank.compute = start + OPTIMIZER_US
    rank.host = launch_end
    if blocking:
        end = max(rank.host, rank.compute)
        rank.trace.runtime("cudaDeviceSynchronize", rank.host, end + 1)
        rank.host = end + 1
    if step.checkpoint:
        rank.trace.annotation("checkpoint", rank.host, rank.host + step.checkpoint)
        rank.host += step.checkpoint


def fastest(steps: Sequence[Step]) -> Step:
    """The step in which each kernel takes what it takes on the fastest rank."""
    kernels = tuple(
        (own[0], min(step.kernels[place][1] for step in steps), own[2]) for place, own in enumerate(steps[0].kernels)
    )
    return replace(steps[0], kernels=kernels)
