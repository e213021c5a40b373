"""Independent simulation of data-parallel ranks on CPUs that accumulate gradients, as the main thread of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.trace.columns import Category, ProcessGroup
from tests.analyzer.build import WORKER, TraceBuilder

_NUM_STEPS, _FIRST_STEP, _GAP = 4, 3, 20


@dataclass(frozen=True, slots=True)
class Exchange:
    """Steps of a job; times are microseconds.

    Attributes:
        buckets: elements of each, in the order in which their gradients are ready.
        compute: of the backward pass before each bucket; the forward pass takes as much in all.
        copies: of the gradients into a bucket, and back.
        latency, per_element: of a reduction.
        passes: backward passes of a step.
        reducing: the last so many of these reduce the gradients.
        forwards: forward passes of the wrapper that are marked: of each pass, or of the whole step at once.
        updates_each: the optimizer steps after each pass.
        searches: the search for unused parameters; the map of used ones has an entry for each bucket.
        unused: parameters without a gradient.
    """

    buckets: tuple[int, ...]
    compute: int = 1000
    copies: int = 100
    latency: int = 300
    per_element: float = 0.01
    passes: int = 1
    reducing: int = 1
    forwards: str = "each"
    updates_each: bool = False
    searches: int = 0
    unused: int = 0
    num_ranks: int = 2


class _Rank:
    def __init__(self, rank: int, size: int) -> None:
        world = ProcessGroup("0", "default_pg", tuple(range(size)))
        self.trace = TraceBuilder(rank=rank, world_size=size, gpu=None, groups=(world,))
        self.now = 30 * rank

    def operator(self, name: str, duration: int) -> None:
        start = self.now + _GAP
        self.trace.operator(name, start, start + duration)
        self.now = start + duration

    def asks(self, elements: int) -> int:
        start = self.now + _GAP
        self.trace.operator("c10d::allreduce_", start, start + 10, dims=f"[[[{elements}]]]", types='["TensorList"]')
        self.now = start + 10
        return start

    def reduced(self, asked: int, done: int, elements: int, dtype: str) -> None:
        self.trace.operator(
            "gloo:all_reduce",
            asked,
            done,
            thread=WORKER,
            dims=f"[[{elements}]]",
            types=f'["{dtype}"]',
            category=Category.USER_ANNOTATION,
        )


def run(job: Exchange) -> tuple[list[TraceBuilder], float]:
    """The traces, and the mean whole step, ms."""
    ranks = [_Rank(rank, job.num_ranks) for rank in range(job.num_ranks)]
    bounds: list[list[int]] = [[] for _ in ranks]
    for number in range(_NUM_STEPS):
        for rank, own in zip(ranks, bounds, strict=True):
            own.append(rank.now)
            if job.forwards == "once":
                rank.trace.annotation("DistributedDataParallel.forward", rank.now + 1, rank.now + 15)
        for place in range(job.passes):
            _pass(job, ranks, reduces=place >= job.passes - job.reducing)
            if job.updates_each or place == job.passes - 1:
                for rank in ranks:
                    start = rank.now + _GAP
                    rank.trace.annotation("Optimizer.step#SGD.step", start, start + 440)
                    rank.operator("aten::add_", 400)
                    rank.now += _GAP
        for rank, own in zip(ranks, bounds, strict=True):
            rank.now += _GAP
            rank.trace.step(_FIRST_STEP + number, own[-1], rank.now)
    whole = [(own[-1] - own[0]) / (len(own) - 1) for own in bounds]
    return [rank.trace for rank in ranks], sum(whole) / len(whole) / 1e3


def _pass(job: Exchange, ranks: Sequence[_Rank], *, reduces: bool) -> None:
    for rank in ranks:
        start = rank.now + 5
        rank.operator("aten::linear", job.compute * len(job.buckets))
        if job.searches:
            rank.operator("torch.distributed.ddp.reducer::search_unused_parameters", job.searches)
        if job.forwards == "each":
            rank.trace.annotation("DistributedDataParallel.forward", start, rank.now + 5)
    asked: list[list[int]] = [[] for _ in ranks]
    sizes = [(elements, "float") for elements in job.buckets]
    for place, elements in enumerate(job.buckets):
        for rank, own in zip(ranks, asked, strict=True):
            rank.operator("aten::mm", job.compute)
            if place >= job.unused:
                rank.operator("torch::autograd::AccumulateGrad", 10)
            if reduces:
                rank.operator("torch::distributed::reducer::mul_out", job.copies)
                own.append(rank.asks(elements))
    if not reduces:
        return
    if job.searches:
        sizes.append((len(job.buckets), "int"))
        for rank, own in zip(ranks, asked, strict=True):
            own.append(rank.asks(len(job.buckets)))
    done = [
        max(own[place] for own in asked) + int(job.latency + job.per_element * elements)
        for place, (elements, _) in enumerate(sizes)
    ]
    for rank, own in zip(ranks, asked, strict=True):
        for start, end, (elements, dtype) in zip(own, done, sizes, strict=True):
            rank.reduced(start, end, elements, dtype)
        rank.now = max(rank.now, *done)
        rank.operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", job.copies)
