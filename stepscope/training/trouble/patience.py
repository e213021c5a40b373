"""How long may a step take before it is looked into? Pure arithmetic on what the steps before it took."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from stepscope.core.long_steps import worth_a_look_seconds

_LEAST_SECONDS = 60.0
"""Shorter stops are part of normal training: a garbage collection, a slow file, a recompilation of one kernel."""

_LEAST_PATIENT_SECONDS = 600.0
"""First steps compile and load; a named phase takes as long as it takes."""

_TIMES_MEDIAN = 10.0
_TIMES_LONGEST = 3.0
_SHARE_OF_TIMEOUT = 0.8
"""torch ends the job when a collective has waited for the timeout; the rest is time to write down what is known."""

_LEAST_GLANCE_SECONDS = 5.0
_TIMES_MEDIAN_GLANCE = 1.5

_NUM_FIRST_STEPS = 3
_NUM_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class Situation:
    """What the open step is in.

    Attributes:
        is_long_by_nature: inside a named phase, or compiling.
        timeout_seconds: the least patience of torch's process groups; None without any.
    """

    is_long_by_nature: bool = False
    timeout_seconds: float | None = None


class Patience:
    """Learns from finished steps.

    Args:
        seconds: the limit when the user gave one; else it is found.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._given = seconds
        self._num_steps = 0
        self._recent: deque[float] = deque(maxlen=_NUM_REMEMBERED)

    def add(self, seconds: float) -> None:
        """A step took so long."""
        self._num_steps += 1
        if self._num_steps > _NUM_FIRST_STEPS:
            self._recent.append(seconds)

    @property
    def median_seconds(self) -> float | None:
        """Of the last steps; None before the first ones are over."""
        recent = list(self._recent)
        return statistics.median(recent) if recent else None

    def limit_seconds(self, situation: Situation) -> float:
        """Age at which the open step is looked into."""
        if self._given is not None:
            return self._given
        recent = list(self._recent)
        median, longest = (statistics.median(recent), max(recent)) if recent else (0.0, 0.0)
        is_patient = situation.is_long_by_nature or not recent
        least = _LEAST_PATIENT_SECONDS if is_patient else _LEAST_SECONDS
        limit = max(least, _TIMES_MEDIAN * median, _TIMES_LONGEST * longest)
        return max(min(limit, _before(situation.timeout_seconds)), _TIMES_LONGEST * median)

    def look_seconds(self, timeout_seconds: float | None) -> float:
        """Age from which the open step is worth telling of, so that someone may judge the job as a whole."""
        recent = sorted(self._recent)
        if self._given is not None or not recent:
            return self.limit_seconds(Situation(timeout_seconds=timeout_seconds))
        within = min(worth_a_look_seconds(recent), _before(timeout_seconds))
        return max(within, _TIMES_LONGEST * recent[len(recent) // 2])

    def glance_seconds(self, look_seconds: float) -> float:
        """Age from which it is looked whether other ranks tell of the step; no step of usual length is as old."""
        usual = max(_LEAST_GLANCE_SECONDS, _TIMES_MEDIAN_GLANCE * (self.median_seconds or 0.0))
        return min(usual, look_seconds / 2)


def _before(timeout_seconds: float | None) -> float:
    return math.inf if timeout_seconds is None else _SHARE_OF_TIMEOUT * timeout_seconds


def given_seconds(stuck_after: float | str) -> float | None:
    """The user's limit; None for "auto", infinite for "off".

    Raises:
        ValueError: it is neither a word nor a number of seconds above 0.
    """
    if stuck_after == "auto":
        return None
    if stuck_after == "off":
        return math.inf
    try:
        seconds = float(stuck_after)
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f'stuck_after is "auto", "off" or seconds above 0, not {stuck_after!r}')
    return seconds
