"""Signals over time: sampled counters and losses of steps as running totals, and how far one covers the other.

A running total is linear between its corners and flat where the signal is not known, so that any period has its exact
part of it, however long the samples and the steps are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]

_MAX_GAP = 2.5
"""Multiple of the usual distance of samples up to which a sample stands for all the time since the one before."""
_NS = 1e-9


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal over time.

    Attributes:
        corners_ns: ends of the intervals in which it is known, ascending.
        total: up to each corner, its integral in seconds.
        known: up to each corner, for how many seconds it is known.
        usual_ns: median length of an interval; 0 where it is never known.
    """

    corners_ns: Times
    total: Floats
    known: Floats
    usual_ns: int

    @classmethod
    def of_intervals(cls, begins_ns: Times, ends_ns: Times, values: Floats) -> Signal:
        """Signal with these values in these intervals; of overlapping ones the earlier keeps what is its own."""
        order = np.argsort(begins_ns, kind="stable")
        begins, ends, values = begins_ns[order], ends_ns[order], values[order]
        if len(begins):
            begins = np.maximum(begins, np.concatenate((begins[:1], np.maximum.accumulate(ends)[:-1])))
        is_real = (ends > begins) & np.isfinite(values)
        begins, ends, values = begins[is_real], ends[is_real], values[is_real]
        seconds = (ends - begins) * _NS
        corners = np.stack([begins, ends], axis=1).ravel()
        total, known = (
            np.stack([np.concatenate(([0.0], so_far[:-1])), so_far], axis=1).ravel() if len(so_far) else np.empty(0)
            for so_far in (np.cumsum(values * seconds), np.cumsum(seconds))
        )
        return cls(corners, total, known, int(np.median(ends - begins)) if len(ends) else 0)

    @classmethod
    def of_samples(cls, times_ns: Sequence[int], values: Sequence[float | None]) -> Signal:
        """Signal that is sampled: each value stands for the time since the sample before, if that is near."""
        times, known = _sorted(times_ns, values)
        return cls.of_intervals(_begins(times), times, known)

    @classmethod
    def of_total(cls, times_ns: Sequence[int], values: Sequence[float | None]) -> Signal:
        """Rate, per second, of a counter that only grows; a counter that began anew is not known for that time."""
        times, known = _sorted(times_ns, values)
        if len(times) < 2:
            return cls.of_intervals(times[:0], times[:0], known[:0])
        growth = np.diff(known)
        rate = np.where(growth >= 0, growth / (np.diff(times) * _NS), np.nan)
        return cls.of_intervals(times[:-1], times[1:], rate)

    def over(self, edges_ns: Times) -> tuple[Floats, Floats]:
        """Integral, and seconds for which it is known, between each two edges."""
        if not len(self.corners_ns):
            return np.zeros(max(len(edges_ns) - 1, 0)), np.zeros(max(len(edges_ns) - 1, 0))
        at, corners = ((times - self.corners_ns[0]).astype(np.float64) for times in (edges_ns, self.corners_ns))
        return np.diff(np.interp(at, corners, self.total)), np.diff(np.interp(at, corners, self.known))

    def between(self, begins_ns: Times, ends_ns: Times) -> Floats:
        """Integral over each of several intervals."""
        if not len(self.corners_ns):
            return np.zeros(len(begins_ns))
        first, corners = self.corners_ns[0], (self.corners_ns - self.corners_ns[0]).astype(np.float64)
        until_end, until_begin = (
            np.interp((times - first).astype(np.float64), corners, self.total) for times in (ends_ns, begins_ns)
        )
        integral: Floats = until_end - until_begin
        return integral

    def mean(self, edges_ns: Times) -> Floats:
        """Mean between each two edges; NaN where it is known for less than half of the time."""
        total, known = self.over(edges_ns)
        is_known = known >= _MOSTLY_KNOWN * np.maximum(np.diff(edges_ns) * _NS, _NS)
        return np.where(is_known, total / np.maximum(known, _NS), np.nan)


_MOSTLY_KNOWN = 0.5


def _sorted(times_ns: Sequence[int], values: Sequence[float | None]) -> tuple[Times, Floats]:
    """The known values by rising time; the last one of a time."""
    by_time = {time: value for time, value in zip(times_ns, values, strict=True) if value is not None}
    times = sorted(by_time)
    return np.array(times, np.int64), np.array([by_time[time] for time in times], np.float64)


def _begins(times: Times) -> Times:
    """From when on each sample stands for the signal."""
    if len(times) < 2:
        return times
    distance = np.diff(times)
    usual = int(np.median(distance))
    near = np.where(distance <= _MAX_GAP * usual, distance, usual)
    return times - np.concatenate(([usual], near))


MOSTLY_COVERED = 0.5
"""Least part of a loss that evidence has to cover, by its size and at the same time, for it to be a reason."""
MOST_ELSEWHERE = 0.5
"""Largest ratio of evidence where nothing is lost to that where the loss is, for it to be a reason."""
_LOSS_FREE = 0.25
"""Share of the mean loss up to which a period counts as one without the loss."""
_MIN_LOSS_FREE = 0.1
"""Least share of the time without the loss for it to be compared."""
_MAX_PERIODS = 20_000


class Overlap(NamedTuple):
    """How evidence and a loss coincide.

    Attributes:
        covered: part of the loss that the evidence covers: in each period at most the evidence's own share of it.
        during: mean of the evidence, weighted by the loss.
        elsewhere: mean where nothing is lost; None where the loss is spread over nearly all of the time.
    """

    covered: float
    during: float
    elsewhere: float | None

    @property
    def is_reason(self) -> bool:
        """Whether the evidence explains the loss by its size and its time."""
        is_apart = self.elsewhere is None or self.elsewhere <= MOST_ELSEWHERE * self.during
        return self.covered >= MOSTLY_COVERED and is_apart


def periods(first_ns: int, last_ns: int, *lengths_ns: float) -> Times:
    """Edges of periods of equal length that are twice as long as samples and steps are."""
    length = max(2.0 * max(lengths_ns), (last_ns - first_ns) / _MAX_PERIODS, 1.0)
    num = max(int((last_ns - first_ns) / length), 1)
    return np.linspace(0, last_ns - first_ns, num + 1).astype(np.int64) + first_ns


def overlap(lost_seconds: Floats, step_seconds: Floats, evidence: Floats) -> Overlap | None:
    """How evidence and a loss coincide, by period; None where it is unknown for half of the loss.

    Args:
        lost_seconds: of the steps in each period.
        step_seconds: seconds of steps in it.
        evidence: share of its time that the evidence stands for, 0 to 1; NaN is unknown.
    """
    usable = (step_seconds > 0) & ~np.isnan(evidence)
    whole, lost = float(lost_seconds.sum()), lost_seconds[usable]
    if whole <= 0 or lost.sum() < MOSTLY_COVERED * whole:
        return None
    seconds, share = step_seconds[usable], np.clip(evidence[usable], 0.0, 1.0)
    covered = float(np.minimum(lost, share * seconds).sum() / lost.sum())
    during = float((share * lost).sum() / lost.sum())
    is_free = lost <= _LOSS_FREE * seconds * (lost.sum() / seconds.sum())
    elsewhere = None
    if seconds[is_free].sum() >= _MIN_LOSS_FREE * seconds.sum():
        elsewhere = float((share * seconds)[is_free].sum() / seconds[is_free].sum())
    return Overlap(min(covered, 1.0), during, elsewhere)
