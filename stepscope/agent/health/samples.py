"""Samples of a check (good, bad or between, with evidence), and windows over the samples of a counter.

`CounterWindow` has the growth of a counter, `MinuteWindow` the number of the last minutes in which something happened.
A counter that restarts (the driver was reloaded) did not shrink.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from stepscope.core.hardware.health import Action, Severity


class SampleState(Enum):
    """Result of a check for one sample."""

    GOOD = "good"
    BETWEEN = "between"  # between the thresholds to enter and to leave: begins no episode and ends none
    BAD = "bad"
    OVER = "over"  # cannot hold any longer: the GPU was reset


@dataclass(frozen=True, slots=True)
class CheckEvidence:
    """What is wrong in one sample; fields as in `HealthEvent`."""

    severity: Severity
    action: Action
    message: str
    value: float | None = None
    threshold: float | None = None
    unit: str = ""

    def is_worse_than(self, other: CheckEvidence) -> bool:
        """Whether it is worse than earlier evidence of the same episode; equal evidence counts as worse."""
        if self.severity is not other.severity:
            return self.severity.rank > other.severity.rank
        if self.value is None or self.threshold is None or other.value is None or other.threshold is None:
            return True
        return abs(self.value - self.threshold) >= abs(other.value - other.threshold)


@dataclass(frozen=True, slots=True)
class CheckSample:
    """Result of one check for one sample.

    Attributes:
        code: of the check.
        time_ns: of the sample, ns since the epoch; the same sample again counts for nothing.
        state: good, bad, between or over.
        evidence: of a bad sample.
        count: number of occurrences.
        is_new: it has just happened: a counter moved, an XID came. Otherwise a first sample may show an old condition.
    """

    code: str
    time_ns: int
    state: SampleState
    evidence: CheckEvidence | None = None
    count: int = 1
    is_new: bool = False


def bad(code: str, time_ns: int, evidence: CheckEvidence, *, count: int = 1, is_new: bool = False) -> CheckSample:
    """A bad sample."""
    return CheckSample(code, time_ns, SampleState.BAD, evidence, count, is_new)


def good(code: str, time_ns: int) -> CheckSample:
    """A good sample."""
    return CheckSample(code, time_ns, SampleState.GOOD)


def above(
    code: str, time_ns: int, evidence: CheckEvidence, *, leave: float, strictly: bool = False, is_new: bool = False
) -> CheckSample:
    """Compare a value with a threshold that it must stay below.

    Args:
        evidence: of a bad sample, with value and threshold.
        leave: values up to this are good.
        strictly: a value equal to the threshold is not bad.
    """
    value, threshold = evidence.value, evidence.threshold
    assert value is not None
    assert threshold is not None
    if value > threshold or (value == threshold and not strictly):
        return bad(code, time_ns, evidence, is_new=is_new)
    return CheckSample(code, time_ns, SampleState.GOOD if value <= leave else SampleState.BETWEEN)


_MAX_STEPS = 4096


class Sample(NamedTuple):
    """A value of one source; `time_ns` is when it was read, ns since the epoch."""

    value: float
    time_ns: int
    source: str


class CounterWindow:
    """Growth of a counter in a window of time; growth between two samples is spread evenly over the time between."""

    def __init__(self, seconds: float) -> None:
        self._window_ns = int(seconds * 1e9)
        self._steps: deque[tuple[int, int, float]] = deque(maxlen=_MAX_STEPS)
        self._last: Sample | None = None

    def add(self, sample: Sample | None) -> bool:
        """Add the newest sample; whether growth is known: the sample is new, and there is one before it.

        A lower value, another source or an earlier time restart the window.
        """
        last = self._last
        if sample is None or sample == last:
            return False
        self._last = sample
        restarts = last is None or sample.source != last.source or sample.value < last.value
        if last is None or restarts or sample.time_ns <= last.time_ns:
            self._steps.clear()
            return False
        if sample.value > last.value:
            self._steps.append((last.time_ns, sample.time_ns, sample.value - last.value))
        while self._steps and self._steps[0][1] <= sample.time_ns - self._window_ns:
            self._steps.popleft()
        return True

    @property
    def growth(self) -> float:
        """Growth in the window that ends with the newest sample; 0 before the second sample."""
        if self._last is None:
            return 0.0
        begin_ns = self._last.time_ns - self._window_ns
        return sum(
            amount * (end - max(begin, begin_ns)) / (end - begin)
            for begin, end, amount in self._steps
            if end > begin_ns
        )


_MINUTE_NS = 60 * 10**9


class MinuteWindow:
    """Minutes of the clock in which something was seen, among the newest `num_minutes`."""

    def __init__(self, num_minutes: int) -> None:
        self._num_minutes = num_minutes
        self._seen: dict[int, set[str]] = {}

    def add(self, time_ns: int, seen: set[str]) -> None:
        """Add the names that a sample has; `time_ns` since the epoch."""
        newest = time_ns // _MINUTE_NS
        if seen:
            self._seen.setdefault(newest, set()).update(seen)
        self._seen = {
            minute: names for minute, names in self._seen.items() if -self._num_minutes < minute - newest <= 0
        }

    @property
    def count(self) -> int:
        """Number of minutes in which anything was seen."""
        return len(self._seen)

    @property
    def share(self) -> float:
        """Share of all minutes, 0..1."""
        return self.count / self._num_minutes

    @property
    def names(self) -> set[str]:
        """All names that were seen."""
        return set().union(*self._seen.values())
