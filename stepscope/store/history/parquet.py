"""Parquet files of the metric history: rows sorted by entity, then time, with what any reader needs in the file itself.

Columns: `entity` (number of the series, the same in all files), `time` (UTC, ms), the labels (dictionary-encoded), the
metrics (float64, null where unknown). Key-value metadata: `stepscope.schema`, `stepscope.origin`,
`stepscope.labels`
(names of labels and their columns), `stepscope.metrics` (kinds and units), `stepscope.entities` (label values of each
series in the file: base64 of zlib of JSON).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import DataError, UsageError
from stepscope.store.history.catalog import SCHEMA, MetricEntry, entity_id
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, Labels
from stepscope.store.history.samples import TableRows, selected

ROWS_OF_GROUP = 1 << 17
_RESERVED = frozenset({"entity", "time", "last_time"})


def load_pyarrow() -> tuple[ModuleType, ModuleType]:
    """pyarrow and pyarrow.parquet.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise no_pyarrow() from error
    return pyarrow, parquet


def no_pyarrow() -> UsageError:
    """The error that says that pyarrow is not installed."""
    return UsageError("metric history needs pyarrow", what_next='run: pip install "stepscope[history]"')


def label_column(label: str, metrics: Iterable[str] = ()) -> str:
    """Column of a label: its own name, unless another column has that."""
    return f"label_{label}" if label in _RESERVED or label in metrics else label


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a file is made from, for a catalog that has to be made again.

    Attributes:
        span_ms, hours: start of the time that it is for, ms, and its length.
        sources: files of a finer resolution whose rows it sums up.
        replaces: files whose rows it holds too.
    """

    tier: str
    table: str
    span_ms: int
    hours: int = 1
    sources: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows to be written, sorted by entity, then time.

    Attributes:
        labels: label names.
        entities: labels of each entity, in the order of the rows.
        entity: index into `entities`.
        times: columns of times by name, ms since the epoch; `time` first.
        values: columns of values by name, NaN where unknown.
    """

    labels: tuple[str, ...]
    entities: tuple[Labels, ...]
    entity: NDArray[np.int32]
    times: Mapping[str, NDArray[np.int64]]
    values: Mapping[str, NDArray[np.float64]]


def encode_rows(columns: Columns, *, origin: Origin, metrics: Mapping[str, MetricEntry]) -> Any:
    """Content of a Parquet file (a pyarrow buffer).

    Args:
        metrics: kinds and units of the metrics that the columns are of.
    """
    pa, parquet = load_pyarrow()
    ids = np.array([entity_id(labels) for labels in columns.entities], np.int64)
    arrays: dict[str, Any] = {"entity": pa.array(ids[columns.entity])}
    for name, times in columns.times.items():
        arrays[name] = pa.array(times).cast(pa.timestamp("ms", tz="UTC"))
    label_columns = {label: label_column(label, metrics) for label in columns.labels}
    for place, label in enumerate(columns.labels):
        codes: dict[str, int] = {}
        code = np.array([codes.setdefault(one[place][1], len(codes)) for one in columns.entities], np.int32)
        arrays[label_columns[label]] = pa.DictionaryArray.from_arrays(
            pa.array(code[columns.entity]), pa.array(list(codes), pa.string())
        )
    for name, values in columns.values.items():
        unknown = np.isnan(values)
        arrays[name] = pa.array(values, mask=unknown) if unknown.any() else pa.array(values)
    table = pa.table(arrays)
    about = {
        "stepscope.schema": SCHEMA,
        "stepscope.origin": msgspec.json.encode(origin),
        "stepscope.labels": msgspec.json.encode(label_columns),
        "stepscope.metrics": msgspec.json.encode(metrics),
        "stepscope.entities": _packed([[value for _, value in labels] for labels in columns.entities]),
    }
    table = table.replace_schema_metadata(about)
    return _encoded(table, parquet, pa, delta=[*columns.times])


def _encoded(table: Any, parquet: ModuleType, pa: ModuleType, *, delta: Sequence[str] = ()) -> Any:
    sink = pa.BufferOutputStream()
    parquet.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=3,
        row_group_size=ROWS_OF_GROUP,
        use_dictionary=[name for name in table.column_names if name not in delta],
        column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    )
    return sink.getvalue()


def _packed(values: list[list[str]]) -> bytes:
    return base64.b64encode(zlib.compress(msgspec.json.encode(values), 1))


def entities_of(metadata: Mapping[bytes, bytes], name: str) -> tuple[Labels, ...]:
    """Labels of the series in a file, by its key-value metadata.

    Raises:
        DataError: the file is not one of ours, or damaged.
    """
    try:
        labels = tuple(msgspec.json.decode(metadata[b"stepscope.labels"], type=dict[str, str]))
        text = zlib.decompress(base64.b64decode(metadata[b"stepscope.entities"]))
        values = msgspec.json.decode(text, type=list[list[str]])
        return tuple(tuple(zip(labels, one, strict=True)) for one in values)
    except (KeyError, ValueError, zlib.error, msgspec.DecodeError) as error:
        raise DataError(f"is not a file of a metric history ({error!r})", where=name) from error


