"""Samples on their way into the metric history: wide rows, one an entity and time, with a column for each metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.store.history.questions import Labels


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Samples of entities (a GPU, a host, a link, a job on a node) whose labels have the same names.

    Attributes:
        entities: labels of each, sorted by name, those of its target among them ("instance", "rack"). Give the same
            objects again and again while the entities stay: they are recognised, and cost little then.
        entity: index into `entities` of each row; shape (rows,).
        times_ns: ns since the epoch of each row; shape (rows,). Kept in whole milliseconds, as Prometheus does.
        columns: values by metric name, NaN where the page had none; shape (rows,) each.
    """

    entities: tuple[Labels, ...]
    entity: NDArray[np.int32]
    times_ns: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table in memory.

    Attributes:
        labels: label names, sorted.
        entities: labels of each entity.
        entity: index into `entities` of each row.
        times_ms: ms since the epoch of each row.
        columns: values by metric name, NaN where unknown.
    """

    labels: tuple[str, ...]
    entities: tuple[Labels, ...]
    entity: NDArray[np.int32]
    times_ms: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float64]]

    def __len__(self) -> int:
        return len(self.times_ms)


class KnownEntities:
    """Entities of one table that have come so far, each with its index. Objects that come again cost next to nothing.

    Attributes:
        labels: label names, sorted.
    """

    def __init__(self, labels: tuple[str, ...]) -> None:
        self.labels = labels
        self._index: dict[Labels, int] = {}
        self._by_id: dict[int, int] = {}
        self._kept: list[Labels] = []
        self._all: tuple[Labels, ...] = ()

    def __len__(self) -> int:
        return len(self._index)

    def all(self) -> tuple[Labels, ...]:
        """All of them, in the order of their indices; the same object until there are more."""
        if len(self._all) != len(self._index):
            self._all = tuple(self._index)
        return self._all

    def places(self, entities: tuple[Labels, ...]) -> NDArray[np.int32]:
        """Index of each entity; new ones get one.

        Raises:
            ValueError: one has other label names.
        """
        places = list(map(self._by_id.get, map(id, entities)))
        if None in places:
            places = [
                self._place(labels) if place is None else place for labels, place in zip(entities, places, strict=True)
            ]
        return np.array(places, np.int32)

    def _place(self, labels: Labels) -> int:
        place = self._index.get(labels)
        if place is None:
            if tuple(name for name, _ in labels) != self.labels:
                raise ValueError(f"an entity has other labels than {', '.join(self.labels)}: {labels}")
            place = self._index[labels] = len(self._index)
        if len(self._kept) > 2 * len(self._index):
            self._by_id.clear()
            self._kept.clear()
        self._by_id[id(labels)] = place
        self._kept.append(labels)  # so that no other object gets its id
        return place


def label_names(block: SampleBlock) -> tuple[str, ...]:
    """Names of the labels that the entities of a block have.

    Raises:
        ValueError: they are not sorted, or rows, columns and entities do not fit together.
    """
    names = tuple(name for name, _ in block.entities[0]) if block.entities else ()
    if list(names) != sorted(set(names)):
        raise ValueError(f"labels are not sorted, or twice: {', '.join(names)}")
    lengths = {len(block.entity), len(block.times_ns), *(len(column) for column in block.columns.values())}
    if len(lengths) != 1:
        raise ValueError(f"rows and columns have the lengths {sorted(lengths)}")
    if len(block.entity) and not 0 <= int(block.entity.min()) <= int(block.entity.max()) < len(block.entities):
        raise ValueError("a row has an entity that the block does not have")
    return names


def to_rows(block: SampleBlock, known: KnownEntities) -> TableRows:
    """The rows of a block, with the entities of its table. They may become more: `known.all()` fits these rows still.

    Raises:
        ValueError: an entity has other label names than the table.
    """
    return TableRows(
        known.labels,
        (),
        known.places(block.entities)[block.entity],
        np.asarray(block.times_ns, np.int64) // 1_000_000,
        {name: np.asarray(values, np.float64) for name, values in block.columns.items()},
    )


def joined(parts: Sequence[TableRows], known: KnownEntities | None = None) -> TableRows:
    """All rows of parts of the same table, in their order.

    Args:
        known: entities that the rows have; by default each part has its own.
    """
    if known is not None:
        entities, entity = known.all(), np.concatenate([part.entity for part in parts])
    elif len(parts) == 1:
        return parts[0]
    else:
        entities, entity = _joined_entities(parts)
    names = dict.fromkeys(name for part in parts for name in part.columns)
    times = np.concatenate([part.times_ms for part in parts])
    return TableRows(parts[0].labels, entities, entity, times, {name: _joined_column(parts, name) for name in names})


def _joined_column(parts: Iterable[TableRows], name: str) -> NDArray[np.float64]:
    columns = (part.columns.get(name) for part in parts)
    return np.concatenate(
        [np.full(len(part), np.nan) if column is None else column for part, column in zip(parts, columns, strict=True)]
    )


def _joined_entities(parts: Sequence[TableRows]) -> tuple[tuple[Labels, ...], NDArray[np.int32]]:
    first = parts[0].entities
    if all(part.entities is first for part in parts):
        return first, np.concatenate([part.entity for part in parts])
    index: dict[Labels, int] = {}
    places: dict[int, NDArray[np.int32]] = {}
    entity = []
    for part in parts:
        place = places.get(id(part.entities))
        if place is None:
            place = np.array([index.setdefault(labels, len(index)) for labels in part.entities], np.int32)
            places[id(part.entities)] = place
        entity.append(place[part.entity])
    return tuple(index), np.concatenate(entity).astype(np.int32, copy=False)


def sorted_rows(rows: TableRows) -> TableRows:
    """The rows sorted by entity, then time; rows of the same entity and time keep their order."""
    order = sorted(range(len(rows.entities)), key=lambda index: sort_key(rows.entities[index]))
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    entity = rank[rows.entity]
    if len(order) <= 1 << 16:
        entity = entity.astype(np.uint16)  # its stable sort is a radix sort, ten times as fast
    times = rows.times_ms
    if bool((times[1:] < times[:-1]).any()):
        by_time = np.argsort(times, kind="stable")
        places = by_time[np.argsort(entity[by_time], kind="stable")]
    else:
        places = np.argsort(entity, kind="stable")
    return TableRows(
        rows.labels,
        tuple(rows.entities[index] for index in order),
        entity[places].astype(np.int32),
        times[places],
        {name: column[places] for name, column in rows.columns.items()},
    )


def sort_key(labels: Labels) -> tuple[str, Labels]:
    """Order of entities in a file, by target first: rows of a node lie together, and readers skip the others."""
    return next((value for name, value in labels if name == "instance"), ""), labels


def selected(rows: TableRows, keep: NDArray[np.bool_]) -> TableRows:
    """Some of the rows; entities without any are left out."""
    if keep.all():
        return without_idle(rows)
    some = TableRows(
        rows.labels,
        rows.entities,
        rows.entity[keep],
        rows.times_ms[keep],
        {name: column[keep] for name, column in rows.columns.items()},
    )
    return without_idle(some)


def without_idle(rows: TableRows) -> TableRows:
    """The rows, without entities that have none."""
    used = np.zeros(len(rows.entities), np.bool_)
    used[rows.entity] = True
    if used.all():
        return rows
    place = np.cumsum(used, dtype=np.int32) - 1
    entities = tuple(labels for labels, is_used in zip(rows.entities, used.tolist(), strict=True) if is_used)
    return TableRows(rows.labels, entities, place[rows.entity].astype(np.int32), rows.times_ms, rows.columns)
