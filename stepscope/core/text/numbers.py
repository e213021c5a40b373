"""Numbers and names as text: units, significant digits, plurals, short lists, label values, the nearest known name.

Unknown numbers are an en dash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import TypeGuard

from stepscope.core.errors import UsageError


def counted(number: float, singular: str, plural: str | None = None) -> str:
    """A number with its noun as text: '1 step', '1,200 steps', '2 boundaries'. Fractions are rounded."""
    return f"{number:,.0f} {form(round(number), singular, plural)}"


def form(number: float, singular: str, plural: str | None = None) -> str:
    """Form of a word in a text: the singular for 1, else (also for 0) the plural: 'rank' or 'ranks', 'has', 'have'."""
    return singular if number == 1 else plural or _plural(singular)


def _plural(singular: str) -> str:
    if singular.endswith("y") and singular[-2:-1] not in "aeiou":
        return f"{singular[:-1]}ies"
    return f"{singular}es" if singular.endswith(("s", "x", "ch", "sh")) else f"{singular}s"


MAX_NUMBER = 1e15
"""Larger numbers come from damaged files: 30,000 years in milliseconds, a petabyte in bytes. They count as unknown."""

UNKNOWN = "–"
_NARROW_SPACE = "\u202f"
_MAX_NS = 2**63 - 1
"""Largest time in ns that a signed integer of 64 bits holds, in the year 2262."""


def significant(value: float, digits: int = 3, *, sign: str = "") -> str:
    """A number as text to `digits` significant digits, with all digits before the point: '0.123', '1,489'.

    Numbers beyond MAX_NUMBER have an exponent: '3e+30'.

    Args:
        sign: '+' to put a plus before numbers that are not negative.
    """
    is_whole = 10**digits - 0.5 <= abs(value) <= MAX_NUMBER
    return f"{value:{sign},.0f}" if is_whole else f"{value:{sign}.{digits}g}"


def listed(items: Iterable[object], most: int = 8) -> str:
    """Items as text with commas between them: '0, 1, 2'; of more than `most` the first ones: '0, 1, ...'."""
    shown = [str(item) for item in islice(items, most + 1)]
    return ", ".join(shown if len(shown) <= most else [*shown[:most], "..."])


def percent(fraction: float | None, *, decimals: int = 1) -> str:
    """A fraction as text in percent: 0.314 -> '31.4%'; shares that round to 0 are '<0.1%'."""
    if not is_readable(fraction):
        return UNKNOWN
    if decimals and 0 < fraction < 0.0005:
        return "<0.1%"
    return f"{_no_minus_zero(f'{fraction * 100:.{decimals}f}')}%"


def milliseconds(value: float | None) -> str:
    """A duration in ms as text, in the unit that fits: '34.6 ms', '1,873.9 ms', '12.4 s', '870 µs'."""
    if not is_readable(value):
        return UNKNOWN
    size = abs(value)
    if size == 0:
        return f"0{_NARROW_SPACE}ms"
    if size >= _SECONDS_FROM_MS:
        return f"{value / 1000:,.1f}{_NARROW_SPACE}s"
    if size < 0.9995:
        return f"{_digits(value * 1000)}{_NARROW_SPACE}µs"
    return f"{value:,.1f}{_NARROW_SPACE}ms"


_SECONDS_FROM_MS = 10_000.0


def size(num_bytes: int | None) -> str:
    """Bytes as text in binary units: '64.0 MiB'."""
    if not is_readable(num_bytes) or num_bytes < 0:
        return UNKNOWN
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1023.95:
            return f"{num_bytes}{_NARROW_SPACE}B" if unit == "B" else f"{amount:.1f}{_NARROW_SPACE}{unit}"
        amount /= 1024
    return f"{amount:.1f}{_NARROW_SPACE}TiB"


def plain_size(num_bytes: int | None) -> str:
    """The same with a plain space, for messages that programs read: "64.0 MiB"."""
    return size(num_bytes).replace(_NARROW_SPACE, " ")


def bandwidth(value_gbs: float | None) -> str:
    """A bandwidth in GB/s as text, to three significant digits."""
    return f"{_digits(value_gbs)}{_NARROW_SPACE}GB/s" if is_readable(value_gbs) and value_gbs >= 0 else UNKNOWN


def count(number: int | None) -> str:
    """A whole number as text with its thousands separated: '12,345'."""
    return f"{number:,}" if is_readable(number) and number >= 0 else UNKNOWN


def ranks_words(ranks: list[int], *, world_size: int | None = None) -> str:
    """The ranks as text: [0, 1, 2, 5] -> 'ranks 0–2, 5'; all of several are 'all 8 ranks' or 'both ranks'."""
    if not ranks:
        return "no rank in particular"
    ordered = sorted(set(ranks))
    if world_size is not None and len(ordered) == world_size > 1:
        return "both ranks" if world_size == 2 else f"all {world_size} ranks"
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {number_runs(ordered)}"


def number_runs(numbers: Iterable[int], *, dash: str = "–") -> str:
    """Ascending numbers as text with their runs joined: [0, 1, 2, 5] -> '0–2, 5'."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(dash.join(map(str, run)) for run in runs)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """CPUs as text, as the kernel writes them: "0-3,8,64-67"."""
    return number_runs(sorted(set(cpus)), dash="-").replace(", ", ",")


def moment(time_ns: int | None) -> str:
    """A time in ns since the epoch as text: '2026-08-05 14:03 UTC'."""
    if time_ns is None or not 0 <= time_ns <= _MAX_NS:
        return UNKNOWN
    return datetime.fromtimestamp(time_ns // 1_000_000_000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def is_readable(value: float | None) -> TypeGuard[float]:
    """Whether a number is worth showing as text: not None, NaN, infinite or beyond MAX_NUMBER."""
    return value is not None and abs(value) <= MAX_NUMBER  # NaN compares false


def _digits(value: float) -> str:
    size_ = abs(value)
    decimals = 0 if size_ >= 99.95 else 1 if size_ >= 9.995 else 2
    return _no_minus_zero(f"{value:.{decimals}f}")


def _no_minus_zero(text: str) -> str:
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name whose text is most similar to this one; None where none is similar."""
    import difflib  # only where a name is wrong

    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def unknown_name(
    what: str, given: str, known: Iterable[str], *, where: str = "", near: str | None = None, listing: str = ""
) -> UsageError:
    """The error of a name that is not a known one: the name, the nearest known one, and the list.

    Args:
        near: the nearest, where the names' likeness alone does not tell it.
        listing: where the known names are listed, where they are too many for the line.
    """
    known = list(known)
    listing = listing or f"known: {', '.join(known)}"
    near = near or nearest(given, known)
    what_next = listing if near is None else f'did you mean "{near}"? {listing[0].upper()}{listing[1:]}'
    return UsageError(f'unknown {what} "{given}"', where=where, what_next=what_next)


_NAMESPACES = re.compile(r"\b(at|native|c10|cutlass|cutlass_cudnn|cub|thrust|internal|std)::|\(anonymous namespace\)::")


def short_kernel_name(name: str, *, max_length: int = 56) -> str:
    """A kernel's name as short text: without return type and common namespaces, cut to `max_length` characters."""
    bare = _NAMESPACES.sub("", name.removeprefix("void "))
    return bare if len(bare) <= max_length else bare[: max_length - 3] + "..."


MAX_LABEL_LENGTH = 100
MAX_ID_LENGTH = 320
"""A pod's namespace has up to 63 characters, its name 253."""


def label_text(text: str, max_length: int = MAX_LABEL_LENGTH) -> str:
    """Text: a user's text (the name of a job, a pod, a process) made printable and short, as a label value.

    Characters that are not printable (control characters, direction overrides) become spaces; long texts are cut.
    """
    if len(text) <= max_length and text.isprintable():
        return text
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: max_length + 1])
    return plain if len(plain) <= max_length else plain[: max_length - 1] + "…"
