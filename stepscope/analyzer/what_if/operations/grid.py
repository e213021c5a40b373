"""What did each operation take, in every replica and every step? The table as a box of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.what_if.operations.kinds import KNOWN
from stepscope.core.errors import DataError
from stepscope.trace.operation_table import OperationTable


@dataclass(frozen=True, slots=True, order=True)
class Operation:
    """One operation of one stage; every replica runs it in every step."""

    kind: str
    number: int
    stage: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Operations x data-parallel replicas x steps.

    Attributes:
        start_seconds, duration_seconds: (operations, replicas, steps), since the step's beginning.
        chunk, global_chunk: by operation, model chunk on the stage and in the model; -1 where it has none.
        replicas: their data-parallel ranks.
        rank: (stages, replicas), -1 where the table does not tell.
        num_left_out: steps of the table that lack an operation of some rank.
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
    """The table as a grid of its whole steps.

    Raises:
        DataError: an operation of an unknown kind, the same one twice, or no step that is whole.
    """
    unknown = [kind for place, kind in enumerate(table.kinds) if kind not in KNOWN and np.any(table.kind == place)]
    if unknown:
        raise DataError(
            f"holds operations that no rule says when they may begin: {', '.join(unknown)}",
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
