"""Simulated jobs of one rank or several: their light captures, and their steps without the profiler.

Collectives are solved by iteration: all ranks are simulated with assumed ends, which are then those that follow from
their starts, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import mean

from stepscope.analyzer.what_if.light_capture import LONGEST_QUEUE, LightCapture
from stepscope.analyzer.what_if.light_replay import BETWEEN_KERNELS_NS, LAUNCH_LATENCY_NS, LightReplay
from stepscope.analyzer.what_if.planned_calls import COLD_NS
from stepscope.trace.columns import KernelLaunch
from tests.analyzer.build import COMMUNICATION_STREAM, COMPUTE_STREAM, COPY_STREAM, TraceBuilder

_OWN_NS = 3_000
_NUM_STEPS = 7
_PREFETCHER = 9


@dataclass(frozen=True)
class Op:
    """Host time, then a call: a launch, or one that blocks; times in us.

    Attributes:
        gpu: duration of the work; of a collective, its transfer.
        after_stream: stream for which that of the work is made to wait.
    """

    host: int
    kind: str = "kernel"
    gpu: int = 0
    stream: int = COMPUTE_STREAM
    after_stream: int | None = None


@dataclass
class Simulation:
    """One rank: its trace, the ends of its steps, also on the GPU, the starts of its collectives, and until when each
    waited for the others, ns.

    Attributes:
        spin: how many times as long a kernel takes that starts while a collective waits.
    """

    trace: TraceBuilder
    ends: list[int]
    finished: list[int]
    spin: float = 1.0
    collectives: list[int] = field(default_factory=list)
    waited_until: list[int] = field(default_factory=list)

    def length_ns(self, op: Op, start: int) -> int:
        """How long a kernel takes that starts then."""
        waits = zip(self.collectives, self.waited_until, strict=True)
        is_slowed = any(begin <= start < end for begin, end in waits)
        return round(1000 * op.gpu * (self.spin if is_slowed else 1.0))


def simulated(
    ops: Iterable[Op],
    cost_us: float = 0.0,
    collective_ends: Sequence[int] = (),
    ranks: tuple[int, ...] = (0, 1),
    spin: float = 1.0,
) -> Simulation:
    """Some steps of these operations with a cost of each call, less of one that soon follows another."""
    trace = TraceBuilder(ns=1)
    host = 1_000_000
    free: dict[int, int] = {}
    begun: list[int] = []
    recorded = (0, 0, COMPUTE_STREAM)
    result = Simulation(trace, [host], [host], spin)
    for _ in range(_NUM_STEPS):
        for op in ops:
            if op.after_stream is not None:
                record = trace.record_event(host)
                trace.stream_wait(host + 1, stream=op.stream, recorded=record, on_stream=op.after_stream)
                host += 2
            cost = round(1e3 * cost_us * min(op.host / (COLD_NS / 1e3), 1.0))
            host += round(1e3 * op.host)
            call, own = host, _OWN_NS + cost
            if op.kind in ("sync", "free"):
                host = max(host, *free.values(), 0) + own
                trace.runtime("cudaFree" if op.kind == "free" else "cudaDeviceSynchronize", call, host)
            elif op.kind == "record":
                recorded = (trace.record_event(host), free.get(op.stream, 0), op.stream)
                host += 1
            elif op.kind == "event sync":
                host = max(host, recorded[1]) + own
                trace.event_sync(call, host, recorded=recorded[0], on_stream=recorded[2])
            elif op.kind == "prefetch":  # a thread of its own, which the host does not wait for
                call = max(host, free.get(COPY_STREAM, 0))
                start = call + LAUNCH_LATENCY_NS
                free[COPY_STREAM] = start + 1000 * op.gpu
                trace.copy(start, free[COPY_STREAM], launch=call, launch_end=free[COPY_STREAM], thread=_PREFETCHER)
            elif op.kind != "no call":
                known = len(result.collectives) < len(collective_ends)
                wait_until = collective_ends[len(result.collectives)] if op.kind == "collective" and known else 0
                host = _launched(trace, op, host, cost, free, begun, wait_until, result, ranks)
        result.ends.append(host)
        result.finished.append(max(host, *free.values()))
    return result


def _launched(
    trace: TraceBuilder,
    op: Op,
    host: int,
    cost: int,
    free: dict[int, int],
    begun: list[int],
    wait_until: int,
    result: Simulation,
    ranks: tuple[int, ...],
) -> int:
    """Launch one operation's work; when the host is through."""
    call, waits = host, op.kind == "read"
    if len(begun) >= LONGEST_QUEUE:
        host = max(host, begun[-LONGEST_QUEUE])
    host += 0 if waits else _OWN_NS + cost
    start = max(free.get(op.stream, 0) + BETWEEN_KERNELS_NS, host + LAUNCH_LATENCY_NS)
    if op.after_stream is not None:
        start = max(start, free.get(op.after_stream, 0))
    end = free[op.stream] = max(start + result.length_ns(op, start), wait_until)
    begun.append(start)
    if waits:
        host = end + _OWN_NS + cost
        trace.copy(start, end, launch=call, launch_end=host, stream=op.stream)
    elif op.kind == "collective":
        result.collectives.append(start)
        result.waited_until.append(end - 1000 * op.gpu)
        trace.collective("allreduce", start, end, launch=call, launch_end=host, group=ranks, stream=op.stream)
    else:
        config = KernelLaunch((op.gpu, 1, 1), (128, 1, 1), None, None)  # as many blocks as it takes time
        trace.kernel(start, end, launch=call, launch_end=host, stream=op.stream, config=config)
    return host


