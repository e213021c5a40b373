"""What must have ended before an operation may begin, and which operations begin together?

One replica in one step shows the order; all replicas and steps share it. Streams keep their order: computation, each
kind of send and receive, and the data-parallel collectives. Across them: a receive comes after the computation before
its own and before its own, a send after its own; parameters are gathered before their chunk's first forward; gradients
are reduced after their chunk's last backward where that overlaps, else after all computation; then clipping and the
optimizer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepscope.analyzer.what_if.operations.grid import Grid, Operation
from stepscope.analyzer.what_if.operations.kinds import (
    ACROSS_REPLICAS,
    BACKWARD,
    CLIP,
    COLLECT_GARBAGE,
    COMPUTE,
    EMBEDDING_GRADS_ALL_REDUCE,
    FORWARD,
    GRADS_REDUCE_SCATTER,
    LAYERNORM_GRADS_ALL_REDUCE,
    OPTIMIZER,
    PARAMS_ALL_GATHER,
    POINT_TO_POINT,
    SEPARATE_GRADS_ALL_REDUCE,
)
from stepscope.analyzer.what_if.operations.point_to_point import PointToPoint, pair

_COMPUTATIONS = (FORWARD + COMPUTE, BACKWARD + COMPUTE)


@dataclass(slots=True)
class Dependencies:
    """The order of a job's step.

    Attributes:
        needs: what must have ended before each operation, of the same replica.
        together: operations of different stages that end after all of them have begun; each only in one group.
        across_replicas: operations that also wait for the same one of every other replica.
    """

    needs: dict[Operation, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    together: list[tuple[Operation, ...]] = field(default_factory=list)
    across_replicas: set[Operation] = field(default_factory=set)

    def chain(self, operations: Iterable[Operation]) -> None:
        """Each after the one before."""
        previous = None
        for operation in operations:
            if previous is not None:
                self.needs[operation].append(previous)
            previous = operation


def find_dependencies(grid: Grid, *, data_parallel: bool) -> Dependencies:
    """Read the order of one replica's first step.

    Args:
        data_parallel: more than one replica, or one that is sharded.
    """
    end = grid.end_seconds[:, 0, 0].tolist()
    reference = dict(zip(grid.operations, zip(grid.start_seconds[:, 0, 0].tolist(), end, strict=True), strict=True))
    transfers = pair(grid, reference)
    found = Dependencies()
    overlapped = any(o.kind == SEPARATE_GRADS_ALL_REDUCE for o in grid.operations)
    for stage in range(grid.num_stages):
        _order_stage(found, _Stage(grid, reference, stage), transfers, data_parallel, overlapped)
    _meet(found, grid, transfers, data_parallel)
    return found


class _Stage:
    """Operations of one stage by kind, in the order they began."""

    def __init__(self, grid: Grid, reference: dict[Operation, tuple[float, float]], stage: int) -> None:
        mine = sorted(
            (o for o in grid.operations if o.stage == stage), key=lambda o: (reference[o][0], o.number, o.kind)
        )
        self.reference = reference
        self.is_end = stage in (0, grid.num_stages - 1)
        self.chunk = dict(zip(grid.operations, grid.chunk, strict=True))
        self.mine = mine
        self.computations = self.of(*_COMPUTATIONS)

    def of(self, *kinds: str) -> list[Operation]:
        return [o for o in self.mine if o.kind in kinds]


def _order_stage(
    found: Dependencies, stage: _Stage, transfers: PointToPoint, data_parallel: bool, overlapped: bool
) -> None:
    found.chain(stage.computations)
    for kind in POINT_TO_POINT:
        found.chain(stage.of(kind))
    _feed(found, stage, transfers)
    if data_parallel:
        found.chain(stage.of(PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER))
        for gather in _last_of_each_chunk(stage, PARAMS_ALL_GATHER):
            first = next((o for o in stage.of(FORWARD + COMPUTE) if stage.chunk[o] == stage.chunk[gather]), None)
            if first is not None:
                found.needs[first].append(gather)
    if data_parallel and overlapped:
        for reduce in _first_of_each_chunk(stage, GRADS_REDUCE_SCATTER):
            work = [o for o in stage.of(BACKWARD + COMPUTE) if stage.chunk[o] == stage.chunk[reduce]]
            if work:
                found.needs[reduce].append(max(work, key=lambda o: stage.reference[o][1]))
    _finish(found, stage, data_parallel, overlapped)


def _feed(found: Dependencies, stage: _Stage, transfers: PointToPoint) -> None:
    """Sends after their computation; receives between the computation of their kind before, and their own."""
    by_number = {(o.kind, o.number): o for o in stage.computations}
    for call in stage.of(*POINT_TO_POINT):
        work = transfers.computation.get(call)
        if work is None:
            continue
        if call.kind.endswith("send"):
            found.needs[call].append(work)
            continue
        found.needs[work].append(call)
        before = by_number.get((work.kind, work.number - 1))
        if before is not None:
            found.needs[call].append(before)
    # the first gradient is asked for, and one ready before it sent, only when the warm-up is nearly over
    kinds = [o.kind for o in stage.computations]
    first_backward = kinds.index(BACKWARD + COMPUTE) if BACKWARD + COMPUTE in kinds else 0
    if first_backward >= 2:
        for kind in ("backward-recv", "backward-send"):
            for call in stage.of(kind):
                if call.number == 0:
                    found.needs[call].append(stage.computations[first_backward - 2])


def _last_of_each_chunk(stage: _Stage, kind: str) -> list[Operation]:
    by_chunk = {stage.chunk[o]: o for o in sorted(stage.of(kind), key=lambda o: o.number)}
    return list(by_chunk.values())


def _first_of_each_chunk(stage: _Stage, kind: str) -> list[Operation]:
    by_chunk = {stage.chunk[o]: o for o in sorted(stage.of(kind), key=lambda o: -o.number)}
    return list(by_chunk.values())


def _finish(found: Dependencies, stage: _Stage, data_parallel: bool, overlapped: bool) -> None:
    """What follows the last computation."""
    reduces = sorted(stage.of(GRADS_REDUCE_SCATTER), key=lambda o: o.number)
    last = max(stage.computations, key=lambda o: stage.reference[o][1], default=None)
    collect = stage.of(COLLECT_GARBAGE)
    after_layernorm = stage.of(EMBEDDING_GRADS_ALL_REDUCE) if stage.is_end else []
    if data_parallel:
        after_layernorm += stage.of(SEPARATE_GRADS_ALL_REDUCE) if overlapped else reduces
    tail = [
        *collect[:1],
        *stage.of(LAYERNORM_GRADS_ALL_REDUCE),
        *after_layernorm,
        *stage.of(CLIP),
        *stage.of(OPTIMIZER),
    ]
    if not tail:
        return
    if last is not None:
        found.needs[tail[0]].append(last)
    found.chain(tail)
    if data_parallel and overlapped and reduces:
        after = tail[1] if collect and len(tail) > 1 else tail[0]
        found.needs[after].append(reduces[-1])


def _meet(found: Dependencies, grid: Grid, transfers: PointToPoint, data_parallel: bool) -> None:
    found.together += transfers.pairs
    for kind in (EMBEDDING_GRADS_ALL_REDUCE, CLIP):
        for number in sorted({o.number for o in grid.operations if o.kind == kind}):
            members = tuple(o for o in grid.operations if (o.kind, o.number) == (kind, number))
            if kind == EMBEDDING_GRADS_ALL_REDUCE:
                members = tuple(o for o in members if o.stage in (0, grid.num_stages - 1))
            found.together.append(members)
    met = {o for group in found.together for o in group}
    alone = (*POINT_TO_POINT, *ACROSS_REPLICAS) if data_parallel else (*POINT_TO_POINT, CLIP)
    found.together += [(o,) for o in grid.operations if o.kind in alone and o not in met]
    found.across_replicas = {o for o in grid.operations if o.kind in ACROSS_REPLICAS}
