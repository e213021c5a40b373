"""Files that are not traces: what they are, by their first bytes and keys, for error messages."""

from __future__ import annotations

import re

from stepscope.core.text.numbers import listed

_LOOKED_AT_BYTES = 512 * 1024

_BY_FIRST_BYTES = (
    (b"\x80", "a Python pickle (a flight-recorder dump or a memory snapshot?)"),
    (b"SQLite format 3\x00", "an SQLite database (an export of Nsight Systems?)"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"PAR1", "a Parquet table"),
    (b"<", "an HTML or XML page"),
)
_BY_KEY = (
    (b"nodes", "a PyTorch execution trace"),
    (b"pg_status", "a flight-recorder dump"),
    (b"entries", "a flight-recorder dump"),
    (b"device_traces", "a memory snapshot"),
    (b"segments", "a memory snapshot"),
    (b"resourceSpans", "an OpenTelemetry export"),
    (b"shared", "a speedscope profile"),
)
_MEMORY_TIMELINE = re.compile(rb"\[\s*\[\s*-?\d")
_SHOWN_CATEGORIES = 3


def describe_other_file(text: bytes, opening: bytes) -> str:
    """Predicate for a file without a list of events, such as "is a memory snapshot, not a profiler trace".

    Args:
        text: its beginning, inflated.
        opening: its first byte that is not a blank.
    """
    if opening != b"{":
        kind = next((kind for magic, kind in _BY_FIRST_BYTES if text.startswith(magic)), None)
        return "is not JSON" if kind is None else f"is {kind}, not a profiler trace"
    kind = kind_of_object(text)
    return (
        "is not a profiler trace (it has no list traceEvents)" if kind is None else f"is {kind}, not a profiler trace"
    )


def kind_of_object(text: bytes) -> str | None:
    """Kind of a JSON object that is not a trace, by its keys; None for unknown keys."""
    beginning = text[:_LOOKED_AT_BYTES]
    return next((kind for key, kind in _BY_KEY if re.search(rb'"%s"\s*:' % key, beginning)), None)


def is_memory_timeline(text: bytes) -> bool:
    """Whether a bare list was written by export_memory_timeline: lists of numbers, not events."""
    return _MEMORY_TIMELINE.match(text) is not None


def describe_foreign_events(categories: list[str | None]) -> str:
    """Predicate for a Chrome trace without any event category that PyTorch writes."""
    named = [name for name in categories if name is not None]
    shown = listed((f'"{name}"' for name in named), _SHOWN_CATEGORIES)
    found = f"its events are of the kinds {shown}" if named else "its events have no kind"
    return f"is a Chrome trace, but not one of PyTorch: {found}"
