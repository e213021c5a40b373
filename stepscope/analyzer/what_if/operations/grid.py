"""Grid of operations: their kinds, and the start and duration of each in every replica and step."""

from __future__ import annotations

from dataclasses import dataclass
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
class Operation:
    """One operation of one stage, which every replica runs in every step."""

    kind: str
    number: int
    stage: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Times of operations x data-parallel replicas x steps.

    Attributes:
        start_seconds, duration_seconds: shape (operations, replicas, steps), since the beginning of the step.
        chunk, global_chunk: by operation, model chunk on the stage and in the model; -1 if it has none.
        replicas: data-parallel rank of each replica.
        rank: shape (stages, replicas), -1 if the table does not contain it.
        num_left_out: steps of the table without an operation of some rank.
    """

    operations: list[Operation]
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


def arrange(table: OperationTable) -> Grid:
    """Arrange the whole steps of a table as a grid.

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
    return Grid(
        operations=[Operation(table.kinds[kind], number, at) for kind, number, at in distinct.tolist()],
        start_seconds=start[:, :, whole],
        duration_seconds=duration[:, :, whole],
        chunk=table.chunk[sample].tolist(),
        global_chunk=table.global_chunk[sample].tolist(),
        replicas=replicas.tolist(),
        rank=rank,
        steps=steps[whole].tolist(),
        num_left_out=int((~whole).sum()),
    )
