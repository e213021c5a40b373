"""How is one event's broken text mended? Each known kind of damage is undone; what stays unreadable is given up.

What real traces suffer from: invalid UTF-8 and raw control characters in names, Windows backslashes and quotes that
were not escaped, decimal commas from LC_NUMERIC, NaN and Infinity, missing values, doubled commas, lost quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

PairsHook = Callable[[list[tuple[str, Any]]], dict[str, Any]]

_STRING = re.compile(rb'("(?:[^"\\]|\\.)*")', re.DOTALL)
_SUSPECT = re.compile(rb'[\x00-\x1f]|\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})|\\u[dD][89a-fA-F]')
"""What a string must not hold, or (surrogates) must be looked at."""
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


def mended_throughout(events_text: bytes) -> bytes:
    """Many events at once, quickly: only damage that runs through whole files and is told without parsing."""
    text = events_text.decode("utf-8", errors="replace").encode()
    text = _DECIMAL_COMMA_OF_KEY.sub(rb"\1.", text)
    text = _NOT_A_NUMBER_OF_KEY.sub(rb"\1null", text)
    return _mend_escapes(text, _CONTROL_BUT_BLANK)


def mended(event_text: bytes) -> Iterator[bytes]:
    """Texts that the event may have been meant to be, the least daring change first."""
    valid_utf8 = event_text.decode("utf-8", errors="replace").encode()
    yield _mend(valid_utf8)
    yield _mend(_KEY_WITHOUT_QUOTE.sub(rb'\1"', valid_utf8))
    for backslash_escapes in (True, False):
        requoted = _escape_inner_quotes(valid_utf8, backslash_escapes=backslash_escapes)
        yield _mend(requoted)


def _mend(text: bytes) -> bytes:
    """Structure is mended between the strings only, so that a name like "f(,,)" stays as it is."""
    pieces = _STRING.split(text)  # every second one is a string
    strings = [_mend_string(string) if _SUSPECT.search(string) else string for string in pieces[1::2]]
    between = _mend_structure(b'""'.join(pieces[::2])).split(b'""')
    if len(between) != len(strings) + 1:
        return text
    pieces[::2], pieces[1::2] = between, strings
    return b"".join(pieces)


def _mend_structure(bare: bytes) -> bytes:
    bare = _NOT_A_NUMBER.sub(b"null", bare)
    bare = _DECIMAL_COMMA.sub(rb"\1.", bare)
    bare = _DOUBLE_COMMA.sub(b",", bare)
    bare = _LEADING_COMMA.sub(rb"\1", bare)
    bare = _EMPTY_VALUE.sub(b": null", bare)
    bare = _TRAILING_COMMA.sub(b"", bare)
    return _LEADING_ZERO.sub(rb"\1", bare)


def _mend_string(quoted: bytes) -> bytes:
    inner = _mend_escapes(quoted[1:-1], _CONTROL)
    if _SURROGATE.search(inner):
        inner = _without_lone_surrogates(inner)
    return b'"' + inner + b'"'


def _mend_escapes(text: bytes, control: re.Pattern[bytes]) -> bytes:
    text = _BAD_ESCAPE.sub(lambda match: match[0] if match[1] else b"\\\\", text)
    return control.sub(lambda match: b"\\u%04x" % match[0][0], text)


def read_json(text: bytes, pairs_hook: PairsHook | None = None) -> Any:
    """What a JSON text says, without halves of surrogate pairs and broken bytes, which no document of ours can hold.

    Args:
        pairs_hook: makes each object from its pairs; by default a dict, in which the last of doubled keys counts.

    Raises:
        ValueError, RecursionError: it is no JSON.
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
    """Keep only those quotes that the surrounding structure needs.

    Args:
        text: one event.
        backslash_escapes: whether a backslash before a quote escapes it; in a path that was not escaped it does not.
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
