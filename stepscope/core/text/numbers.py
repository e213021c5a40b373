"""Numbers as text: units, significant digits, plurals, and short lists."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import TypeGuard


def counted(number: float, singular: str, plural: str | None = None) -> str:
    """The number with its noun: '1 step', '1,200 steps', '2 boundaries'. Fractions are rounded to whole things."""
    return f"{number:,.0f} {form(round(number), singular, plural)}"


def form(number: float, singular: str, plural: str | None = None) -> str:
    """The word that agrees with the number: of 1 'rank' or 'has', of all others, 0 too, 'ranks' or 'have'."""
    return singular if number == 1 else plural or _plural(singular)


def _plural(singular: str) -> str:
    """As English makes it: 'steps', 'boundaries', 'processes', 'micro-batches'."""
    if singular.endswith("y") and singular[-2:-1] not in "aeiou":
        return f"{singular[:-1]}ies"
    return f"{singular}es" if singular.endswith(("s", "x", "ch", "sh")) else f"{singular}s"


_LARGEST = 1e15


def significant(value: float, digits: int = 3, *, sign: str = "") -> str:
    """Significant digits, all of those before the point, and no exponent for what is large: '0.123', '1,489'.

    Beyond 1e15, which no time, size or count reaches, digits tell nothing: '3e+30'.

    Args:
        value: the number.
        digits: least number of them, as far as they are not zeros at the end.
        sign: '+' where a plus is to stand before what is not negative.
    """
    is_whole = 10**digits - 0.5 <= abs(value) <= _LARGEST
    return f"{value:{sign},.0f}" if is_whole else f"{value:{sign}.{digits}g}"


def listed(items: Iterable[object], most: int = 8) -> str:
    """[0, 1, 2] -> '0, 1, 2'; of more than `most` the first: '0, 1, ...'."""
    shown = [str(item) for item in islice(items, most + 1)]
    return ", ".join(shown if len(shown) <= most else [*shown[:most], "..."])


UNKNOWN = "–"
_NARROW_SPACE = "\u202f"

MAX_NUMBER = 1e15
"""Whatever is larger is a damaged file's: milliseconds are 30 000 years then, bytes a petabyte, shares absurd."""


_LATEST_NS = 2**63 - 1
"""The year 2262: the last one that ns in a signed integer of 64 bits reach."""


def percent(fraction: float | None, *, decimals: int = 1) -> str:
    """0.314 -> '31.4 %'; what is there but rounds to nothing is '<0.1 %'."""
    if not is_readable(fraction):
        return UNKNOWN
    if decimals and 0 < fraction < 0.0005:
        return f"<0.1{_NARROW_SPACE}%"
    return f"{_no_minus_zero(f'{fraction * 100:.{decimals}f}')}{_NARROW_SPACE}%"


def milliseconds(value: float | None) -> str:
    """Three significant digits with the unit that fits: '34.6 ms', '1.24 s', '870 µs'."""
    if not is_readable(value):
        return UNKNOWN
    size = abs(value)
    if size == 0:
        return f"0{_NARROW_SPACE}ms"
    if size >= 999.5:
        return f"{_digits(value / 1000)}{_NARROW_SPACE}s"
    if size < 0.9995:
        return f"{_digits(value * 1000)}{_NARROW_SPACE}µs"
    return f"{_digits(value)}{_NARROW_SPACE}ms"


def size(num_bytes: int | None) -> str:
    """Bytes in binary units: '64.0 MiB'."""
    if not is_readable(num_bytes) or num_bytes < 0:
        return UNKNOWN
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1023.95:
            return f"{num_bytes}{_NARROW_SPACE}B" if unit == "B" else f"{amount:.1f}{_NARROW_SPACE}{unit}"
        amount /= 1024
    return f"{amount:.1f}{_NARROW_SPACE}TiB"


def bandwidth(value_gbs: float | None) -> str:
    """GB/s with three significant digits."""
    return f"{_digits(value_gbs)}{_NARROW_SPACE}GB/s" if is_readable(value_gbs) and value_gbs >= 0 else UNKNOWN


def count(number: int | None) -> str:
    """A whole number with thousands apart: '12 345'."""
    return f"{number:,}".replace(",", _NARROW_SPACE) if is_readable(number) and number >= 0 else UNKNOWN


def ranks_words(ranks: list[int], *, world_size: int | None = None) -> str:
    """[0, 1, 2, 5] -> 'ranks 0–2, 5'; all of several -> 'all 8 ranks', 'both ranks'."""
    if not ranks:
        return "no rank in particular"
    ordered = sorted(set(ranks))
    if world_size is not None and len(ordered) == world_size > 1:
        return "both ranks" if world_size == 2 else f"all {world_size} ranks"
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {number_runs(ordered)}"


def number_runs(numbers: Iterable[int], *, dash: str = "–") -> str:
    """Ascending numbers: [0, 1, 2, 5] -> '0–2, 5'."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(dash.join(map(str, run)) for run in runs)


def moment(time_ns: int | None) -> str:
    """ns since the epoch as '2026-08-05 14:03 UTC'."""
    if time_ns is None or not 0 <= time_ns <= _LATEST_NS:
        return UNKNOWN
    return datetime.fromtimestamp(time_ns // 1_000_000_000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def evidence_value(value: float | None, unit: str) -> str:
    """An evidence's number with its unit in words."""
    if not is_readable(value):
        return UNKNOWN
    if unit in ("fraction", "ratio", "share"):
        return percent(value)
    if unit in ("ms", "us", "ns", "s"):
        return milliseconds(value * {"ms": 1.0, "us": 1e-3, "ns": 1e-6, "s": 1e3}[unit])
    if unit == "bytes":
        return size(round(value))
    if unit in ("", "count"):
        return count(int(value)) if value == int(value) >= 0 else _digits(value)
    return f"{_digits(value)}{_NARROW_SPACE}{unit}"


def is_readable(value: float | None) -> TypeGuard[float]:
    """Whether a person can make something of the number: nan, inf and 1e300 are unknown, as None is."""
    return value is not None and abs(value) <= MAX_NUMBER  # nan is below nothing


def _digits(value: float) -> str:
    size_ = abs(value)
    decimals = 0 if size_ >= 99.95 else 1 if size_ >= 9.995 else 2
    return _no_minus_zero(f"{value:.{decimals}f}")


def _no_minus_zero(text: str) -> str:
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text
