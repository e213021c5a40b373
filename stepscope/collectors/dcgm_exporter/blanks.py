"""Is this value one, or DCGM's word for none? Pages of older exporters print the word as if it were a value."""

from __future__ import annotations

import math

from stepscope.core.readings import MissingReason

_INT32, _INT64 = 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0
_FP64 = 140737488355328
"""dcgmlib/dcgm_structs.h: blank; + 1: not found; + 2: not supported; + 3: not permissioned."""
_KINDS = (
    (MissingReason.UNREADABLE, "DCGM has no value (blank)"),
    (MissingReason.UNREADABLE, "DCGM did not find it"),
    (MissingReason.NOT_SUPPORTED, "DCGM says: not supported"),
    (MissingReason.NO_PERMISSION, "DCGM says: no permission"),
)
_WORDS = {
    "<<<NULL>>>": _KINDS[0],
    "<<<NOT_FOUND>>>": _KINDS[1],
    "<<<NOT_SUPPORTED>>>": _KINDS[2],
    "<<<NOT_PERM>>>": _KINDS[3],
}
_BLANKS = {base + kind: _KINDS[kind] for base in (_INT32, _INT64, _FP64) for kind in range(4)}
_ROUNDED = 9.2233720368547e18
"""Programs between us and the exporter print int64 blanks as 9223372036854776000 or 9.223372036854776e+18."""
_MOST_DIGITS = 30
"""Of a blank; Python refuses to convert thousands of them."""


def value_of(text: str) -> float | tuple[MissingReason, str]:
    """The number, or why there is none and a line about it.

    Only the blanks themselves are dropped, not all that is larger: NVLink's bytes pass the blank of doubles, 1.4e14,
    within minutes.
    """
    if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS:
        blank = _BLANKS.get(int(text))
        if blank is not None:
            return blank
    elif text in _WORDS:
        return _WORDS[text]
    try:
        value = float(text.replace("_", "?"))  # Python takes 1_000 for a number
    except ValueError:
        return MissingReason.UNREADABLE, f"the page says {text[:40]!r}"
    if not math.isfinite(value):
        return MissingReason.UNREADABLE, f"the page says {text[:40]}"
    if value >= _ROUNDED:
        return _KINDS[0]
    return _BLANKS.get(int(value), value) if value >= _INT32 and value.is_integer() else value


def text_of(text: str) -> str:
    """The text of a label, empty where DCGM has none."""
    return "" if text in _WORDS else text
