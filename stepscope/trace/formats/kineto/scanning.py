"""Scan of clean text by the optional C accelerator (`trace/native/`), and its results as rows.

Idea: most text is clean and regular, so a strict scanner turns it into columns without creating an object per event,
several times as fast as decoding. It accepts a block only if it reads it exactly as the Python reader would; damage,
numbers that need rounding, the categories of 2021 and other rare text make it refuse the whole block, which Python
then reads. The Python reader is also its oracle in the tests, and reads everything with STEPSCOPE_PURE=1 in the
environment or where stepscope was installed without a compiler.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import msgspec
import numpy as np

from stepscope.core.process import may_accelerate
from stepscope.trace.columns import DEVICE_CATEGORIES, NONE, Category, IntColumn, Numbered, narrow
from stepscope.trace.formats.kineto.events import Arguments, LaunchKey
from stepscope.trace.formats.kineto.fields import (
    CATEGORIES,
    IGNORED_FRAMES,
    LEGACY_NAMES,
    PYTHON_FUNCTION,
    READ_FRAMES,
    TRACE_SPAN,
    Track,
)

COLUMNS = (
    "track",
    "name",
    "start_ns",
    "duration_ns",
    "correlation",
    "external_id",
    "shapes",
    "launch",
    "num_bytes",
)
"""Columns of a complete event."""

_VERSION = 5
"""VERSION of the accelerator's source (module.c)."""
_OF_WIDTH = {width: np.dtype(f"i{width}") for width in (1, 2, 4, 8)} | {0: np.dtype(np.int8)}
"""Integer types by width in bytes; a column without rows has width 0."""
_BETWEEN_TEXTS = b"\0"
_NULL = b"null"
_decode_arguments = msgspec.json.Decoder(Arguments).decode
_decode_text = msgspec.json.Decoder(str | None).decode
_decode_id = msgspec.json.Decoder(int | str | None).decode
_decode_number = msgspec.json.Decoder(int).decode
_decode_sizes = msgspec.json.Decoder(tuple[int, ...]).decode


def _find_accelerator() -> ModuleType | None:
    try:
        from stepscope.trace import _scan
    except ImportError:  # no compiler
        return None
    is_current = getattr(_scan, "VERSION", 1) == _VERSION and tuple(_scan.COLUMNS.split()) == COLUMNS
    return _scan if is_current else None  # else built from other sources


_SCAN = _find_accelerator()


def has_accelerator() -> bool:
    """Kineto trace format: whether the C scanner that accelerates reading is built, and enabled in the environment."""
    return _SCAN is not None and may_accelerate()


class ScannedBatch(NamedTuple):
    """The complete events of a block of text.

    Attributes:
        num_events: entries of all phases.
        num_rows: complete events that are kept.
        columns: one entry a row, by the names in COLUMNS; track, name, shapes and launch are the builder's numbers.
        calls: the rows that name a collective or an awaited event, ascending.
        call_arguments: their arguments.
    """

    num_events: int
    num_rows: int
    columns: dict[str, IntColumn]
    calls: list[int]
    call_arguments: list[Arguments]


