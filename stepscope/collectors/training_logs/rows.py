"""Rows of a log while it is read, and what they stand for: how many steps, in which start of the job."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from stepscope.collectors.training_logs.text import Stamp
from stepscope.core.documents.run_directory import LoggedSteps

MAX_STEP = 10**12
MAX_MS = 1e12
_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)")


def number_at_start(text: str) -> float | None:
    """The finite number that a text begins with, also with commas at thousands; None without one."""
    match = _NUMBER.match(text)
    if match is None:
        return None
    value = float(match[1].replace(",", ""))
    return value if math.isfinite(value) else None


@dataclass(slots=True)
class Row:
    """One line of a trainer's about a step, or about several that ended with it.

    Attributes:
        ms: mean duration; None where it follows from the time of the row before.
        stamp: time of the line.
    """

    index: int
    ms: float | None
    stamp: Stamp | None = None
    data_wait_ms: float | None = None
    data_wait_rank: int | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)


def is_plausible(index: int, ms: float) -> bool:
    """Whether numbers can be a step and its duration."""
    return 0 <= index <= MAX_STEP and 0 <= ms <= MAX_MS


_R = TypeVar("_R", bound=Row)


def by_attempt(rows: Iterable[_R], starts_ns: Sequence[int] = ()) -> Iterator[list[_R]]:
    """Rows of each start of the job. A step that several processes print is one row, as long as the longest.

    Args:
        starts_ns: times at which the job is known to have started, ascending.
    """
    attempt: list[_R] = []
    for row in rows:
        last = attempt[-1] if attempt else None
        if last is not None and row.index <= last.index:
            is_start = _num_starts(row, starts_ns) > _num_starts(last, starts_ns)
            if not is_start and row.index == last.index:
                if last.ms is not None and row.ms is not None:
                    last.ms = max(last.ms, row.ms)
                continue
            if row.stamp is not None and last.stamp is not None and row.stamp.ns <= last.stamp.ns:
                continue  # another process', late
            yield attempt
            attempt = []
        attempt.append(row)
    if attempt:
        yield attempt


def _num_starts(row: Row, starts_ns: Sequence[int]) -> int:
    return 0 if row.stamp is None else bisect_right(starts_ns, row.stamp.ns)


def usual_interval(attempts: Iterable[Sequence[Row]]) -> int:
    """The most frequent number of steps between two rows; 1 where there are no two."""
    gaps = Counter(later.index - earlier.index for rows in attempts for earlier, later in pairwise(rows))
    return gaps.most_common(1)[0][0] if gaps else 1


def num_before_first(index: int, interval: int) -> int:
    """Steps that the first row of a start stands for: one where it is not at the interval, as after a restart."""
    return max(min(interval, index), 1) if index % max(interval, 1) == 0 else 1


def as_steps(row: Row, num_steps: int, ms: float, attempt: int) -> LoggedSteps:
    """Training log: a row of it as a step of the document."""
    return LoggedSteps(
        row.index, num_steps, ms, row.data_wait_ms, row.data_wait_rank, row.phases_ms, row.figures, attempt
    )
