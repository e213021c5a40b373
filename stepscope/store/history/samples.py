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
        entities: labels of each, those of its target among them ("instance", "rack"). Give the same tuple again and
            again where the entities stay: it is recognised, and costs nothing then.
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


def label_names(block: SampleBlock) -> tuple[str, ...]:
    """Names of the labels that the entities of a block have.

    Raises:
        ValueError: entities have other names, or rows and columns do not have one length.
    """
    names = tuple(name for name, _ in block.entities[0]) if block.entities else ()
    if list(names) != sorted(set(names)):
        raise ValueError(f"labels are not sorted, or twice: {', '.join(names)}")
    lengths = {len(block.entity), len(block.times_ns), *(len(column) for column in block.columns.values())}
    if len(lengths) != 1:
        raise ValueError(f"rows and columns have the lengths {sorted(lengths)}")
    return names


def to_rows(block: SampleBlock) -> TableRows:
    """The rows of a block.

    Raises:
        ValueError: its entities do not have the same label names, or its parts do not fit.
    """
    names = label_names(block)
    if any(len(labels) != len(names) or tuple(name for name, _ in labels) != names for labels in block.entities):
        raise ValueError(f"an entity has other labels than {', '.join(names)}")
    if len(block.entity) and not 0 <= int(block.entity.min()) <= int(block.entity.max()) < len(block.entities):
        raise ValueError("a row has an entity that the block does not have")
    return TableRows(
        names,
        block.entities,
        np.asarray(block.entity, np.int32),
        np.asarray(block.times_ns, np.int64) // 1_000_000,
        {name: np.asarray(values, np.float64) for name, values in block.columns.items()},
    )


def joined(parts: Sequence[TableRows]) -> TableRows:
    """All rows of parts of the same table, in their order."""
    if len(parts) == 1:
        return parts[0]
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
    order = sorted(range(len(rows.entities)), key=lambda index: _sort_key(rows.entities[index]))
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


def _sort_key(labels: Labels) -> tuple[str, Labels]:
    """By target first: rows of a node lie together, and readers skip the rest of a file."""
    return next((value for name, value in labels if name == "instance"), ""), labels


def selected(rows: TableRows, keep: NDArray[np.bool_]) -> TableRows:
    """Some of the rows; entities without any are left out."""
    entity = rows.entity[keep]
    used = np.zeros(len(rows.entities), np.bool_)
    used[entity] = True
    place = np.cumsum(used, dtype=np.int32) - 1
    return TableRows(
        rows.labels,
        tuple(labels for labels, is_used in zip(rows.entities, used.tolist(), strict=True) if is_used),
        place[entity].astype(np.int32),
        rows.times_ms[keep],
        {name: column[keep] for name, column in rows.columns.items()},
    )