def encode_events(events: Sequence[HistoryEvent], *, origin: Origin) -> Any:
    """Content of a Parquet file of events."""
    pa, parquet = load_pyarrow()
    stamp = pa.timestamp("ns", tz="UTC")
    arrays = {
        "start": pa.array([event.start_ns for event in events], pa.int64()).cast(stamp),
        "end": pa.array([event.end_ns for event in events], pa.int64()).cast(stamp),
        "kind": pa.array([event.kind.value for event in events], pa.string()),
        "code": pa.array([event.code for event in events], pa.string()),
        "text": pa.array([event.text for event in events], pa.string()),
        "labels": pa.array([dict(event.labels) for event in events], pa.map_(pa.string(), pa.string())),
    }
    about = {"stepscope.schema": SCHEMA, "stepscope.origin": msgspec.json.encode(origin)}
    return _encoded(pa.table(arrays).replace_schema_metadata(about), parquet, pa)


def decode_entities(content: memoryview, name: str) -> tuple[Labels, ...]:
    """Labels of the series in a file.

    Raises:
        DataError: it is damaged.
    """
    pa, parquet = load_pyarrow()
    try:
        metadata = parquet.read_metadata(pa.BufferReader(pa.py_buffer(content))).metadata
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"is damaged ({error})", where=name) from error
    return entities_of(metadata or {}, name)


def decode_rows(content: memoryview, name: str, wanted: Collection[Labels] | None = None) -> TableRows:
    """Rows of a file; columns of times other than `time` are columns of values, in ms since the epoch.

    Args:
        wanted: only of these entities; row groups without any of them are not read.

    Raises:
        DataError: it is damaged.
    """
    pa, parquet = load_pyarrow()
    try:
        source = pa.BufferReader(pa.py_buffer(content))
        file = parquet.ParquetFile(source, page_checksum_verification=True)
        metadata = file.schema_arrow.metadata or {}
        entities = entities_of(metadata, name)
        labels = msgspec.json.decode(metadata[b"stepscope.labels"], type=dict[str, str])
        groups = list(range(file.num_row_groups))
        if wanted is not None:
            kept = {entity_id(one) for one in entities if one in wanted}
            groups = [group for group in groups if kept & set(np.unique(_entity_column(file, [group])).tolist())]
        columns = [one for one in file.schema_arrow.names if one not in {"entity", *labels.values()}]
        entity, table = _entity_column(file, groups), file.read_row_groups(groups, columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"is damaged ({error})", where=name) from error
    ids = np.array([entity_id(one) for one in entities], np.int64)
    starts = np.flatnonzero(np.append(True, entity[1:] != entity[:-1]))[: len(entity)]  # sorted: a run an entity
    order = np.argsort(ids)
    run = order[np.searchsorted(ids[order], entity[starts])]
    entity = np.repeat(run, np.diff(np.append(starts, len(entity))))
    values = {}
    for column in table.column_names:
        array = table.column(column)
        values[column] = (array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_numpy()
    times = values.pop("time")
    columns_of_rows = {one: np.asarray(array, np.float64) for one, array in values.items()}
    rows = TableRows(tuple(labels), entities, entity.astype(np.int32), times, columns_of_rows)
    if wanted is None:
        return rows
    return selected(rows, np.array([one in wanted for one in entities], np.bool_)[rows.entity])


def _entity_column(file: Any, groups: Sequence[int]) -> NDArray[np.int64]:
    values: NDArray[np.int64] = file.read_row_groups(groups, ["entity"]).column("entity").to_numpy()
    return values


def decode_events(content: memoryview, name: str) -> list[HistoryEvent]:
    """All events of a file.

    Raises:
        DataError: it is damaged.
    """
    pa, parquet = load_pyarrow()
    try:
        table = parquet.ParquetFile(pa.BufferReader(pa.py_buffer(content)), page_checksum_verification=True).read()
        starts, ends = (table.column(one).cast(pa.int64()).to_pylist() for one in ("start", "end"))
        rest = (table.column(one).to_pylist() for one in ("kind", "code", "text", "labels"))
        return [
            HistoryEvent(HistoryEventKind(kind), start, end, tuple(sorted(labels)), code, text)
            for start, end, kind, code, text, labels in zip(starts, ends, *rest, strict=True)
        ]
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"is damaged ({error})", where=name) from error


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file says about itself.

    Attributes:
        first_ms, last_ms: times of its rows; 0 of events.
        labels: label names.
        metrics: kinds and units.
    """

    origin: Origin
    rows: int
    first_ms: int
    last_ms: int
    labels: tuple[str, ...]
    metrics: dict[str, MetricEntry]


def facts_of(content: memoryview, name: str) -> FileFacts:
    """What a file says about itself.

    Raises:
        DataError: it is damaged, or not one of ours.
    """
    pa, parquet = load_pyarrow()
    try:
        file = parquet.ParquetFile(pa.BufferReader(pa.py_buffer(content)), page_checksum_verification=True)
        metadata = file.schema_arrow.metadata or {}
        if metadata.get(b"stepscope.schema") != SCHEMA.encode():
            raise DataError(f"is not a file of schema {SCHEMA}", where=name)
        origin = msgspec.json.decode(metadata[b"stepscope.origin"], type=Origin)
        labels = msgspec.json.decode(metadata.get(b"stepscope.labels", b"{}"), type=dict[str, str])
        metrics = msgspec.json.decode(metadata.get(b"stepscope.metrics", b"{}"), type=dict[str, MetricEntry])
        rows = file.read()
    except (pa.ArrowException, OSError, KeyError, msgspec.DecodeError) as error:
        raise DataError(f"is damaged ({error})", where=name) from error
    times = rows.column("time").cast(pa.int64()).to_numpy() if "time" in rows.column_names else np.zeros(1, np.int64)
    return FileFacts(origin, len(rows), int(times.min()), int(times.max()), tuple(labels), metrics)
