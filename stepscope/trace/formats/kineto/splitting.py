"""Boundaries in a trace's text: between two events, and between two documents of one file.

Idea: a cut between `}` `,` and `{` is right exactly when the text before it parses as an array, because a cut inside
a string or a nested value leaves something open. So the last such place in a block is tried, and the decoder decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import compress, islice
from typing import NamedTuple

from stepscope.trace.formats.foreign_traces import sign_of_accelerator
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
_WATCHED_BYTES = 64 * 1024


class Batch(NamedTuple):
    """Entries of traceEvents, in the file's order, and the array text they were decoded from.

    Both are valid until the next batch is read, which reuses the memory.
    """

    events: Sequence[Event]
    array_text: bytes | memoryview

    def exact(self) -> Sequence[ExactEvent]:
        """The events with every decimal of their timestamps."""
        events = decode_exact(self.array_text)
        if events is not None:
            return events
        lenient = decode_leniently(self.array_text)
        # a member that is skipped may hold what full decoding refuses, such as a number beyond all floats
        return as_decoded(self.events) if lenient is None else lenient[0]


class EventSplitter:
    """Splits the event array that starts with `beginning` into batches.

    Attributes:
        num_events: entries of all phases so far, lost ones included.
        repaired, dropped: entries repaired, and entries lost to damage.
        damaged_at_byte: position in the text of the first such entry, or None; approximate after holes of zeros.
        num_bytes: text of the entries.
        array_closed: the closing bracket was found.
        tail: text behind it that has been read.
        accelerator: a device other than NVIDIA's and AMD's that the text names.

    Args:
        watches_all: search all of the text for such names; else its ends, where torch.profiler has them.
    """

    def __init__(
        self, source: TraceText, beginning: bytes, scanner: BatchScanner | None = None, *, watches_all: bool = False
    ) -> None:
        self.num_events = 0
        self.repaired = 0
        self.dropped = 0
        self.damaged_at_byte: int | None = None
        self.num_bytes = 0
        self.array_closed = False
        self.tail = b""
        self.accelerator = sign_of_accelerator(beginning[:_WATCHED_BYTES].__contains__)
        self._watches_all = watches_all
        self._scanner = scanner
        self._window = TextWindow(source, beginning)
        self._separator = b""

    def batches(self) -> Iterator[Batch | ScannedBatch | Sequence[ExactEvent]]:
        """Events until the array or the text ends: scanned rows of clean text where there is an accelerator, else
        decoded events, else (in damaged text) recovered ones.
        """
        while not self.array_closed:
            has_more = self._window.fill()
            if self.accelerator is None and (self._watches_all or self._window.is_at_end):
                first = 0 if self._watches_all else len(self._window) - _WATCHED_BYTES
                self.accelerator = sign_of_accelerator(partial(self._window.holds, first=first))
            yield self._next(is_last=not has_more)  # not kept in a variable, so that the consumer can free it
            if not has_more:
                return

    def _next(self, *, is_last: bool) -> Batch | ScannedBatch | Sequence[ExactEvent]:
        if is_last:
            return self._recover(is_last=True)
        scanned = self._scan()
        if scanned is not None:
            self.num_events += scanned.num_events
            return scanned
        batch = self._take_fast() or self._take_repaired()
        if batch is not None:
            self.num_events += len(batch.events)
            return batch
        return self._recover(is_last=False)

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

    def _take_repaired(self) -> Batch | None:
        """A block with damage that runs through the whole file (decimal commas, raw control characters), repaired.

        Only when the number of events is certain: the separator must count as many before and after the repair.
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
        """(end of one event, start of the next), the last first, after one with the separator of the previous cut."""
        known = self._window.rfind(self._separator) if self._separator else -1
        if known >= 0:
            yield known + 1, known + len(self._separator) - 1
        found = self._window.matches(_BETWEEN_EVENTS, max(0, len(self._window) - _TAIL_WINDOW_BYTES))
        for begin, end in reversed(found[-_MAX_CUTS_TRIED:]):
            yield begin + 1, end - 1

    def _recover(self, *, is_last: bool) -> Sequence[ExactEvent]:
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
"""Where more places look like the beginning of a document, they are strings."""
MAX_KEY_BYTES = 4096
"""The key, its colon and its bracket, with blanks between."""


def is_top_level(before: bytes) -> bool:
    """Whether a key behind this text is at the document's top level: with a brace the text is an object."""
    try:
        return isinstance(json.loads(before.rstrip().rstrip(b",") + b"}", strict=False), dict)
    except (ValueError, RecursionError):
        return False


def next_document(tail: bytes, searched: int = 0) -> int | None:
    """Position in the text behind an event array where another trace's document begins, or None.

    Args:
        tail: from the array's closing bracket on.
        searched: length of its beginning that holds no key traceEvents.
    """
    for key in islice(EVENTS_KEY.finditer(tail, searched), _MAX_KEYS_TRIED):
        for between in islice(_BETWEEN_DOCUMENTS.finditer(tail, 0, key.start()), _MAX_STARTS_TRIED):
            start = between.end() - 1
            if is_top_level(tail[start : key.start()]):
                return start
    return None
