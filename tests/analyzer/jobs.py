"""Small jobs, one for each problem. Ranks written by hand, with all work queued well ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.analyzer.build import AUTOGRAD, MAIN, TraceBuilder

FIRST_US = 1000
"""When the device starts; the host launches everything before."""
TRANSFER_US = 20


def data_parallel(
    compute_us: Sequence[Sequence[int]], *, adjust: Callable[[int, TraceBuilder], None] | None = None
) -> list[TraceBuilder]:
    """Each rank computes (rank, step) microseconds, then all reduce together.

    Args:
        compute_us: by rank, the compute of each step.
        adjust: may change each rank's builder (host, clock) before events are added.
    """
    num_ranks, num_steps = len(compute_us), len(compute_us[0])
    group = tuple(range(num_ranks))
    traces = [TraceBuilder(rank=rank, world_size=num_ranks) for rank in group]
    for rank, trace in enumerate(traces):
        if adjust is not None:
            adjust(rank, trace)
    begin = FIRST_US
    for step in range(num_steps):
        last = max(begin + own[step] for own in compute_us)
        for trace, own in zip(traces, compute_us, strict=True):
            trace.step(step + 5, step * 10, step * 10 + 10)
            trace.kernel(begin, begin + own[step], launch=step * 10 + 1)
            end = begin + own[step]
            trace.collective("allreduce", end, last + TRANSFER_US, launch=step * 10 + 3, group=group)
        begin = last + TRANSFER_US
    return traces


def overlapped_buckets(late_us: int, *, extra_us: int = 0, num_ranks: int = 3) -> list[TraceBuilder]:
    """Data parallel training whose gradients are reduced in four buckets behind backward; each step the last rank's
    loader takes `late_us`, and its backward `extra_us` more, which begin with the third bucket.

    Only when backward is done does anybody wait for a bucket: the last rank is then amid its ordinary backward.
    """
    group = tuple(range(num_ranks))
    late = num_ranks - 1
    traces = [TraceBuilder(rank=rank, world_size=num_ranks) for rank in group]
    begin = FIRST_US
    for step in range(4):
        for trace in traces:
            trace.step(step, begin - 10, begin + 400 + late_us + extra_us + 25)
        ready = {rank: begin + (late_us if rank == late else 0) for rank in group}
        traces[late].annotation("prof.data", begin - 5, begin + late_us - 2)
        left = 0
        for bucket in range(4):
            for rank, trace in enumerate(traces):
                launch = ready[rank] - 1 if bucket == 0 else begin - 10 + bucket if rank != late else ready[rank] - 50
                own = 100 + (extra_us if rank == late and bucket == 2 else 0)
                trace.kernel(ready[rank], ready[rank] + own, launch=launch)
                ready[rank] += own
            starts = {rank: max(ready[rank], left) for rank in group}
            left = max(starts.values()) + TRANSFER_US
            for rank, trace in enumerate(traces):
                launch = ready[rank] - 50 if rank == late else begin - 10 + bucket
                trace.collective("allreduce", starts[rank], left, launch=launch, group=group)
        for trace in traces:
            trace.kernel(left, left + 10, launch=begin - 5)
        begin = left + 10
    return traces


def chain_of_waits() -> list[TraceBuilder]:
    """Rank 0 waits for rank 1, which waited for rank 2, which computes 300 us more; ranks 0 and 2 share no group."""
    traces = [TraceBuilder(rank=rank, world_size=3) for rank in range(3)]
    begin = FIRST_US
    for step in range(3):
        for trace in traces:
            trace.step(step + 5, step * 10, step * 10 + 10)
        launch = step * 10
        traces[0].kernel(begin, begin + 100, launch=launch + 1)
        traces[1].kernel(begin, begin + 100, launch=launch + 1)
        traces[2].kernel(begin, begin + 400, launch=launch + 1)
        for rank, start in ((1, begin + 100), (2, begin + 400)):
            traces[rank].collective("allreduce", start, begin + 420, launch=launch + 2, group=(1, 2), stream=20)
        for rank, start in ((0, begin + 100), (1, begin + 420)):
            traces[rank].collective("allreduce", start, begin + 440, launch=launch + 3, group=(0, 1), stream=21)
        traces[2].collective("allreduce", begin + 420, begin + 440, launch=launch + 3, group=(2,), stream=22)
        begin += 440
    return traces


def node_of_a_slow_rank() -> list[TraceBuilder]:
    """Two nodes of two ranks; three kernels a step, of which rank 1's first two take 300 us more. Before the second and
    the third a node gathers; after these two the ranks of one place in both nodes reduce, behind what follows.

    When their first reduction ends, rank 0 waits for rank 1 to gather, and rank 2 has done its third kernel.
    """
    traces = [TraceBuilder(rank=rank, world_size=4) for rank in range(4)]
    begin = FIRST_US
    for step in range(3):
        ready, reduced = [begin] * 4, [begin] * 4
        for place in range(3):
            for node in ((0, 1), (2, 3)) if place else ():
                left = max(ready[rank] for rank in node) + TRANSFER_US
                for rank in node:
                    launch = step * 10 + place
                    traces[rank].collective("allgather", ready[rank], left, launch=launch, group=node, stream=20)
                    ready[rank] = left
            for rank, trace in enumerate(traces):
                own = 400 if rank == 1 and place < 2 else 100
                trace.kernel(ready[rank], ready[rank] + own, launch=step * 10 + place)
                ready[rank] += own
            for pair in ((0, 2), (1, 3)) if place else ():
                starts = {rank: max(ready[rank], reduced[rank]) for rank in pair}
                left = max(starts.values()) + TRANSFER_US
                for rank in pair:
                    launch = step * 10 + place
                    traces[rank].collective("allreduce", starts[rank], left, launch=launch, group=pair, stream=21)
                    reduced[rank] = left
        for trace in traces:
            trace.step(step + 5, step * 10, step * 10 + 10)
        begin = max(reduced)
        for rank, trace in enumerate(traces):
            trace.collective("barrier", reduced[rank], begin + TRANSFER_US, launch=step * 10 + 9, group=(0, 1, 2, 3))
        begin += TRANSFER_US
    return traces


def prefetched_gathers() -> list[TraceBuilder]:
    """Two nodes of two ranks; rank 1 loads data 300 us longer in each step. A gather of 50 us runs behind the first of
    two kernels, except on rank 0, which waits for rank 1 and then for the gather; then ranks of both nodes reduce."""
    traces = [TraceBuilder(rank=rank, world_size=4) for rank in range(4)]
    begin = FIRST_US
    for step in range(4):
        ready = [begin, begin + 300, begin, begin]
        launches = [step * 10 + 1, begin + 299, step * 10 + 1, step * 10 + 1]
        traces[1].annotation("prof.data", begin - 5, begin + 298)
        for rank, trace in enumerate(traces):
            trace.step(step + 5, *((begin - 10, begin + 500) if rank == 1 else (step * 10, step * 10 + 10)))
            node = (0, 1) if rank < 2 else (2, 3)
            gathered = max(begin + 300 * (other == 1) for other in node) + 50
            trace.kernel(ready[rank], ready[rank] + 100, launch=launches[rank])
            trace.collective("allgather", ready[rank], gathered, launch=launches[rank], group=node, stream=20)
            second = max(ready[rank] + 100, gathered)
            trace.kernel(second, second + 100, launch=launches[rank])
            ready[rank] = second + 100
        for pair in ((0, 2), (1, 3)):
            left = max(ready[rank] for rank in pair) + TRANSFER_US
            for rank in pair:
                traces[rank].collective("allreduce", ready[rank], left, launch=launches[rank], group=pair, stream=21)
                ready[rank] = left
        end = max(ready) + TRANSFER_US
        for rank, trace in enumerate(traces):
            trace.collective("barrier", ready[rank], end, launch=launches[rank], group=(0, 1, 2, 3))
        begin = end
    return traces


def pipelined(
    forward_us: Sequence[int],
    backward_us: Sequence[int],
    *,
    num_micro_batches: int,
    gpipe: bool = False,
    steps: int = 3,
) -> list[TraceBuilder]:
    """One rank a stage; activations and gradients travel as send/receive kernels that take 2 us once both are there.

    Backward is launched by autograd's thread. Nothing but the schedule delays anybody.
    """
    stages = len(forward_us)
    traces = [TraceBuilder(rank=rank, world_size=stages) for rank in range(stages)]
    orders = [_stage_order(stage, stages, num_micro_batches, gpipe=gpipe) for stage in range(stages)]
    free = [10_000] * stages
    for step in range(steps):
        events = _run_pipeline(orders, (forward_us, backward_us), free)
        for rank, trace in enumerate(traces):
            trace.step(step, step * 1000, step * 1000 + 1000)
            ordered = sorted(events[rank], key=lambda event: (event.start, event.kind != "send"))
            for launch, event in enumerate(ordered, step * 1000 + 1):
                event.add_to(trace, launch=launch, group=tuple(range(stages)))
    return traces


@dataclass(frozen=True)
class _StageEvent:
    """What a stage does: forward, backward, send or receive (with `peer`)."""

    kind: str
    start: int
    end: int
    peer: int = -1

    def add_to(self, trace: TraceBuilder, *, launch: int, group: tuple[int, ...]) -> None:
        if self.kind == "send":
            trace.point_to_point(self.start, self.end, launch=launch, group=group, send_to=[self.peer], stream=21)
        elif self.kind == "receive":
            trace.point_to_point(self.start, self.end, launch=launch, group=group, receive_from=[self.peer], stream=20)
        else:
            trace.kernel(self.start, self.end, launch=launch, thread=MAIN if self.kind == "forward" else AUTOGRAD)


def _stage_order(stage: int, stages: int, num_micro_batches: int, *, gpipe: bool) -> list[tuple[bool, int]]:
    """(is forward, micro-batch) in the order in which a stage runs them."""
    ahead = num_micro_batches if gpipe else min(stages - stage, num_micro_batches)
    order = [(True, number) for number in range(ahead)]
    for number in range(num_micro_batches):
        order.append((False, number))
        if ahead + number < num_micro_batches:
            order.append((True, ahead + number))
    return order


def _run_pipeline(
    orders: list[list[tuple[bool, int]]], times_us: tuple[Sequence[int], Sequence[int]], free: list[int]
) -> list[list[_StageEvent]]:
    """One step's events by stage; `free` tells when each stage can begin, and is moved to when it has ended."""
    stages = len(orders)
    events: list[list[_StageEvent]] = [[] for _ in orders]
    done: dict[tuple[bool, int, int], int] = {}
    queues = [list(order) for order in orders]
    while any(queues):
        for stage, queue in enumerate(queues):
            if not queue:
                continue
            forward, number = queue[0]
            source = stage - 1 if forward else stage + 1
            has_source = 0 <= source < stages
            if has_source and (forward, source, number) not in done:
                continue
            queue.pop(0)
            start = free[stage]
            if has_source:
                sent = done[forward, source, number]
                arrived = max(sent, start) + 2
                events[source].append(_StageEvent("send", sent, arrived, stage))
                events[stage].append(_StageEvent("receive", start, arrived, source))
                start = arrived
            end = start + times_us[0 if forward else 1][stage]
            events[stage].append(_StageEvent("forward" if forward else "backward", start, end))
            free[stage] = done[forward, stage, number] = end
    return events
