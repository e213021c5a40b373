"""Which events survive in damaged text? Reads runs where it can, single events where it must, and counts the lost.

Boundaries between events are guessed (`}` and `{` with nothing but commas between them) and proved by decoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stepscope.trace.events import ExactEvent, decode_exact, decode_leniently, is_too_deep, is_usable
from stepscope.trace.mending import mended

_BETWEEN_EVENTS = re.compile(rb"\}[\s,\x00]*\{")
_END_OF_ARRAY = re.compile(rb"\}[\s,]*\]")
_CLOSES_AT_ONCE = re.compile(rb"[\s,]*\]")
_EVENT_MARK = re.compile(rb'"ph"\s*:')
_KIND = b"ph"
_EVENT_START = re.compile(rb'\{\s*"(?:ph|name|cat|pid|args)"\s*:')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)

_MOST_PIECES_JOINED = 8
"""An event may hold lists of objects: so many false boundaries are looked across."""
_MOST_ENDS_TRIED = 32
_MOST_BYTES_MENDED = 256 * 1024
"""No event that is worth mending is longer."""
_SMALL_EFFORT_BYTES = 32 * 1024
_EFFORT = 8
"""One damaged event may cost mending so many bytes, and so many times its own length: the work stays linear."""
_MOST_BYTES_HELD = 16 * 1024 * 1024
"""No event is larger; text without a boundary is given up in such portions."""


class Recovery:
    """One pass over a buffer that begins where an event begins.

    Attributes:
        events: what could be read.
        consumed: bytes of the buffer that are dealt with.
        repaired, dropped: events mended, and events lost.
        damaged_at: where in the buffer the first of these begins, or None.
        array_closed: the array's closing bracket was met; what follows `consumed` comes after the array.
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
        if self._is_last or len(self._buffer) > _MOST_BYTES_HELD:
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
                num_covered = self._take_one(bounds[index : index + _MOST_PIECES_JOINED])
                if self.damaged_at is None and self.repaired + self.dropped > num_damaged:
                    self.damaged_at = start
                if num_covered == 0:
                    return
                stop, run = index + num_covered, 1
            index = stop
            if not self.array_closed:
                self.consumed = bounds[index - 1][1]

    def _take_one(self, bounds: list[tuple[int, int]]) -> int:
        """Read one event by all means; how many boundaries it covers, 0 when only more text can tell."""
        pieces = [self._buffer[self.consumed : end] for end, _ in bounds]
        if not _seems_cut(pieces[0]):
            del pieces[1:]
        for num_covered, piece in enumerate(pieces, start=1):
            if self._close_array(piece, self._accept) or self._accept(piece):
                return num_covered
        # Only text that no reading fits is mended: mending the first half of a name that holds `},{` would spoil it.
        is_held = len(self._buffer) - self.consumed <= _MOST_BYTES_HELD
        if len(bounds) < _MOST_PIECES_JOINED and _seems_cut(pieces[0]) and not self._is_last and is_held:
            return 0
        self._effort_left = _SMALL_EFFORT_BYTES + _EFFORT * len(pieces[0])
        for num_covered, piece in enumerate(pieces, start=1):
            if self._close_array(piece, self._accept_mended) or self._accept_mended(piece):
                return num_covered
        self._salvage(pieces[0])
        return 1

    def _close_array(self, piece: bytes, accept: Callable[[bytes], bool]) -> bool:
        """Whether the array ends within the piece, with or without a last event before its bracket."""
        if closing := _CLOSES_AT_ONCE.match(piece):
            return self._end_after(closing.end())
        for ending in list(_END_OF_ARRAY.finditer(piece))[:_MOST_ENDS_TRIED]:
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
        """Accept what mending makes of one event; two that run into each other would be mended into one."""
        if len(piece) > _MOST_BYTES_MENDED or len(_EVENT_MARK.findall(piece)) > 1:
            return False
        if self._effort_left < 0 or _KIND not in piece:  # no event without its kind is of use
            return False
        self._effort_left -= len(piece)
        for text in mended(piece):
            events = decode_exact(b"[" + text + b"]") or (decode_leniently(b"[" + text + b"]") or [()])[0]
            if events and all(map(_is_plausible, events)):
                self.events += events
                self.repaired += sum(map(is_usable, events))
                return True
            if is_too_deep(b"[" + text + b"]"):
                break
        return False

    def _salvage(self, piece: bytes) -> None:
        """Keep whole events that stand amid unreadable text; count those of which only parts are left."""
        starts = [0, *(match.start() for match in _EVENT_START.finditer(piece, 1))]
        num_lost = 0
        has_remains = False
        is_done = self._effort_left >= 0
        for start, stop in zip(starts, [*starts[1:], len(piece)], strict=True):
            part = piece[start:stop]
            self._effort_left = _SMALL_EFFORT_BYTES  # mended once, whatever the whole has cost
            end = part.rfind(b"}") + 1
            was_tried = end == len(piece) and is_done  # the whole piece: no reading and no mending fitted it
            if end and not was_tried and _EVENT_MARK.search(part) and self._accept_by_any_means(part[:end]):
                part = part[end:]
            num_lost += len(_EVENT_MARK.findall(part))
            has_remains = has_remains or bool(part.strip(b" \t\r\n,"))
        self.dropped += max(num_lost, int(has_remains))


def _is_plausible(event: ExactEvent) -> bool:
    """Whether mending made an event of it, not one field that swallowed its neighbours."""
    return len(event.ph) == 1 and '"' not in (event.cat or "")


def _seems_cut(piece: bytes) -> bool:
    """Whether something is still open at the end: more text may make an event of it."""
    bare = _STRING.sub(b"", piece)
    return b'"' in bare or bare.count(b"{") > bare.count(b"}")
