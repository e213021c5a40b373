"""Blocks of samples, and answers, for tests of the history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.store.history.questions import Labels, LatestAnswer, SeriesAnswer
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter

START = 1_795_737_600 * 10**9
"""Midnight, UTC."""
SECOND, MINUTE, HOUR, DAY = 10**9, 60 * 10**9, 3600 * 10**9, 86400 * 10**9
POWER, ENERGY = "stepscope_gpu_power_watts", "stepscope_gpu_energy_joules_total"


def labels(**pairs: str) -> Labels:
    """Sorted labels."""
    return tuple(sorted(pairs.items()))


def gpu(index: int, node: str = "n0:9400", **more: str) -> Labels:
    """Labels of a GPU."""
    return labels(instance=node, gpu=str(index), uuid=f"GPU-{node}-{index}", **more)


def block(entities: Sequence[Labels], time_ns: int, **columns: Sequence[float]) -> SampleBlock:
    """One row an entity, all of one time."""
    return SampleBlock(
        tuple(entities),
        np.arange(len(entities), dtype=np.int32),
        np.full(len(entities), time_ns, np.int64),
        {name: np.asarray(values, np.float64) for name, values in columns.items()},
    )


def as_dict(answer: SeriesAnswer | LatestAnswer) -> dict[Labels, list[float | None]]:
    """Values of each group; None where unknown."""
    rows = np.atleast_2d(answer.values.T).T if answer.values.ndim == 1 else answer.values
    return {
        group: [None if np.isnan(value) else float(value) for value in np.atleast_1d(row)]
        for group, row in zip(answer.groups, rows, strict=True)
    }


def maintain(writer: HistoryWriter) -> None:
    """Do all that is due."""
    while writer.maintain():
        pass
