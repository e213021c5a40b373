"""Catalog of a metric history: its schema, metrics with their units, and the Parquet files that belong to it.

    history.json                     the catalog; replaced whole, so a reader sees all of a change or nothing
    segments/000000000042.segment    rows of about 15 s, not yet in Parquet files
    raw/TABLE/2026-12-01T04-42.parquet, 1m/..., 10m/...    an hour of rows as they came, and of lower resolution
    events/2026-12-01-42.parquet     events that began on a day
    damaged/                         files that could not be read

A table has the series whose labels have the same names; the numbers in file names are those of the newest segment or
change in them. A file that the catalog does not name is not part of the history: it was replaced, or a writer that was
killed left it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from stepscope.core.errors import DataError, UnreachableError
from stepscope.core.metrics import MetricKind, Unit
from stepscope.store.history.places import Place
from stepscope.store.history.questions import HistoryMetric

SCHEMA = "stepscope.history/1"
CATALOG = "history.json"
SEGMENTS = "segments"
EVENTS = "events"
RAW = "raw"
TIER_MS: Mapping[str, int] = {RAW: 0, "1m": 60_000, "10m": 600_000}
"""Width of a tier's steps, the finest first; ms."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class MetricEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a metric; None where its source did not say."""

    kind: MetricKind | None = None
    unit: Unit | None = None


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Parquet file.

    Attributes:
        path: relative.
        span_ms: start of the time that it is for, (span, span + hours]; ms since the epoch.
        first_ms, last_ms: of its rows; of events, the latest end, or None where one lasts.
        crc32: checksum of its content.
        columns: index into the catalog's `columns`.
        sources: of a lower resolution, the files that it was made from; empty when they have all gone.
    """

    path: str
    tier: str
    table: str
    span_ms: int
    first_ms: int
    last_ms: int | None
    rows: int
    bytes: int
    crc32: int
    columns: int = 0
    hours: int = 1
    sources: tuple[str, ...] = ()


class Retired(msgspec.Struct, frozen=True):
    """A file that is not part of the history any more, kept a while for readers that have begun with it."""

    path: str
    since_ms: int


class Catalog(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of history.json.

    Attributes:
        compacted: number of the newest segment whose rows are in `files`.
        newest_ms: time of the newest row in `files`.
        tables: label names of each table.
        columns: sets of metrics that files have, each once.
    """

    schema: str = SCHEMA
    change: int = 0
    compacted: int = 0
    newest_ms: int = 0
    metrics: dict[str, MetricEntry] = {}
    tables: dict[str, tuple[str, ...]] = {}
    columns: tuple[tuple[str, ...], ...] = ()
    files: tuple[StoredFile, ...] = ()
    retired: tuple[Retired, ...] = ()


_decode = msgspec.json.Decoder(Catalog).decode


def read_catalog(place: Place) -> Catalog:
    """The catalog of a history; an empty one where there is none yet.

    Raises:
        DataError: it cannot be read, or a newer stepscope wrote it.
        UnreachableError: the place does not answer.
    """
    return decode_catalog(catalog_content(place), place.path(CATALOG))


def catalog_content(place: Place) -> bytes:
    """Content of history.json; empty where there is none yet.

    Raises:
        UnreachableError: the place does not answer.
    """
    try:
        return bytes(place.read(CATALOG))
    except FileNotFoundError:
        return b""
    except OSError as error:
        where = place.path(CATALOG)
        raise UnreachableError(f"cannot be read ({error})", where=where, what_next="check the place") from error


def decode_catalog(content: bytes, where: str) -> Catalog:
    """The catalog in a history.json.

    Raises:
        DataError: it is damaged, or a newer stepscope wrote it.
    """
    if not content:
        return Catalog()
    try:
        catalog = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"is damaged ({error})", where=where, what_next="start `stepscope history run`: it makes the catalog again"
        ) from error
    if catalog.schema != SCHEMA:
        raise DataError(f"has schema {catalog.schema}", where=where, what_next=f"this stepscope reads {SCHEMA}")
    return catalog


def encode_catalog(catalog: Catalog) -> bytes:
    """The content of history.json."""
    return msgspec.json.encode(catalog)


_COUNTER_ENDS = ("_total", "_sum", "_count", "_bucket")
_UNITS_LONGEST_FIRST = sorted(set(Unit) - {Unit.NONE}, key=len, reverse=True)


def metric_entry(name: str) -> MetricEntry:
    """Kind and unit by Prometheus' rules for names, for metrics that were not described."""
    kind = MetricKind.COUNTER if name.endswith(_COUNTER_ENDS) else MetricKind.GAUGE
    base = name.removesuffix("_total")
    return MetricEntry(kind, next((unit for unit in _UNITS_LONGEST_FIRST if base.endswith(f"_{unit}")), Unit.NONE))


def described(metric: HistoryMetric) -> MetricEntry:
    """Entry of a metric, with what its name says where the metric itself does not."""
    by_name = metric_entry(metric.name)
    return MetricEntry(metric.kind or by_name.kind, by_name.unit if metric.unit is None else metric.unit)


_MAX_TABLE_NAME = 100


def table_name(labels: Sequence[str]) -> str:
    """Name of the table of series with these label names: joined by "-", which no label name has."""
    name = "-".join(labels) or "none"
    if len(name) > _MAX_TABLE_NAME:
        name = f"{name[:_MAX_TABLE_NAME]}-{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}"
    return name


def entity_id(labels: Sequence[tuple[str, str]]) -> int:
    """Number of the series with these sorted labels: the same in all files."""
    text = msgspec.json.encode(labels)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def file_choice(files: Sequence[StoredFile], tiers: Collection[str], there: Collection[str]) -> list[StoredFile]:
    """Files that together have each row once.

    Args:
        files: of the history, all that overlap some time.
        tiers: that may be used where a finer one is there too; others are used where the finer one is gone.
        there: paths of all files of the history.
    """
    order = {tier: place for place, tier in enumerate(TIER_MS)}
    covered: set[str] = set()
    choice = []
    for file in sorted((file for file in files if file.tier in order), key=lambda file: -order[file.tier]):
        if file.path in covered:
            covered.update(file.sources)
        elif not file.sources or file.tier in tiers or not all(source in there for source in file.sources):
            choice.append(file)
            covered.update(file.sources)
    return choice


_SEGMENT = re.compile(r"(\d{12})\.segment")


def segment_number(name: str) -> int | None:
    """Number of a segment by its file name; None of another file."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def segment_path(number: int) -> str:
    """Path of a segment."""
    return f"{SEGMENTS}/{number:012d}.segment"


def hour_of(times_ms: int) -> int:
    """Start of the hour (start, start + 1 h] that a time lies in; ms."""
    return (times_ms - 1) // HOUR_MS * HOUR_MS


def stamp(span_ms: int) -> str:
    """Time in the name of a file: its hour."""
    return datetime.fromtimestamp(span_ms / 1000, UTC).strftime("%Y-%m-%dT%H")


_NUMBER = re.compile(r"\d{4}-\d{2}-\d{2}(?:T\d{2})?-(\d+)(?:-(\d+)(?:\.\d+)?)?\.parquet")


def file_number(path: str) -> int:
    """Number of the newest segment (raw rows and events) or of the change (lower resolution) in a path; -1: none."""
    match = _NUMBER.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match else -1


def merge_number(path: str) -> int | None:
    """Number of the change in the path of a merged file of raw rows."""
    match = _NUMBER.fullmatch(path.rpartition("/")[2])
    return int(match[2]) if match and match[2] else None
