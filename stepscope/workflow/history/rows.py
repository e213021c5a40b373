"""Rows of many pages, joined into the blocks that the history keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.store.history.questions import Labels
from stepscope.store.history.samples import SampleBlock
from stepscope.workflow.history.pages import RowGroup

_Key = tuple[tuple[str, ...], tuple[str, ...]]


class RowBatch:
    """Rows of pages until the store takes them; those of equal labels and metrics are one block.

    Attributes:
        num_bytes: of the values in it.
        first_ns: time of its earliest scrape, ns since the epoch; None while it is empty.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self.first_ns: int | None = None
        self._parts: dict[_Key, _Part] = {}

    def add(self, groups: Sequence[RowGroup], time_ns: int) -> None:
        """Add the rows of one page; `time_ns` of its scrape, ns since the epoch."""
        self.first_ns = time_ns if self.first_ns is None else min(self.first_ns, time_ns)
        for group in groups:
            key = group.label_names, group.metrics
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = _Part()
            part.add(group, time_ns)
            self.num_bytes += group.values.nbytes

    def blocks(self) -> list[SampleBlock]:
        """All rows."""
        return [part.block(metrics) for (_, metrics), part in self._parts.items()]


class _Part:
    """Rows of one block."""

    def __init__(self) -> None:
        self._begins: dict[int, int] = {}
        self._entities: list[Labels] = []
        self._kept: list[tuple[Labels, ...]] = []
        self._rows: list[NDArray[np.int32]] = []
        self._times: list[tuple[int, int]] = []
        self._values: list[NDArray[np.float64]] = []

    def add(self, group: RowGroup, time_ns: int) -> None:
        count = len(group.entities)
        begin = self._begins.get(id(group.entities))  # pages of one target share them until it has new series
        if begin is None:
            begin = self._begins[id(group.entities)] = len(self._entities)
            self._kept.append(group.entities)  # keeps the id from being given again
            self._entities += group.entities
        self._rows.append(np.arange(begin, begin + count, dtype=np.int32))
        self._times.append((time_ns, count))
        self._values.append(group.values)

    def block(self, metrics: tuple[str, ...]) -> SampleBlock:
        values = np.concatenate(self._values)
        times = np.repeat(
            np.array([time for time, _ in self._times], np.int64), np.array([count for _, count in self._times])
        )
        columns = {metric: np.ascontiguousarray(values[:, column]) for column, metric in enumerate(metrics)}
        return SampleBlock(tuple(self._entities), np.concatenate(self._rows), times, columns)
