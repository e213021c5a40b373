"""How many nanoseconds is a timestamp in microseconds? Exactly, for every way traces have written it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal, localcontext
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

LARGEST_START_NS = 2**62 - 2**54
"""Start, duration and base add up within int64."""
_EXACT_BELOW_US = float(2**43)
"""float64 steps are at most 2**-10 us below this, so whole ns survive rounding; also the longest sane duration."""
_LARGEST_START_US = LARGEST_START_NS // 1000
UNKNOWN_NS = np.int64(-(2**63))


def starts_ns(values_us: Sequence[int | float]) -> npt.NDArray[np.int64] | None:
    """Nanoseconds of decoded timestamps; UNKNOWN_NS where not finite or out of range.

    None when float64 has already rounded some of them: then their text must be decoded anew.
    """
    column = _column(values_us)
    if column.dtype == np.int64:
        fits = (column >= -_LARGEST_START_US) & (column <= _LARGEST_START_US)
        return np.where(fits, column, 0) * 1000 + np.where(fits, 0, UNKNOWN_NS)
    if column.dtype != np.float64:
        return None
    with np.errstate(invalid="ignore"):
        if (np.abs(column) >= _EXACT_BELOW_US).any():
            return None
    return _float_ns(column)


def exact_starts_ns(values_us: Sequence[Decimal | int | float]) -> npt.NDArray[np.int64]:
    """The same for timestamps with all their decimals; halves of a nanosecond go to the even neighbour."""
    with localcontext() as context:
        context.prec = 60
        return np.fromiter(map(_exact_ns, values_us), np.int64, len(values_us))


def durations_ns(values_us: Sequence[float]) -> npt.NDArray[np.int64]:
    """Nanoseconds of durations; UNKNOWN_NS for negative, missing and overflowed ones."""
    column = np.frombuffer(struct.pack(f"{len(values_us)}d", *values_us), np.float64)
    with np.errstate(invalid="ignore"):
        sane = (column >= 0) & (column < _EXACT_BELOW_US)
    return np.where(sane, _float_ns(np.where(sane, column, 0.0)), UNKNOWN_NS)


def _column(values_us: Sequence[int | float]) -> npt.NDArray[Any]:
    """int64 where all are integers, else float64; another type where integers go beyond both.

    Packing takes half as long as np.array.
    """
    count = len(values_us)
    try:
        if count and isinstance(values_us[0], int):
            return np.frombuffer(struct.pack(f"{count}q", *values_us), np.int64)
        return np.frombuffer(struct.pack(f"{count}d", *values_us), np.float64)
    except (struct.error, OverflowError):
        return np.array(values_us)


def _float_ns(column: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    known = np.isfinite(column)
    finite = np.where(known, column, 0.0)
    whole = np.floor(finite)  # multiplying the whole number at once would round a second time
    ns = whole.astype(np.int64) * 1000 + np.rint((finite - whole) * 1000).astype(np.int64)
    return np.where(known, ns, UNKNOWN_NS)


def _exact_ns(value_us: Decimal | int | float) -> int:
    if isinstance(value_us, float) and not isfinite(value_us):
        return int(UNKNOWN_NS)
    value = Decimal(value_us)
    if not value.is_finite() or value.adjusted() > 18:
        return int(UNKNOWN_NS)
    ns = int((value * 1000).to_integral_value())
    return ns if abs(ns) <= LARGEST_START_NS else int(UNKNOWN_NS)
