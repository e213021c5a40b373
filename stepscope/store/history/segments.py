"""Segments: rows and events of about 15 s, in one small file.

magic, version      8 bytes
length of header    u32, little endian; then the header: JSON, padded with blanks to a multiple of 8
columns             entity (int32, padded to 8 bytes), times (int64, ms), one float64 column a metric; of each table
checksum            CRC-32 of all before it, u32
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from stepscope.core.errors import DataError
from stepscope.store.history.questions import HistoryEvent, Labels
from stepscope.store.history.samples import TableRows

_MAGIC = b"SSHIST\x00\x01"
_PACKED = b"SSHIST\x00\x02"
_LENGTH = struct.Struct("<I")
_KEPT_ENTITIES = 64
"""Sets of entities that are remembered; segments that follow each other have few."""


class _Table(msgspec.Struct, frozen=True):
    labels: tuple[str, ...]
    values: msgspec.Raw  # of each entity's labels
    metrics: tuple[str, ...]
    rows: int


class _Header(msgspec.Struct, frozen=True):
    tables: list[_Table]
    events: list[HistoryEvent]


@dataclass(frozen=True, slots=True)
class Segment:
    """What a segment holds.

    Attributes:
        tables: rows of each table; their columns may be views of the file's content.
        events: in the order in which they were appended.
    """

    tables: tuple[TableRows, ...]
    events: tuple[HistoryEvent, ...]


def crc32(content: bytes | memoryview, value: int = 0) -> int:
    """CRC-32 of bytes."""
    return int(isal_zlib.crc32(content, value))


class SegmentEncoder:
    """Writes segments; remembers the text of entities that stay.

    Args:
        packed: compress them, to a fifth; it takes as long as to write them to a near disk.
    """

    def __init__(self, *, packed: bool = False) -> None:
        self._packed = packed
        self._texts: dict[tuple[str, ...], tuple[tuple[Labels, ...], bytes]] = {}

    def encode(self, tables: Sequence[TableRows], events: Sequence[HistoryEvent]) -> bytes:
        """Content of a segment's file."""
        parts: list[bytes | memoryview] = [b"", b"", b""]
        about = []
        for rows in tables:
            values = msgspec.Raw(self._text(rows))
            about.append(_Table(rows.labels, values, tuple(rows.columns), len(rows)))
            parts += [_bytes(rows.entity, "<i4"), bytes(len(rows) * -4 % 8), _bytes(rows.times_ms, "<i8")]
            parts += [_bytes(column, "<f8") for column in rows.columns.values()]
        header = msgspec.json.encode(_Header(about, list(events)))
        header += b" " * (-(len(header) + len(_MAGIC) + _LENGTH.size) % 8)
        parts[:3] = _MAGIC, _LENGTH.pack(len(header)), header
        checksum = 0
        for part in parts:
            checksum = crc32(part, checksum)
        content = b"".join([*parts, _LENGTH.pack(checksum)])
        return _PACKED + isal_zlib.compress(content, 1) if self._packed else content

    def _text(self, rows: TableRows) -> bytes:
        known = self._texts.get(rows.labels)
        if known is None or known[0] is not rows.entities:
            text = msgspec.json.encode([[value for _, value in labels] for labels in rows.entities])
            known = self._texts[rows.labels] = (rows.entities, text)
        return known[1]


def _bytes(values: NDArray[Any], kind: str) -> memoryview:
    return np.ascontiguousarray(values, kind).data.cast("B") if len(values) else memoryview(b"")


class SegmentDecoder:
    """Reads segments; entities that stay are the same objects in all of them."""

    def __init__(self) -> None:
        self._entities: dict[tuple[str, ...], tuple[bytes, tuple[Labels, ...]]] = {}

    def decode(self, content: memoryview, name: str) -> Segment:
        """What a segment holds.

        Raises:
            DataError: it is cut or damaged.
        """
        start = len(_MAGIC) + _LENGTH.size
        if content[: len(_PACKED)] == _PACKED:
            try:
                content = memoryview(isal_zlib.decompress(content[len(_PACKED) :]))
            except isal_zlib.error as error:  # type: ignore[misc]  # the stub has an instance
                raise _damaged(name, str(error)) from error
        if len(content) < start + _LENGTH.size or bytes(content[: len(_MAGIC)]) != _MAGIC:
            raise _damaged(name, "it is not a segment, or it is cut")
        body = content[: -_LENGTH.size]
        if _LENGTH.unpack(content[-_LENGTH.size :])[0] != crc32(body):
            raise _damaged(name, "its checksum is wrong")
        place = start + _LENGTH.unpack(content[len(_MAGIC) : start])[0]
        try:
            header = msgspec.json.decode(body[start:place], type=_Header)
            tables = []
            for about in header.tables:
                entity = np.frombuffer(body, "<i4", about.rows, place)
                place += about.rows * 4 + (-about.rows * 4) % 8
                times = np.frombuffer(body, "<i8", about.rows, place)
                place += about.rows * 8
                columns = {}
                for metric in about.metrics:
                    columns[metric] = np.frombuffer(body, "<f8", about.rows, place)
                    place += about.rows * 8
                tables.append(TableRows(about.labels, self._labels(about), entity, times, columns))
        except (msgspec.DecodeError, ValueError) as error:
            raise _damaged(name, str(error)) from error
        return Segment(tuple(tables), tuple(header.events))

    def _labels(self, about: _Table) -> tuple[Labels, ...]:
        text = bytes(about.values)
        known = self._entities.get(about.labels)
        if known is not None and known[0] == text:
            return known[1]
        values = msgspec.json.decode(text, type=list[list[str]])
        entities = tuple(tuple(zip(about.labels, one, strict=True)) for one in values)
        self._entities[about.labels] = text, entities  # the newest alone: of a fleet they are megabytes
        return entities


def _damaged(name: str, why: str) -> DataError:
    return DataError(f"is damaged ({why})", where=name, what_next="it is left out")
