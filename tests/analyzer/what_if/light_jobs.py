"""Simulated jobs of one GPU: their light captures, and their steps without the profiler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean

from stepscope.analyzer.what_if.light_capture import LONGEST_QUEUE, LightCapture
from stepscope.analyzer.what_if.light_replay import BETWEEN_KERNELS_NS, LAUNCH_LATENCY_NS, LightReplay
from tests.analyzer.build import COMMUNICATION_STREAM, COMPUTE_STREAM, TraceBuilder

_OWN_NS = 3_000
_NUM_STEPS = 7


@dataclass(frozen=True)
class Op:
    """Host time, then a call: a launch, or one that blocks; times in us."""

    host: int
    kind: str = "kernel"
    gpu: int = 0
    stream: int = COMPUTE_STREAM
    after_stream: int | None = None


def simulated(ops: Iterable[Op], cost_us: float = 0.0) -> tuple[TraceBuilder, list[int], list[int]]:
    """Trace of some steps of these operations with a cost of each call; the ends of the steps, also on the GPU."""
    trace = TraceBuilder(ns=1)
    host = 1_000_000
    free: dict[int, int] = {}
    begun: list[int] = []
    ends, finished = [host], [host]
    for _ in range(_NUM_STEPS):
        for op in ops:
            host += round(1e3 * op.host)
            if op.kind == "no call":
                continue
            call, own = host, _OWN_NS + round(1e3 * cost_us)
            if op.kind in ("sync", "free"):
                host = max(host, *free.values(), 0) + own
                trace.runtime("cudaFree" if op.kind == "free" else "cudaDeviceSynchronize", call, host)
                continue
            if len(begun) >= LONGEST_QUEUE:
                host = max(host, begun[-LONGEST_QUEUE])
            waits = op.kind == "read"
            host += 0 if waits else own
            start = max(free.get(op.stream, 0) + BETWEEN_KERNELS_NS, host + LAUNCH_LATENCY_NS)
            if op.after_stream is not None:
                start = max(start, free.get(op.after_stream, 0))
            end = free[op.stream] = start + 1000 * op.gpu
            begun.append(start)
            if waits:
                host = end + own
                trace.copy(start, end, launch=call, launch_end=host, stream=op.stream)
            elif op.kind == "collective":
                trace.collective("allreduce", start, end, launch=call, group=(0, 1), stream=op.stream)
            else:
                trace.kernel(start, end, launch=call, launch_end=host, stream=op.stream)
        ends.append(host)
        finished.append(max(host, *free.values()))
    return trace, ends, finished


def unprofiled_ms(ops: Iterable[Op]) -> float:
    """Mean step without the profiler, in steady state."""
    _, _, finished = simulated(ops)
    return mean(later - earlier for earlier, later in pairwise(finished[2:])) / 1e6


def without(ops: Iterable[Op], kind: str) -> list[Op]:
    """The operations without such calls; the host time before them stays."""
    return [replace(op, kind="no call") if op.kind == kind else op for op in ops]


def light_capture(ops: Iterable[Op], cost_us: float) -> LightReplay:
    trace, ends, _ = simulated(ops, cost_us)
    return LightReplay([LightCapture(trace.build(), ends)])


HOST_BOUND = [Op(12, gpu=2)] * 40
GPU_BOUND = [Op(1, gpu=30)] * 400
READS = [*[Op(6, gpu=20)] * 30, Op(5, "read", 2), *[Op(20, gpu=5)] * 10]
SYNCHRONIZES = [*[Op(6, gpu=20)] * 30, Op(5, "sync"), *[Op(20, gpu=5)] * 30]
FREES = [*[Op(6, gpu=20)] * 30, Op(40, "free"), *[Op(20, gpu=5)] * 30]
TWO_STREAMS = [
    *[Op(8, gpu=20)] * 20,
    Op(5, "collective", 400, COMMUNICATION_STREAM, COMPUTE_STREAM),
    Op(5, gpu=10, after_stream=COMMUNICATION_STREAM),
    Op(5, "sync"),
]
