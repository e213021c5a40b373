"""Independent simulation of a data-parallel job on CPUs, written as the main thread of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.trace.columns import ProcessGroup
from tests.analyzer.build import WORKER, TraceBuilder

FIRST_STEP = 3
GAP = 20
"""Python between two operators, microseconds."""


@dataclass(frozen=True, slots=True)
class HostStep:
    """One rank's step, microseconds: it loads, runs operators and asks for the reduction after the first of them, waits
    for it after the last, steps the optimizer, and saves a checkpoint.

    Attributes:
        operators: forward and backward.
        transfer: of the reduction, once all ranks have asked.
        extra: operators that no other rank has, at the end of the backward pass.
        gathers: a collective inside the checkpoint takes so long once all ranks have come; none if 0.
    """

    operators: tuple[int, ...]
    loader: int = 0
    transfer: int = 300
    extra: tuple[int, ...] = ()
    checkpoint: int = 0
    gathers: int = 0


@dataclass(slots=True)
class _Rank:
    trace: TraceBuilder
    now: int
    bounds: list[int]
    asked: int = 0


def run(steps_of_rank: Sequence[Sequence[HostStep]]) -> tuple[list[TraceBuilder], list[list[int]]]:
    """The traces, and by rank the lengths of the whole steps (all but the last), microseconds."""
    size = len(steps_of_rank)
    world = ProcessGroup("0", "default_pg", tuple(range(size)))
    ranks = [_Rank(TraceBuilder(rank=r, world_size=size, gpu=None, groups=(world,)), 50 * r, []) for r in range(size)]
    for number, steps in enumerate(zip(*steps_of_rank, strict=True)):
        for rank, step in zip(ranks, steps, strict=True):
            rank.bounds.append(rank.now)
            _forward(rank, step)
        arrival = max(rank.asked for rank in ranks)
        for rank, step in zip(ranks, steps, strict=True):
            _reduce(rank, arrival + step.transfer)
            _operator(rank, "aten::adamw", 400)
        if any(step.gathers for step in steps):
            _save_together(ranks, steps)
        for rank, step in zip(ranks, steps, strict=True):
            if step.checkpoint and not step.gathers:
                rank.trace.annotation("prof.phase: checkpoint", rank.now, rank.now + step.checkpoint)
                rank.now += step.checkpoint
            rank.now += GAP
            rank.trace.step(FIRST_STEP + number, rank.bounds[-1], rank.now)
    lengths = [[b - a for a, b in zip(rank.bounds, rank.bounds[1:], strict=False)] for rank in ranks]
    return [rank.trace for rank in ranks], lengths


def _forward(rank: _Rank, step: HostStep) -> None:
    if step.loader:
        rank.trace.annotation("enumerate(DataLoader)#_SingleProcess.__next__", rank.now, rank.now + step.loader)
        rank.now += step.loader
    for place, duration in enumerate(step.operators):
        _operator(rank, f"aten::mm{place}", duration)
        if place == 0:
            rank.asked = rank.now + GAP
            rank.trace.operator("c10d::allreduce_", rank.asked, rank.asked + 10)
            rank.now = rank.asked + 10
    for duration in step.extra:
        _operator(rank, "aten::bmm", duration)


def _operator(rank: _Rank, name: str, duration: int) -> None:
    start = rank.now + GAP
    rank.trace.operator(name, start, start + duration)
    rank.now = start + duration


def _reduce(rank: _Rank, end: int) -> None:
    rank.trace.annotation("gloo:all_reduce", rank.asked, end, thread=WORKER)
    rank.now = max(rank.now, end)


def _save_together(ranks: Sequence[_Rank], steps: Sequence[HostStep]) -> None:
    begun = [rank.now for rank in ranks]
    asked = [rank.now + step.checkpoint for rank, step in zip(ranks, steps, strict=True)]
    for rank, step, start, call in zip(ranks, steps, begun, asked, strict=True):
        rank.now = max(asked) + step.gathers
        rank.trace.annotation("prof.phase: checkpoint", start, rank.now + 10)
        rank.trace.operator("c10d::_allgather_base_", call, call + 5)
        rank.trace.annotation("gloo:all_gather", call, rank.now, thread=WORKER)
        rank.now += 10


def without(steps_of_rank: Sequence[Sequence[HostStep]], **changed: object) -> list[list[HostStep]]:
    """The same with a field of every step changed."""
    return [[replace(step, **changed) for step in steps] for steps in steps_of_rank]  # type: ignore[arg-type]  # by name
