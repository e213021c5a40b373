"""Boundaries in a trace's text: where one event ends, and where the next document begins.

Splitting: A cut between `}` `,` and `{` is right exactly when the text before it parses as an array, because a cut
inside a string or a nested value leaves something open. So the last such place in the buffer is tried and the decoder
judges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice

from stepscope.trace.formats.kineto.events import (
    Event,
    ExactEvent,
    as_decoded,
    decode_exact,
    decode_fast,
    decode_leniently,
)
from stepscope.trace.formats.kineto.repair import Recovery, repair_block
from stepscope.trace.formats.kineto.scanning import BatchScanner, ScannedBatch
from stepscope.trace.formats.kineto.text import TextWindow, TraceText

_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*\{")
_TAIL_WINDOW_BYTES = 64 * 1024
_MAX_CUTS_TRIED = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Some entries of traceEvents, in the file's order, and the array they were decoded from.

    Both hold until the next batch is asked for: its text is read into the same memory.
    """

    events: Sequence[Event]
    array_text: bytes | memoryview

    def exact(self) -> Sequence[ExactEvent]:
        """The same events with every decimal of their timestamps."""
        events = decode_exact(self.array_text)
        if events is not None:
            return events
        lenient = decode_leniently(self.array_text)  # of events that are not complete nothing but the phase was decoded
        # A member that nobody reads may hold what only skipping bears, as a number beyond all floats.
        return as_decoded(self.events) if lenient is None else lenient[0]


class EventSplitter:
    """Cuts the elements of the array that `beginning` is the start of.

    Attributes:
        num_events: entries of all phases seen so far, lost ones included.
        repaired, dropped: entries mended, and entries lost to damage.
        damaged_at_byte: where in the text the first such entry begins (in its array, where a whole block was mended);
            None without any. Holes of zeros before it blur the place.
        num_bytes: text of the entries.
        array_closed: the closing bracket was met.
        tail: text after it that was read along.
    """

    def __init__(self, source: TraceText, beginning: bytes, scanner: BatchScanner | None = None) -> None:
        self.num_events = 0
        self.repaired = 0
        self.dropped = 0
        self.damaged_at_byte: int | None = None
        self.num_bytes = 0
        self.array_closed = False
        self.tail = b""
        self._scanner = scanner
        self._window = TextWindow(source, beginning)
        self._separator = b""

    def batches(self) -> Iterator[Batch | ScannedBatch | Sequence[ExactEvent]]:
        """Events until the array or the text ends: rows where there is an accelerator and the text is clean, else
        decoded ones; exact ones where the text had to be searched.
        """
        while not self.array_closed:
            has_more = self._window.fill()
            yield self._next(is_last=not has_more)  # no name for it here: it goes when its taker lets go of it
            if not has_more:
                return

    def _next(self, *, is_last: bool) -> Batch | ScannedBatch | Sequence[ExactEvent]:
        if is_last:
            return self._take_carefully(is_last=True)
        scanned = self._scan()
        if scanned is not None:
            self.num_events += scanned.num_events
            return scanned
        batch = self._take_fast() or self._take_mended()
        if batch is not None:
            self.num_events += len(batch.events)
            return batch
        return self._take_carefully(is_last=False)

    def _scan(self) -> ScannedBatch | None:
        end, start = next(self._cuts(), (0, 0)) if self._scanner else (0, 0)
        scanned = self._scanner.scan(self._window.view(end)) if self._scanner and end else None
        if scanned is not None:
            self._move_on(end, start)
        return scanned

    def _take_fast(self) -> Batch | None:
        for end, start in self._cuts():
            separator = self._separator_at(end, start)
            events, array_text = self._window.decoded(end, decode_fast)
            if events is not None:
                self._move_on(end, start, separator)
                return Batch(events, array_text)
        return None

    def _take_mended(self) -> Batch | None:
        """Damage that runs through a whole file (decimal commas, raw control characters) is mended a block at a time.

        Only when no event can be mistaken for another: as many events as the separator tells apart, before and after.
        """
        end, start = next(self._cuts(), (0, 0))
        if not end:
            return None
        separator = self._separator_at(end, start)
        damaged = self._window.text(end)
        text = repair_block(damaged)
        before, after = damaged.split(separator), text.split(separator)
        events = decode_fast(b"[" + text + b"]") if len(before) == len(after) else None
        if not events or len(events) != len(after):
            return None
        changed = [old != new for old, new in zip(before, after, strict=True)]
        self.repaired += sum(event.ph != "X" or event.dur >= 0 for event in compress(events, changed))
        if any(changed):
            self._note_damage(sum(len(text) + len(separator) for text in before[: changed.index(True)]))
        self._move_on(end, start, separator)
        return Batch(events, b"[" + text + b"]")

    def _note_damage(self, place: int) -> None:
        if self.damaged_at_byte is None:
            self.damaged_at_byte = self._window.begins_at_byte + place

    def _separator_at(self, end: int, start: int) -> bytes:
        return bytes(self._window.view(start + 1)[end - 1 :])

    def _move_on(self, end: int, start: int, separator: bytes | None = None) -> None:
        self.num_bytes += end
        self._separator = separator or self._separator_at(end, start)
        self._window.take(start)

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """(end of one event, start of the next), the last first; the layout of the previous cut before all others."""
        known = self._window.rfind(self._separator) if self._separator else -1
        if known >= 0:
            yield known + 1, known + len(self._separator) - 1
        found = self._window.matches(_BETWEEN_EVENTS, max(0, len(self._window) - _TAIL_WINDOW_BYTES))
        for begin, end in reversed(found[-_MAX_CUTS_TRIED:]):
            yield begin + 1, end - 1

    def _take_carefully(self, *, is_last: bool) -> Sequence[ExactEvent]:
        text = self._window.text(len(self._window))
        recovery = Recovery(text, is_last=is_last)
        self.num_events += len(recovery.events) + recovery.dropped
        self.repaired += recovery.repaired
        self.dropped += recovery.dropped
        if recovery.damaged_at is not None:
            self._note_damage(recovery.damaged_at)
        self.num_bytes += recovery.consumed
        self._window.take(recovery.consumed)
        self.array_closed = recovery.array_closed
        if self.array_closed:
            self.tail = text[recovery.consumed :]
        return recovery.events


EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN_DOCUMENTS = re.compile(rb"\}[\s\x00]*\{")
_MAX_KEYS_TRIED = 4
_MAX_STARTS_TRIED = 32
"""More places where a document could begin are strings that look like it."""
MAX_KEY_BYTES = 4096
"""The key, its colon and its bracket, with blanks between."""


def is_top_level(before: bytes) -> bool:
    """Whether a key that follows this text is one of the document's own: the text closes to an object."""
    try:
        return isinstance(json.loads(before.rstrip().rstrip(b",") + b"}", strict=False), dict)
    except (ValueError, RecursionError):
        return False


def next_document(tail: bytes, searched: int = 0) -> int | None:
    """Where in the text behind an event array another trace's document begins; None when none does.

    Args:
        tail: from behind the array's bracket.
        searched: so much of it is known to hold no key traceEvents.
    """
    for key in islice(EVENTS_KEY.finditer(tail, searched), _MAX_KEYS_TRIED):
        for between in islice(_BETWEEN_DOCUMENTS.finditer(tail, 0, key.start()), _MAX_STARTS_TRIED):
            start = between.end() - 1
            if is_top_level(tail[start : key.start()]):
                return start
    return None
