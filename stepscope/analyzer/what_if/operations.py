"""Operations of a pipelined job: their kinds, their times by replica and step, and the dependencies between them.

Dependencies are inferred from one replica's first step, as all replicas and steps share one order. Streams keep their
order: computation, each kind of send and receive, and the data-parallel collectives. Between streams: a receive follows
the computation before its own and precedes its own, a send follows its own; parameters are gathered before their
chunk's first forward; gradients are reduced after their chunk's last backward if that overlaps, else after all
computation; then come clipping and the optimizer.

Profilers of pipelined jobs also record sends and receives that never went out: before the first computation, after the
last, and at the two ends of the model when every stage holds several chunks. Those wait for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.core.errors import DataError
from stepscope.trace.operations import OperationTable

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
COMPUTE: Final = "-compute"

PARAMS_ALL_GATHER: Final = "params-all-gather"
GRADS_REDUCE_SCATTER: Final = "grads-reduce-scatter"
SEPARATE_GRADS_ALL_REDUCE: Final = "separate-grads-all-reduce"
LAYERNORM_GRADS_ALL_REDUCE: Final = "layernorm-grads-all-reduce"
EMBEDDING_GRADS_ALL_REDUCE: Final = "embedding-grads-all-reduce"
CLIP: Final = "optimizer-clip-main-grad"
OPTIMIZER: Final = "optimizer"
COLLECT_GARBAGE: Final = "gc"

POINT_TO_POINT: Final = ("forward-send", "forward-recv", "backward-send", "backward-recv")

ACROSS_REPLICAS: Final = (PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER, SEPARATE_GRADS_ALL_REDUCE, CLIP)
"""Kinds in which every data-parallel replica takes part."""

COMMUNICATION: Final = frozenset(
    (*POINT_TO_POINT, *ACROSS_REPLICAS, LAYERNORM_GRADS_ALL_REDUCE, EMBEDDING_GRADS_ALL_REDUCE)
)
"""Kinds whose ideal cost is the median (a slow link is an outlier); of all others it is the mean (work is moved)."""

KNOWN: Final = COMMUNICATION | {FORWARD + COMPUTE, BACKWARD + COMPUTE, OPTIMIZER, COLLECT_GARBAGE}


@dataclass(frozen=True, slots=True, order=True)
class StageOperation:
    """One operation of one pipeline stage in a what-if replay, which every replica runs in every step."""

    kind: str
    number: int
    stage: int


@dataclass(frozen=True, slots=True)
class OperationGrid:
    """Times of operations x data-parallel replicas x steps, for a what-if replay.

    Attributes:
        start_seconds, duration_seconds: shape (operations, replicas, steps), since the beginning of the step.
        chunk, global_chunk: by operation, model chunk on the stage and in the model; -1 if it has none.
        replicas: data-parallel rank of each replica.
        rank: shape (stages, replicas), -1 if the table does not contain it.
        num_left_out: steps of the table without an operation of some rank.
    """

    operations: list[StageOperation]
    start_seconds: npt.NDArray[np.float64]
    duration_seconds: npt.NDArray[np.float64]
    chunk: list[int]
    global_chunk: list[int]
    replicas: list[int]
    rank: npt.NDArray[np.int64]
    steps: list[int]
    num_left_out: int

    @property
    def end_seconds(self) -> npt.NDArray[np.float64]:
        return self.start_seconds + self.duration_seconds

    @property
    def num_stages(self) -> int:
        return len(self.rank)


def arrange_operations(table: OperationTable) -> OperationGrid:
    """Arrange the whole steps of an operation table as a grid, for a what-if replay.

    Raises:
        DataError: an operation is of an unknown kind or occurs twice, or no step is whole.
    """
    unknown = [kind for place, kind in enumerate(table.kinds) if kind not in KNOWN and np.any(table.kind == place)]
    if unknown:
        raise DataError(
            f"holds operations of unknown kinds: {', '.join(unknown)}",
            where=table.name,
            what_next=f"use the names {', '.join(sorted(KNOWN))}",
        )
    keys = np.stack((table.kind, table.number, table.stage), axis=1)
    distinct, operation = np.unique(keys, axis=0, return_inverse=True)
    replicas, replica = np.unique(table.dp_rank, return_inverse=True)
    steps, step = np.unique(table.step, return_inverse=True)
    stages, stage = np.unique(table.stage, return_inverse=True)
    if stages.tolist() != list(range(len(stages))):
        raise DataError("has a gap in its stages", where=table.name, what_next="give the rows of every stage")
    shape = (len(distinct), len(replicas), len(steps))
    cell = np.ravel_multi_index((operation.ravel(), replica, step), shape)
    count = np.bincount(cell, minlength=int(np.prod(shape))).reshape(shape)
    if count.max() > 1:
        raise DataError("holds the same operation twice", where=table.name, what_next="keep one row of each")
    whole = (count == 1).all(axis=(0, 1))
    if not whole.any():
        raise DataError(
            "holds no step in which every rank has every operation", where=table.name, what_next="record more steps"
        )
    start, duration = np.zeros(shape), np.zeros(shape)
    start.ravel()[cell], duration.ravel()[cell] = table.start_seconds, table.duration_seconds
    sample = np.zeros(len(distinct), np.int64)
    sample[operation.ravel()] = np.arange(len(operation))
    rank = np.full((len(stages), len(replicas)), -1, np.int64)
    rank[stage, replica] = table.rank
    return OperationGrid(
        operations=[StageOperation(table.kinds[kind], number, at) for kind, number, at in distinct.tolist()],
        start_seconds=start[:, :, whole],
        duration_seconds=duration[:, :, whole],
        chunk=table.chunk[sample].tolist(),
        global_chunk=table.global_chunk[sample].tolist(),
        replicas=replicas.tolist(),
        rank=rank,
        steps=steps[whole].tolist(),
        num_left_out=int((~whole).sum()),
    )


SAME_MOMENT_SECONDS = 5e-5
"""Largest difference between simultaneous times: the clocks of a table agree no better."""

_PEER_OFFSET = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
"""Offset in global chunks to the peer."""


@dataclass(frozen=True, slots=True)
class MatchedTransfers:
    """Computation of each send and receive, and the pairs of operations that are one transfer."""

    computation: dict[StageOperation, StageOperation]
    pairs: list[tuple[StageOperation, StageOperation]]


def match_transfers(grid: OperationGrid, reference: dict[StageOperation, tuple[float, float]]) -> MatchedTransfers:
    """What-if graph of an operation table: match its sends with its receives.

    `reference` has the start and end of every operation of one replica in one step, the order that all others share.
    """
    chunk = dict(zip(grid.operations, grid.global_chunk, strict=True))
    num_chunks = 1 + max((chunk[o] for o in grid.operations), default=0)
    by_place = defaultdict(list)
    for operation in sorted(reference, key=lambda o: (reference[o][0], o.number)):
        by_place[operation.kind, operation.stage].append(operation)
    computation: dict[StageOperation, StageOperation] = {}
    sent: dict[tuple[str, int], list[StageOperation]] = defaultdict(list)
    for kind in POINT_TO_POINT:
        direction = FORWARD if kind.startswith(FORWARD) else BACKWARD
        for stage in range(grid.num_stages):
            work = by_place[direction + COMPUTE, stage]
            calls = _issued(by_place[kind, stage], work, reference, is_receive=kind.endswith("recv"))
            # the first receive of the first stage may be missing: nobody sends it anything
            first = 1 if kind.endswith("recv") and len(calls) + 1 == len(work) else 0
            numbered = sorted(work, key=lambda o: o.number)
            for call, needs in zip(calls, numbered[first:], strict=False):
                computation[call] = needs
                if 0 <= chunk[needs] + _PEER_OFFSET[kind] < num_chunks:
                    sent[kind, stage].append(call)
    pairs: list[tuple[StageOperation, StageOperation]] = []
    for (kind, stage), calls in sent.items():
        if kind.endswith("send"):
            peer_stage = (stage + _PEER_OFFSET[kind]) % grid.num_stages
            pairs += zip(calls, sent.get((kind.replace("send", "recv"), peer_stage), []), strict=False)
    return MatchedTransfers(computation, pairs)


def _issued(
    calls: list[StageOperation],
    work: list[StageOperation],
    times: dict[StageOperation, tuple[float, float]],
    *,
    is_receive: bool,
) -> list[StageOperation]:
    """The calls that went out: no receives after the last computation began, no sends before the first ended."""
    if not work:
        return []
    if is_receive:
        last = max(times[o][0] for o in work) + SAME_MOMENT_SECONDS
        return [call for call in calls if times[call][0] <= last]
    first = min(times[o][1] for o in work) - SAME_MOMENT_SECONDS
    return [call for call in calls if times[call][1] >= first]


_COMPUTATIONS = (FORWARD + COMPUTE, BACKWARD + COMPUTE)


@dataclass(slots=True)
class Dependencies:
    """Dependencies between the operations of a step, for a what-if replay.

    Attributes:
        needs: operations of the same replica that must have ended before each operation.
        together: operations of different stages that end after all of them have begun; each in one group only.
        across_replicas: operations that also wait for the same operation of every other replica.
    """

    needs: dict[StageOperation, list[StageOperation]] = field(default_factory=lambda: defaultdict(list))
    together: list[tuple[StageOperation, ...]] = field(default_factory=list)
    across_replicas: set[StageOperation] = field(default_factory=set)

    def chain(self, operations: Iterable[StageOperation]) -> None:
        """Let each operation wait for the one before it."""
        previous = None
        for operation in operations:
            if previous is not None:
                self.needs[operation].append(previous)
            previous = operation


def find_dependencies(grid: OperationGrid, *, data_parallel: bool) -> Dependencies:
    """What-if: dependencies of operations, in the order of one replica's first step.

    `data_parallel` if replicas are several or sharded.
    """
    end = grid.end_seconds[:, 0, 0].tolist()
    reference = dict(zip(grid.operations, zip(grid.start_seconds[:, 0, 0].tolist(), end, strict=True), strict=True))
    transfers = match_transfers(grid, reference)
    found = Dependencies()
    overlapped = any(o.kind == SEPARATE_GRADS_ALL_REDUCE for o in grid.operations)
    for stage in range(grid.num_stages):
        _order_stage(found, _Stage(grid, reference, stage), transfers, data_parallel, overlapped)
    _join_transfers(found, grid, transfers, data_parallel)
    return found


class _Stage:
    """Operations of one stage by kind, by start."""

    def __init__(self, grid: OperationGrid, reference: dict[StageOperation, tuple[float, float]], stage: int) -> None:
        mine = sorted(
            (o for o in grid.operations if o.stage == stage), key=lambda o: (reference[o][0], o.number, o.kind)
        )
        self.reference = reference
        self.is_end = stage in (0, grid.num_stages - 1)
        self.chunk = dict(zip(grid.operations, grid.chunk, strict=True))
        self.mine = mine
        self.computations = self.of(*_COMPUTATIONS)

    def of(self, *kinds: str) -> list[StageOperation]:
        return [o for o in self.mine if o.kind in kinds]


def _order_stage(
    found: Dependencies, stage: _Stage, transfers: MatchedTransfers, data_parallel: bool, overlapped: bool
) -> None:
    found.chain(stage.computations)
    for kind in POINT_TO_POINT:
        found.chain(stage.of(kind))
    _order_transfers(found, stage, transfers)
    if data_parallel:
        found.chain(stage.of(PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER))
        for gather in _last_of_each_chunk(stage, sorted(stage.of(PARAMS_ALL_GATHER), key=lambda o: o.number)):
            first = next((o for o in stage.of(FORWARD + COMPUTE) if stage.chunk[o] == stage.chunk[gather]), None)
            if first is not None:
                found.needs[first].append(gather)
    if data_parallel and overlapped:
        for reduce in _last_of_each_chunk(stage, sorted(stage.of(GRADS_REDUCE_SCATTER), key=lambda o: -o.number)):
            work = [o for o in stage.of(BACKWARD + COMPUTE) if stage.chunk[o] == stage.chunk[reduce]]
            if work:
                found.needs[reduce].append(max(work, key=lambda o: stage.reference[o][1]))
    _order_tail(found, stage, data_parallel, overlapped)


def _order_transfers(found: Dependencies, stage: _Stage, transfers: MatchedTransfers) -> None:
    """Sends follow their computation; receives lie between the previous computation of their kind and their own."""
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
    # the first gradients are received and sent only when the warm-up is nearly over
    kinds = [o.kind for o in stage.computations]
    first_backward = kinds.index(BACKWARD + COMPUTE) if BACKWARD + COMPUTE in kinds else 0
    if first_backward >= 2:
        for kind in ("backward-recv", "backward-send"):
            for call in stage.of(kind):
                if call.number == 0:
                    found.needs[call].append(stage.computations[first_backward - 2])


def _last_of_each_chunk(stage: _Stage, operations: list[StageOperation]) -> list[StageOperation]:
    return list({stage.chunk[o]: o for o in operations}.values())


def _order_tail(found: Dependencies, stage: _Stage, data_parallel: bool, overlapped: bool) -> None:
    """Order of what follows the last computation."""
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


def _join_transfers(found: Dependencies, grid: OperationGrid, transfers: MatchedTransfers, data_parallel: bool) -> None:
    found.together += transfers.pairs
    for kind in (EMBEDDING_GRADS_ALL_REDUCE, CLIP):
        for number in sorted({o.number for o in grid.operations if o.kind == kind}):
            members = tuple(o for o in grid.operations if (o.kind, o.number) == (kind, number))
            if kind == EMBEDDING_GRADS_ALL_REDUCE:
                members = tuple(o for o in members if o.stage in (0, grid.num_stages - 1))
            found.together.append(members)
    joined = {o for group in found.together for o in group}
    alone = (*POINT_TO_POINT, *ACROSS_REPLICAS) if data_parallel else (*POINT_TO_POINT, CLIP)
    found.together += [(o,) for o in grid.operations if o.kind in alone and o not in joined]
    found.across_replicas = {o for o in grid.operations if o.kind in ACROSS_REPLICAS}