class BatchScanner:
    """Scans the text of one trace and numbers its strings in the tables of a builder."""

    def __init__(
        self,
        *,
        ignores_frames: bool,
        tracks: Numbered[Track],
        names: Numbered[str | None],
        shapes: Numbered[bytes],
        launches: Numbered[LaunchKey],
    ) -> None:
        assert _SCAN is not None
        self._scanner = _SCAN.Scanner(
            _category_bits(_SCAN, ignores_frames=ignores_frames),
            tuple(f'"{prefix}'.encode() for prefix in (*READ_FRAMES, *IGNORED_FRAMES)),
            len(READ_FRAMES),
        )
        self._tracks, self._names, self._shapes, self._launches = tracks, names, shapes, launches
        self._numbers = {name: _Numbers() for name in ("track", "name", "shapes", "launch")}
        self._is_stopped = False

    def stop(self) -> None:
        """Refuse all further text: in a trace of 2021 events of any category may hold their ids under the old key."""
        self._is_stopped = True

    def scan(self, text: memoryview) -> ScannedBatch | None:
        """The rows of comma-separated events; None when Python has to read the text."""
        if self._is_stopped:
            return None
        scanned = self._scanner.scan(text)
        if scanned is None:
            return None
        num_events, num_rows, column_cells, call_cells, new_texts = scanned
        self._number_texts(*new_texts)
        columns = {name: self._column(name, cells, num_rows) for name, cells in zip(COLUMNS, column_cells, strict=True)}
        calls = np.frombuffer(call_cells, np.int64).reshape(-1, 3).tolist()
        return ScannedBatch(
            num_events=num_events,
            num_rows=num_rows,
            columns=columns,
            calls=[row for row, _, _ in calls],
            call_arguments=[_decode_arguments(text[begin:end]) for _, begin, end in calls],
        )

    def _column(self, name: str, cells: bytes, num_rows: int) -> IntColumn:
        column: IntColumn = np.frombuffer(cells, _OF_WIDTH[len(cells) // max(num_rows, 1)])
        numbers = self._numbers.get(name)
        return column if numbers is None or numbers.are_equal else narrow(numbers[column])

    def _number_texts(
        self, tracks: list[bytes], names: list[bytes], shapes: list[bytes], launches: list[bytes]
    ) -> None:
        """Number the new texts; number 0 of shapes and launches is "not recorded", which columns hold as NONE."""
        self._numbers["track"].extend([self._tracks[_track(text)] for text in tracks])
        self._numbers["name"].extend([self._names[_decode_text(text or _NULL)] for text in names])
        self._numbers["shapes"].extend([self._shapes[text] - 1 for text in shapes])
        self._numbers["launch"].extend([self._launches[_launch_key(text)] - 1 for text in launches])


class _Numbers:
    """The builder's numbers by the accelerator's, which differ once Python has read text in between.

    Attributes:
        are_equal: both are the same so far.
    """

    def __init__(self) -> None:
        self._numbers = np.full(1, NONE, np.int32)  # the last entry stands for NONE
        self.are_equal = True

    def extend(self, numbers: list[int]) -> None:
        if numbers:
            known = len(self._numbers) - 1
            self._numbers = np.concatenate((self._numbers[:-1], np.array([*numbers, NONE], np.int32)))
            self.are_equal = self.are_equal and numbers == list(range(known, known + len(numbers)))

    def __getitem__(self, scanned: IntColumn) -> IntColumn:
        numbers: IntColumn = self._numbers[scanned]
        return numbers


def _track(text: bytes) -> Track:
    category, process, thread = text.split(_BETWEEN_TEXTS)
    return _decode_text(category or _NULL), _decode_id(process or _NULL), _decode_id(thread or _NULL)


def _launch_key(text: bytes) -> LaunchKey:
    grid, block, registers, shared_memory = text.split(_BETWEEN_TEXTS)
    return (
        _decode_sizes(grid or b"[]"),
        _decode_sizes(block or b"[]"),
        _decode_number(registers) if registers else NONE,
        _decode_number(shared_memory) if shared_memory else NONE,
    )


def _category_bits(scan: ModuleType, *, ignores_frames: bool) -> dict[bytes, int]:
    """Bits of what is read of each category's rows, by the category's JSON text; others only fill common columns."""
    reads: dict[Category, int] = dict.fromkeys(DEVICE_CATEGORIES, scan.ON_DEVICE)
    reads[Category.CPU_OP] = scan.READS_SHAPES | scan.READS_NAMED
    reads[Category.USER_ANNOTATION] = scan.READS_SHAPES  # those of communication backends
    reads[Category.KERNEL] |= scan.READS_LAUNCH | scan.READS_NAMED
    reads[Category.SYNC_RECORD] = scan.READS_NAMED  # the awaited event
    reads[Category.MEMCPY] |= scan.READS_BYTES
    reads[Category.MEMSET] |= scan.READS_BYTES
    bits: dict[str | None, int] = {name: reads.get(category, 0) for name, category in CATEGORIES.items()}
    bits |= dict.fromkeys(LEGACY_NAMES, scan.UNSUPPORTED)
    bits[TRACE_SPAN] = scan.IGNORED
    bits[PYTHON_FUNCTION] = scan.IGNORED_BY_NAME if ignores_frames else 0
    return {f'"{name}"'.encode(): of_name for name, of_name in bits.items() if of_name}
