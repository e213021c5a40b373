"""Operations of a pipelined job as a table: the type that readers fill and the analyzer reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class OperationTable:
    """Operations of all ranks and steps, one row each; all arrays have the same length.

    Attributes:
        kind: index into `kinds`.
        number: index among the operations of its kind on its rank in its step.
        chunk: model chunk on the stage (virtual pipeline), or -1.
        global_chunk: index of the chunk in the whole model, or -1.
        start_seconds: since the beginning of the step.
        shards_per_replica: data-parallel shards that one `dp_rank` stands for (`dsp_size`).
    """

    name: str
    kinds: list[str]
    kind: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    stage: npt.NDArray[np.int64]
    dp_rank: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    chunk: npt.NDArray[np.int64]
    global_chunk: npt.NDArray[np.int64]
    start_seconds: npt.NDArray[np.float64]
    duration_seconds: npt.NDArray[np.float64]
    world_size: int | None
    shards_per_replica: int