def simulated_ranks(
    ops: Sequence[Sequence[Op]], costs_us: Sequence[float], *, spin: float = 1.0
) -> list[Simulation]:  # fmt: skip
    """Ranks whose collectives end when the last rank has entered and the bytes are through."""
    ranks = tuple(range(len(ops)))
    transfers = [1000 * op.gpu for op in ops[0] if op.kind == "collective"] * _NUM_STEPS
    ends = [0] * len(transfers)
    while True:
        simulations = [simulated(own, cost, ends, ranks, spin) for own, cost in zip(ops, costs_us, strict=True)]
        starts = zip(*(one.collectives for one in simulations), strict=True)
        found = [max(of_ranks) + transfer for of_ranks, transfer in zip(starts, transfers, strict=True)]
        if found == ends:
            return simulations
        ends = found


def unprofiled_ms(ops: Iterable[Op]) -> float:
    """Mean step without the profiler, in steady state."""
    return steady_ms(simulated(ops))


def steady_ms(*ranks: Simulation) -> float:
    """Mean step in steady state, of the ranks."""
    return mean(later - earlier for one in ranks for earlier, later in pairwise(one.finished[2:])) / 1e6


def without(ops: Iterable[Op], kind: str) -> list[Op]:
    """The operations without such calls; the host time before them stays."""
    return [replace(op, kind="no call") if op.kind == kind else op for op in ops]


def light_capture(ops: Iterable[Op], cost_us: float) -> LightReplay:
    return light_captures(simulated(ops, cost_us))


def light_captures(*ranks: Simulation) -> LightReplay:
    return LightReplay([LightCapture(one.trace.build(), one.ends) for one in ranks])


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
EVENT_SYNC = [*[Op(6, gpu=20)] * 20, Op(0, "record"), *[Op(9, gpu=14)] * 20, Op(5, "event sync"), *[Op(20, gpu=5)] * 30]
PREFETCHES = [Op(3, "prefetch", 180), *[Op(9, gpu=10)] * 30, Op(5, gpu=10, after_stream=COPY_STREAM)] * 2
OVERLAPS = [
    *[Op(14, gpu=12)] * 15,
    Op(3, "collective", 250, COMMUNICATION_STREAM, COMPUTE_STREAM),
    *[Op(14, gpu=12)] * 15,
    Op(3, "collective", 250, COMMUNICATION_STREAM, COMPUTE_STREAM),
    Op(5, gpu=10, after_stream=COMMUNICATION_STREAM),
]
"""Gradients of a rank: collectives beside compute, for which the update waits."""
