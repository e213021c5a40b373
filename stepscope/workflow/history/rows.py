"""Rows of many pages, joined into the blocks that the history keeps.

Blocks of the same label names have the same entities from batch to batch, also those that a batch has no row of: the
store then neither compares nor writes their labels anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.store.history.questions import Labels
from stepscope.store.history.samples import SampleBlock
from stepscope.workflow.history.pages import RowGroup

_KEPT_BATCHES = 100
"""Entities without a row in so many batches are forgotten, once they are half of all."""
_SPARE_ENTITIES = 1000


class EntityTable:
    """All entities with labels of certain names that lately had rows."""

    def __init__(self) -> None:
        self._index: dict[Labels, int] = {}
        self._entities: tuple[Labels, ...] = ()
        self._used_in: list[int] = []
        self._of_pages: dict[int, tuple[tuple[Labels, ...], NDArray[np.int32]]] = {}

    def places(self, entities: tuple[Labels, ...], batch: int) -> NDArray[np.int32]:
        """Places of entities among all; `batch` is the number of the batch that has rows of them."""
        known = self._of_pages.get(id(entities))  # the pages of one target share them until it has new series
        if known is None:
            index = self._index
            places = np.array([index.setdefault(labels, len(index)) for labels in entities], np.int32)
            self._used_in += [batch] * (len(index) - len(self._used_in))
            known = self._of_pages[id(entities)] = entities, places  # kept, so that the id is not given again
        used_in = self._used_in
        for place in known[1].tolist():
            used_in[place] = batch
        return known[1]

    def all(self) -> tuple[Labels, ...]:
        """All entities, the same object until there is a new one."""
        if len(self._entities) != len(self._index):
            self._entities = tuple(self._index)
        return self._entities

    def forget_old(self, batch: int) -> None:
        """Forget what had no rows for long, before the batch of this number begins."""
        old = sum(used_in < batch - _KEPT_BATCHES for used_in in self._used_in)
        if 2 * old > len(self._used_in) + _SPARE_ENTITIES:
            kept = [labels for labels, used_in in zip(self._index, self._used_in, strict=True)
                    if used_in >= batch - _KEPT_BATCHES]  # fmt: skip
            self._index = {labels: place for place, labels in enumerate(kept)}
            self._used_in = [batch] * len(kept)
            self._entities = ()
            self._of_pages.clear()
        elif len(self._of_pages) > len(self._index) + _SPARE_ENTITIES:  # of layouts that are gone
            self._of_pages.clear()


class RowBatch:
    """Rows of pages until the store takes them.

    Attributes:
        num_bytes: of the values in it.
    """

    def __init__(self, tables: dict[tuple[str, ...], EntityTable], number: int = 0) -> None:
        """`tables`: entities by their label names, which all batches share; `number`: of the batch."""
        self.num_bytes = 0
        self._tables, self._number = tables, number
        self._parts: dict[tuple[tuple[str, ...], tuple[str, ...]], _Part] = {}
        for table in tables.values():
            table.forget_old(number)

    def next(self) -> RowBatch:
        """An empty batch after this one, whose blocks were made."""
        return RowBatch(self._tables, self._number + 1)

    def add(self, groups: Sequence[RowGroup], time_ns: int) -> None:
        """Add the rows of one page; `time_ns` of its scrape, ns since the epoch."""
        for group in groups:
            table = self._tables.get(group.label_names)
            if table is None:
                table = self._tables[group.label_names] = EntityTable()
            key = group.label_names, group.metrics
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = _Part()
            part.entity.append(table.places(group.entities, self._number))
            part.times.append(time_ns)
            part.values.append(group.values)
            self.num_bytes += group.values.nbytes

    def blocks(self) -> list[SampleBlock]:
        """All rows."""
        return [part.block(self._tables[names].all(), metrics) for (names, metrics), part in self._parts.items()]


class _Part:
    """Rows of one block."""

    def __init__(self) -> None:
        self.entity: list[NDArray[np.int32]] = []
        self.times: list[int] = []
        self.values: list[NDArray[np.float64]] = []

    def block(self, entities: tuple[Labels, ...], metrics: tuple[str, ...]) -> SampleBlock:
        values = np.concatenate(self.values)
        times = np.repeat(np.array(self.times, np.int64), np.array([len(places) for places in self.entity]))
        columns = {metric: np.ascontiguousarray(values[:, column]) for column, metric in enumerate(metrics)}
        return SampleBlock(entities, np.concatenate(self.entity), times, columns)
