"""Repair of damaged traces: broken text of one event, lost boundaries, overrunning durations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.trace.columns import DEVICE_CATEGORIES, TraceColumns, TraceHeader
from stepscope.trace.formats.kineto.events import ExactEvent, decode_exact, decode_leniently, is_too_deep, is_usable

_BETWEEN_EVENTS = re.compile(rb"\}[\s,\x00]*\{")
_END_OF_ARRAY = re.compile(rb"\}[\s,]*\]")
_CLOSES_AT_ONCE = re.compile(rb"[\s,]*\]")
_EVENT_MARK = re.compile(rb'"ph"\s*:')
_PHASE_KEY = b"ph"
_EVENT_START = re.compile(rb'\{\s*"(?:ph|name|cat|pid|args)"\s*:')

_MAX_PIECES_JOINED = 8
"""An event may hold lists of objects, whose boundaries look like those between events."""
_MAX_ENDS_TRIED = 32
_MAX_BYTES_REPAIRED = 256 * 1024
"""Longer events are not repaired."""
_BASE_EFFORT_BYTES = 32 * 1024
_EFFORT = 8
"""Bytes of repair attempts per damaged event: a base, and a multiple of its length, so the work stays linear."""
_MAX_BYTES_HELD = 16 * 1024 * 1024
"""No event is larger; text without a boundary is skipped in such portions."""


class Recovery:
    """Recovers the events of a damaged buffer that begins at an event.

    Idea: a boundary between events is guessed (`}` and `{` with only commas and blanks between) and proved by decoding
    the text before it. Runs of events are decoded at once; a run that fails is halved until one event is left. That
    one is read leniently, joined with what follows (its strings may hold `},{`), then repaired, and at last searched
    for whole events amid unreadable text. The work per event is bounded, so a damaged file costs linear time.

    Attributes:
        events: the events recovered.
        consumed: bytes of the buffer that are done.
        repaired, dropped: events repaired, and events lost.
        damaged_at: where in the buffer the first of these begins, or None.
        array_closed: the array's closing bracket was found; the text behind `consumed` comes after the array.
    """

    def __init__(self, buffer: bytes, *, is_last: bool) -> None:
        self.events: list[ExactEvent] = []
        self.consumed = 0
        self.repaired = 0
        self.dropped = 0
        self.damaged_at: int | None = None
        self.array_closed = False
        self._buffer = buffer
        self._is_last = is_last
        self._effort_left = 0
        self._run_through()

    def _run_through(self) -> None:
        """Decode runs of events: shorter ones after a failure, longer ones after a success."""
        bounds = [(match.start() + 1, match.end() - 1) for match in _BETWEEN_EVENTS.finditer(self._buffer)]
        if self._is_last or len(self._buffer) > _MAX_BYTES_HELD:
            bounds.append((len(self._buffer), len(self._buffer)))
        index, run = 0, len(bounds)
        while index < len(bounds) and not self.array_closed:
            stop = min(index + run, len(bounds))
            decoded = decode_exact(b"[" + self._buffer[self.consumed : bounds[stop - 1][0]] + b"]")
            if decoded is not None:
                self.events += decoded
                run *= 2
            elif stop - index > 1:
                run = (stop - index) // 2
                continue
            else:
                start, num_damaged = self.consumed, self.repaired + self.dropped
                num_covered = self._take_one(bounds[index : index + _MAX_PIECES_JOINED])
                if self.damaged_at is None and self.repaired + self.dropped > num_damaged:
                    self.damaged_at = start
                if num_covered == 0:
                    return
                stop, run = index + num_covered, 1
            index = stop
            if not self.array_closed:
                self.consumed = bounds[index - 1][1]

    def _take_one(self, bounds: list[tuple[int, int]]) -> int:
        """Recover one event; return how many boundaries it covers, 0 when it needs more text."""
        pieces = [self._buffer[self.consumed : end] for end, _ in bounds]
        if not _seems_cut(pieces[0]):
            del pieces[1:]
        for num_covered, piece in enumerate(pieces, start=1):
            if self._close_array(piece, self._accept) or self._accept(piece):
                return num_covered
        # Repair comes last: repairing the first half of a name that holds `},{` would damage it.
        is_held = len(self._buffer) - self.consumed <= _MAX_BYTES_HELD
        if len(bounds) < _MAX_PIECES_JOINED and _seems_cut(pieces[0]) and not self._is_last and is_held:
            return 0
        self._effort_left = _BASE_EFFORT_BYTES + _EFFORT * len(pieces[0])
        for num_covered, piece in enumerate(pieces, start=1):
            if self._close_array(piece, self._accept_mended) or self._accept_mended(piece):
                return num_covered
        self._salvage(pieces[0])
        return 1

    def _close_array(self, piece: bytes, accept: Callable[[bytes], bool]) -> bool:
        """Whether the array ends within the piece, perhaps after a last event."""
        if closing := _CLOSES_AT_ONCE.match(piece):
            return self._end_after(closing.end())
        for ending in list(_END_OF_ARRAY.finditer(piece))[:_MAX_ENDS_TRIED]:
            event = piece[: ending.start() + 1]
            is_open = event.count(b"{") > event.count(b"}") and _seems_cut(event)
            if not is_open and accept(event):
                return self._end_after(ending.end())
        return not piece.strip(b" \t\r\n,\x00")

    def _end_after(self, num_bytes: int) -> bool:
        self.array_closed = True
        self.consumed += num_bytes
        return True

    def _accept(self, piece: bytes) -> bool:
        array_text = b"[" + piece + b"]"
        decoded = decode_exact(array_text)
        if decoded is not None:
            self.events += decoded
            return True
        lenient = decode_leniently(array_text)
        if lenient is None:
            return False
        self.events += lenient[0]
        self.dropped += lenient[1]
        return True

    def _accept_by_any_means(self, piece: bytes) -> bool:
        return self._accept(piece) or self._accept_mended(piece)

    def _accept_mended(self, piece: bytes) -> bool:
        """Accept one event after repair; two that run into each other would be repaired into one."""
        if len(piece) > _MAX_BYTES_REPAIRED or len(_EVENT_MARK.findall(piece)) > 1:
            return False
        if self._effort_left < 0 or _PHASE_KEY not in piece:  # an event without its phase is of no use
            return False
        self._effort_left -= len(piece)
        for text in repairs(piece):
            events = decode_exact(b"[" + text + b"]") or (decode_leniently(b"[" + text + b"]") or [()])[0]
            if events and all(map(_is_plausible, events)):
                self.events += events
                self.repaired += sum(map(is_usable, events))
                return True
            if is_too_deep(b"[" + text + b"]"):
                break
        return False

    def _salvage(self, piece: bytes) -> None:
        """Keep whole events amid unreadable text; count those of which only parts are left."""
        starts = [0, *(match.start() for match in _EVENT_START.finditer(piece, 1))]
        num_lost = 0
        has_remains = False
        is_done = self._effort_left >= 0
        for start, stop in zip(starts, [*starts[1:], len(piece)], strict=True):
            part = piece[start:stop]
            self._effort_left = _BASE_EFFORT_BYTES  # one repair each, whatever the whole piece has cost
            end = part.rfind(b"}") + 1
            was_tried = end == len(piece) and is_done  # the whole piece, which could not be repaired
            if end and not was_tried and _EVENT_MARK.search(part) and self._accept_by_any_means(part[:end]):
                part = part[end:]
            num_lost += len(_EVENT_MARK.findall(part))
            has_remains = has_remains or bool(part.strip(b" \t\r\n,"))
        self.dropped += max(num_lost, int(has_remains))


def _is_plausible(event: ExactEvent) -> bool:
    """Whether repair produced an event, not one field that swallowed its neighbours."""
    return len(event.ph) == 1 and '"' not in (event.cat or "")


def _seems_cut(piece: bytes) -> bool:
    """Whether a string or bracket is still open at the end, so that more text may complete the event."""
    bare = _STRING.sub(b"", piece)
    return b'"' in bare or bare.count(b"{") > bare.count(b"}")


PairsHook = Callable[[list[tuple[str, Any]]], dict[str, Any]]

_STRING = re.compile(rb'("(?:[^"\\]|\\.)*")', re.DOTALL)
_SUSPECT = re.compile(rb'[\x00-\x1f]|\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})|\\u[dD][89a-fA-F]')
"""Characters that a string must not hold, and surrogates, which need a check."""
_CONTROL_BUT_BLANK = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_SURROGATE_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")

_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[\s])[-+]?(?:nan(?:\([^)]*\))?|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(rb"(:\s*-?\d+),(?=\d+(?:[eE][-+]?\d+)?\s*[,}])")
_DECIMAL_COMMA_OF_KEY = re.compile(rb'(":\s*-?\d+),(?=\d+\s*[,}])')
_NOT_A_NUMBER_OF_KEY = re.compile(rb'(":\s*)-?(?:NaN|nan|Infinity|inf)(?=\s*[,}])')
_EMPTY_VALUE = re.compile(rb":(?=\s*[,}])")
_DOUBLE_COMMA = re.compile(rb",(?:\s*,)+")
_LEADING_COMMA = re.compile(rb"([\[{]\s*),")
_TRAILING_COMMA = re.compile(rb",(?=\s*[\]}])")
_LEADING_ZERO = re.compile(rb"(?<=[:,\[\s])(-?)0+(?=\d)")
_KEY_WITHOUT_QUOTE = re.compile(rb'([{,]\s*)(?=[A-Za-z][\w .%/()]*"\s*:)')

_BARE_QUOTE = re.compile(rb'(?<!\\)"')
_BRACKET = re.compile(rb"[{}\[\]]")
_ENDS_KEY = re.compile(rb'"\s*:')
_ENDS_VALUE = re.compile(rb'"\s*(?:\}|\]|,\s*"[^"\\]*"\s*:|,\s*[-\d"{\[]|\Z)')
_ENDS_VALUE_IN_OBJECT = re.compile(rb'"\s*(?:\}|,\s*"[^"\\]*"\s*:|\Z)')


def repair_block(events_text: bytes) -> bytes:
    """Many events at once, quickly: only damage that runs through whole files and shows without parsing."""
    text = events_text.decode("utf-8", errors="replace").encode()
    text = _DECIMAL_COMMA_OF_KEY.sub(rb"\1.", text)
    text = _NOT_A_NUMBER_OF_KEY.sub(rb"\1null", text)
    return _repair_escapes(text, _CONTROL_BUT_BLANK)


def repairs(event_text: bytes) -> Iterator[bytes]:
    """Repaired texts of a broken event, the smallest change first.

    Damage seen in real traces: invalid UTF-8 and raw control characters in names, unescaped Windows backslashes and
    quotes, decimal commas (LC_NUMERIC), NaN and Infinity, missing values, repeated commas, lost quotes.
    """
    valid_utf8 = event_text.decode("utf-8", errors="replace").encode()
    yield _repair_json(valid_utf8)
    yield _repair_json(_KEY_WITHOUT_QUOTE.sub(rb'\1"', valid_utf8))
    for backslash_escapes in (True, False):
        requoted = _escape_inner_quotes(valid_utf8, backslash_escapes=backslash_escapes)
        yield _repair_json(requoted)


def _repair_json(text: bytes) -> bytes:
    """Repair strings and the structure between them separately, so that a name like "f(,,)" stays as it is."""
    pieces = _STRING.split(text)  # every second one is a string
    strings = [_repair_string(string) if _SUSPECT.search(string) else string for string in pieces[1::2]]
    between = _repair_structure(b'""'.join(pieces[::2])).split(b'""')
    if len(between) != len(strings) + 1:
        return text
    pieces[::2], pieces[1::2] = between, strings
    return b"".join(pieces)


def _repair_structure(bare: bytes) -> bytes:
    bare = _NOT_A_NUMBER.sub(b"null", bare)
    bare = _DECIMAL_COMMA.sub(rb"\1.", bare)
    bare = _DOUBLE_COMMA.sub(b",", bare)
    bare = _LEADING_COMMA.sub(rb"\1", bare)
    bare = _EMPTY_VALUE.sub(b": null", bare)
    bare = _TRAILING_COMMA.sub(b"", bare)
    return _LEADING_ZERO.sub(rb"\1", bare)


def _repair_string(quoted: bytes) -> bytes:
    inner = _repair_escapes(quoted[1:-1], _CONTROL)
    if _SURROGATE.search(inner):
        inner = _without_lone_surrogates(inner)
    return b'"' + inner + b'"'


def _repair_escapes(text: bytes, control: re.Pattern[bytes]) -> bytes:
    text = _BAD_ESCAPE.sub(lambda match: match[0] if match[1] else b"\\\\", text)
    return control.sub(lambda match: b"\\u%04x" % match[0][0], text)


def read_json(text: bytes, pairs_hook: PairsHook | None = None) -> Any:
    """Kineto trace format: parse JSON text and repair it, so that the values can be encoded again.

    Lone surrogates and invalid UTF-8 become U+FFFD.

    Args:
        pairs_hook: makes each object from its pairs; by default a dict, in which the last of repeated keys wins.

    Raises:
        ValueError, RecursionError: it is not JSON.
    """
    if _SURROGATE.search(text):
        text = _without_lone_surrogates(text)
    return json.loads(text.decode(errors="replace"), strict=False, object_pairs_hook=pairs_hook)


def _without_lone_surrogates(inner: bytes) -> bytes:
    pieces: list[bytes] = []
    position = 0
    for pair in _SURROGATE_PAIR.finditer(inner):
        pieces += [_SURROGATE.sub(rb"\\ufffd", inner[position : pair.start()]), pair[0]]
        position = pair.end()
    pieces.append(_SURROGATE.sub(rb"\\ufffd", inner[position:]))
    return b"".join(pieces)


def _escape_inner_quotes(text: bytes, *, backslash_escapes: bool) -> bytes:
    """Escape all quotes but those that delimit a string in the surrounding structure.

    Args:
        text: one event.
        backslash_escapes: whether a backslash before a quote escapes it; in an unescaped Windows path it does not.
    """
    pieces: list[bytes] = []
    nesting = [b"{"]
    position = 0
    while (start := text.find(b'"', position)) >= 0:
        between = text[position:start]
        _follow_nesting(nesting, between)
        is_key = nesting[-1] == b"{" and not between.rstrip().endswith(b":")
        ends = _ENDS_KEY if is_key else _ENDS_VALUE_IN_OBJECT if nesting[-1] == b"{" else _ENDS_VALUE
        end = _closing_quote(text, start + 1, ends, backslash_escapes=backslash_escapes)
        if end < 0:
            break
        inner = text[start + 1 : end]
        if not backslash_escapes:
            inner = inner.replace(b"\\", b"\\\\")
        pieces += [between, b'"', _BARE_QUOTE.sub(rb'\\"', inner), b'"']
        position = end + 1
    return b"".join([*pieces, text[position:]])


def _follow_nesting(nesting: list[bytes], between: bytes) -> None:
    for bracket in _BRACKET.findall(between):
        if bracket in b"{[":
            nesting.append(bracket)
        elif len(nesting) > 1:
            nesting.pop()


def _closing_quote(text: bytes, position: int, ends: re.Pattern[bytes], *, backslash_escapes: bool) -> int:
    while (quote := text.find(b'"', position)) >= 0:
        is_escaped = backslash_escapes and text[quote - 1 : quote] == b"\\" and text[quote - 2 : quote - 1] != b"\\"
        if not is_escaped and ends.match(text, quote):
            return quote
        position = quote + 1
    return -1


def is_rocm(header: TraceHeader, metadata: Mapping[str, object]) -> bool:
    """Whether the trace comes from AMD's stack, by its version keys or device names."""
    has_rocm_keys = any(name.startswith(("hip_", "roctracer_", "rocprofiler_")) for name in metadata)
    return has_rocm_keys or any(device.name.startswith("AMD ") for device in header.devices)


def clip_overruns(trace: TraceColumns) -> TraceColumns:
    """Cut ends at the next start on the same lane, in place, and count them; for ROCm traces only.

    ROCm's profiler sometimes records durations that overrun by orders of magnitude, although a HIP stream runs one
    activity at a time. Rows that start together stay as they are: which ran first is unknown. On NVIDIA, kernels of one
    stream do overlap (programmatic dependent launch, branches of a graph), so nothing may be cut there.
    """
    rows = trace.rows_of(*DEVICE_CATEGORIES)
    rows = rows[np.lexsort((trace.start_ns[rows], trace.lane[rows]))]
    this, following = rows[:-1], rows[1:]
    overruns = (trace.lane[this] == trace.lane[following]) & (trace.end_ns[this] > trace.start_ns[following])
    overruns &= trace.start_ns[this] < trace.start_ns[following]
    cut, until = this[overruns], trace.start_ns[following[overruns]]
    cut_ns = int((trace.end_ns[cut] - until).sum())
    trace.end_ns[cut] = until
    return replace(trace, quality=replace(trace.quality, clipped=len(cut), clipped_ns=cut_ns))
