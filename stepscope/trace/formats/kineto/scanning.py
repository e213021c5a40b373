"""Scan of clean text: the optional accelerator in C (`trace/native/`) and how its numbers become rows.

It reads a run of events at several times the speed of decoding them to objects, or refuses it as a whole: damage,
numbers that need rounding, the category names of 2021 and whatever else is rare are left to the reader in Python,
which is also its oracle in the tests. With STEPSCOPE_PURE=1 in the environment, and where no compiler was at hand
when stepscope was installed, everything is read in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import msgspec
import numpy as np

from stepscope.core.process import may_accelerate
from stepscope.trace.columns import DEVICE_CATEGORIES, NONE, Category, IntColumn, Numbered, narrow
from stepscope.trace.formats.kineto.events import Arguments, LaunchKey
from stepscope.trace.formats.kineto.fields import (
    CATEGORIES,
    LEGACY_NAMES,
    MODULE_FRAME,
    PYTHON_FUNCTION,
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
"""What readers keep of every complete event."""

_VERSION = 3
"""The accelerator's, as in its source."""
_OF_WIDTH = {width: np.dtype(f"i{width}") for width in (1, 2, 4, 8)} | {0: np.dtype(np.int8)}
"""Integer types by their bytes; a column without rows has none."""
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
    is_ours = getattr(_scan, "VERSION", 1) == _VERSION and tuple(_scan.COLUMNS.split()) == COLUMNS
    return _scan if is_ours else None  # built from other sources


_SCAN = _find_accelerator()


def has_accelerator() -> bool:
    """Whether traces are read by the accelerator here and now."""
    return _SCAN is not None and may_accelerate()


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """The complete events among a run of entries.

    Attributes:
        num_events: entries of all phases.
        num_rows: complete events that are kept.
        columns: one entry a row, by the names in COLUMNS; track, name, shapes and launch are the builder's numbers.
        calls: the rows that name a collective, or an event that is waited for, ascending.
        call_arguments: their arguments.
    """

    num_events: int
    num_rows: int
    columns: dict[str, IntColumn]
    calls: list[int]
    call_arguments: list[Arguments]


class BatchScanner:
    """Scans the runs of one trace, and numbers their texts in the tables of its builder."""

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
            _category_bits(_SCAN, ignores_frames=ignores_frames), b'"' + MODULE_FRAME.encode()
        )
        self._tracks, self._names, self._shapes, self._launches = tracks, names, shapes, launches
        self._numbers = {name: _Numbers() for name in ("track", "name", "shapes", "launch")}
        self._is_stopped = False

    def stop(self) -> None:
        """Leave the rest to Python: in a trace of 2021 events of any category may have their ids under its old key."""
        self._is_stopped = True

    def scan(self, text: memoryview) -> ScannedBatch | None:
        """The rows of comma-separated events; None when the text is to be read in Python."""
        if self._is_stopped:
            return None
        found = self._scanner.scan(text)
        if found is None:
            return None
        num_events, num_rows, column_cells, call_cells, new_texts = found
        self._take(*new_texts)
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
        return column if numbers is None or numbers.are_theirs else narrow(numbers[column])

    def _take(self, tracks: list[bytes], names: list[bytes], shapes: list[bytes], launches: list[bytes]) -> None:
        """Number the texts that are new; in each table number 0 of shapes and launches is "nothing recorded"."""
        self._numbers["track"].extend([self._tracks[_track(text)] for text in tracks])
        self._numbers["name"].extend([self._names[_decode_text(text or _NULL)] for text in names])
        self._numbers["shapes"].extend([self._shapes[text] - 1 for text in shapes])
        self._numbers["launch"].extend([self._launches[_launch_key(text)] - 1 for text in launches])


class _Numbers:
    """The builder's numbers by the accelerator's: that counts its own texts, whatever Python has read in between.

    Attributes:
        are_theirs: they are the same so far.
    """

    def __init__(self) -> None:
        self._numbers = np.full(1, NONE, np.int32)  # the last entry answers for NONE
        self.are_theirs = True

    def extend(self, numbers: list[int]) -> None:
        if numbers:
            known = len(self._numbers) - 1
            self._numbers = np.concatenate((self._numbers[:-1], np.array([*numbers, NONE], np.int32)))
            self.are_theirs = self.are_theirs and numbers == list(range(known, known + len(numbers)))

    def __getitem__(self, theirs: IntColumn) -> IntColumn:
        found: IntColumn = self._numbers[theirs]
        return found


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
    """What each category's rows are read for, by the category's text; the others only fill what all rows have."""
    reads: dict[Category, int] = dict.fromkeys(DEVICE_CATEGORIES, scan.ON_DEVICE)
    reads[Category.CPU_OP] = scan.READS_SHAPES | scan.READS_NAMED
    reads[Category.USER_ANNOTATION] = scan.READS_SHAPES  # those of communication backends
    reads[Category.KERNEL] |= scan.READS_LAUNCH | scan.READS_NAMED
    reads[Category.SYNC_RECORD] = scan.READS_NAMED  # the event that is waited for
    reads[Category.MEMCPY] |= scan.READS_BYTES
    reads[Category.MEMSET] |= scan.READS_BYTES
    bits: dict[str | None, int] = {name: reads.get(category, 0) for name, category in CATEGORIES.items()}
    bits |= dict.fromkeys(LEGACY_NAMES, scan.UNSUPPORTED)
    bits[TRACE_SPAN] = scan.IGNORED
    bits[PYTHON_FUNCTION] = scan.IGNORED_BUT_MODULES if ignores_frames else 0
    return {f'"{name}"'.encode(): of_name for name, of_name in bits.items() if of_name}
