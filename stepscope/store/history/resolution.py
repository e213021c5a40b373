"""Lower resolution: rows of a metric history as one row an entity and step, without any loss for later sums of steps.

A row of lower resolution is for (time - width, time]. It has of a gauge M the columns `M.mean`, `M.min`, `M.max` and
`M.count`; of a counter `M.first`, `M.last` and their ages before `time` (`M.first_age_ms`, `M.last_age_ms`),
`M.increase` between them with restarts at 0 taken into account, and `M.count`. `last_time` is that of the newest row in
it. So the rate over many rows is that of the samples themselves: what lies between two rows is the first value less the
last one before, or the first value after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stepscope.core.metrics import MetricKind
from stepscope.store.history.samples import TableRows

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

GAUGE_PARTS = ("mean", "min", "max", "count")
COUNTER_PARTS = ("first", "last", "first_age_ms", "last_age_ms", "increase", "count")
LAST_TIME = "last_time"
"""Column of the newest row's time, ms since the epoch."""


def parts_of(kind: MetricKind | None) -> tuple[str, ...]:
    """What a row of lower resolution has of a metric."""
    return COUNTER_PARTS if kind is MetricKind.COUNTER else GAUGE_PARTS


def step_end(times_ms: NDArray[np.int64], width_ms: int) -> NDArray[np.int64]:
    """End of the step (end - width, end] that a time lies in."""
    return -(-times_ms // width_ms) * width_ms


def coarser(rows: TableRows, kinds: Mapping[str, MetricKind | None], width_ms: int) -> TableRows:
    """Rows of lower resolution.

    Args:
        rows: sorted by entity, then time; as they came, or of a lower resolution already.
        kinds: of the metrics in the rows.
        width_ms: of the new steps, a multiple of that of the rows.
    """
    ends = step_end(rows.times_ms, width_ms)
    is_first = np.empty(len(rows), np.bool_)
    is_first[:1] = True
    is_first[1:] = (ends[1:] != ends[:-1]) | (rows.entity[1:] != rows.entity[:-1])
    starts = np.flatnonzero(is_first)
    if not len(starts):
        return TableRows(rows.labels, rows.entities, rows.entity, rows.times_ms, {})
    step_of_row = np.cumsum(is_first) - 1
    newest = rows.columns.get(LAST_TIME)
    newest = rows.times_ms.astype(np.float64) if newest is None else newest
    columns: dict[str, Floats] = {LAST_TIME: np.maximum.reduceat(newest, starts)}
    for name, kind in kinds.items():
        if kind is MetricKind.COUNTER:
            parts = _counter(rows, name, ends, step_of_row, len(starts))
        else:
            parts = _gauge(rows, name, starts)
        columns |= {f"{name}.{part}": values for part, values in parts.items()}
    return TableRows(rows.labels, rows.entities, rows.entity[starts], ends[starts], columns)


def _gauge(rows: TableRows, name: str, starts: Indices) -> dict[str, Floats]:
    values = rows.columns.get(name)
    if values is not None:
        known = ~np.isnan(values)
        mean = lowest = highest = values
        count = known.astype(np.float64)
    else:
        mean, lowest, highest, count = (rows.columns[f"{name}.{part}"] for part in GAUGE_PARTS)
        known = count > 0
    is_whole = bool(known.all())
    total = mean if values is not None else mean * count
    if not is_whole:
        total, count = np.where(known, total, 0.0), np.where(known, count, 0.0)
    number = np.add.reduceat(count, starts)
    with np.errstate(invalid="ignore"):  # 0 / 0: unknown
        mean = _without_noise(np.add.reduceat(total, starts) / number)
    low, high = (np.minimum, np.maximum) if is_whole else (np.fmin, np.fmax)
    return {"mean": mean, "min": low.reduceat(lowest, starts), "max": high.reduceat(highest, starts), "count": number}


_NOISE = np.int64((1 << 18) - 1)


def _without_noise(values: Floats) -> Floats:
    """Values to a part in 10^10: what lies below is noise of the division, which takes a third of the space."""
    bits = values.view(np.int64)
    return ((bits + (_NOISE >> 1)) & ~_NOISE).view(np.float64)


def _counter(rows: TableRows, name: str, ends: Indices, step_of_row: Indices, num_steps: int) -> dict[str, Floats]:
    values = rows.columns.get(name)
    if values is not None:
        known = np.flatnonzero(~np.isnan(values))
        first = last = values[known]
        first_ms = last_ms = rows.times_ms[known]
        increase, count = np.zeros(len(known)), np.ones(len(known))
    else:
        parts = [rows.columns[f"{name}.{part}"] for part in COUNTER_PARTS]
        known = np.flatnonzero(parts[5] > 0)
        first, last, first_age, last_age, increase, count = (part[known] for part in parts)
        first_ms = rows.times_ms[known] - first_age.astype(np.int64)
        last_ms = rows.times_ms[known] - last_age.astype(np.int64)
    step = step_of_row[known]
    is_first = np.empty(len(known), np.bool_)
    is_first[:1] = True
    is_first[1:] = step[1:] != step[:-1]
    between = np.zeros(len(known))
    between[1:] = np.where(is_first[1:], 0.0, increase_between(last[:-1], first[1:]))
    starts = np.flatnonzero(is_first)
    lasts = np.append(starts[1:], len(known)) - 1 if len(starts) else starts
    answer = {part: np.full(num_steps, np.nan) for part in COUNTER_PARTS}
    answer["count"][:] = 0
    if len(starts):
        place, end = step[starts], ends[known[starts]]
        answer["first"][place] = first[starts]
        answer["last"][place] = last[lasts]
        answer["first_age_ms"][place] = end - first_ms[starts]
        answer["last_age_ms"][place] = end - last_ms[lasts]
        answer["increase"][place] = np.add.reduceat(increase + between, starts)
        answer["count"][place] = np.add.reduceat(count, starts)
    return answer


def increase_between(before: Floats, after: Floats) -> Floats:
    """Increase of a counter from one value to a later one: all of the later one where it began again at 0."""
    return np.where(after >= before, after - before, after)
