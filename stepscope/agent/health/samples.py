"""Samples of a check: what it says of one (good, bad or between, with evidence), and windows over many.

`CounterWindow` tells by how much a counter grew, `MinuteWindow` in how many of the last minutes something happened. A
counter that begins anew (the driver was reloaded) did not shrink.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from stepscope.core.hardware.health import Action, Severity


class SampleState(Enum):
    """How a sample stands to a check."""

    GOOD = "good"
    BETWEEN = "between"  # begins no episode and ends none: between the thresholds to enter and to leave
    BAD = "bad"
    OVER = "over"  # it cannot be so any more: the GPU was reset


@dataclass(frozen=True, slots=True)
class SignEvidence:
    """What is wrong, as in `core.health.HealthEvent`."""

    severity: Severity
    action: Action
    message: str
    value: float | None = None
    threshold: float | None = None
    unit: str = ""

    def is_worse_than(self, other: SignEvidence) -> bool:
        """Whether it says more than another of the same episode; of equals the newer does."""
        if self.severity is not other.severity:
            return self.severity.rank > other.severity.rank
        if self.value is None or self.threshold is None or other.value is None or other.threshold is None:
            return True
        return abs(self.value - self.threshold) >= abs(other.value - other.threshold)


@dataclass(frozen=True, slots=True)
class CheckSample:
    """One sample's.

    Attributes:
        code: of the check.
        time_ns: of the sample, ns since the epoch; the same sample again counts for nothing.
        standing: how it stands.
        evidence: where it is bad.
        count: how often it happened.
        is_new: it happened just now: a counter moved, an XID came. Otherwise a first sample may show what is old.
    """

    code: str
    time_ns: int
    standing: SampleState
    evidence: SignEvidence | None = None
    count: int = 1
    is_new: bool = False


def bad(code: str, time_ns: int, evidence: SignEvidence, *, count: int = 1, is_new: bool = False) -> CheckSample:
    """A sample that is bad."""
    return CheckSample(code, time_ns, SampleState.BAD, evidence, count, is_new)


def good(code: str, time_ns: int) -> CheckSample:
    """A sample that is good."""
    return CheckSample(code, time_ns, SampleState.GOOD)


def above(
    code: str, time_ns: int, evidence: SignEvidence, *, leave: float, strictly: bool = False, is_new: bool = False
) -> CheckSample:
    """A value against a threshold that it must stay below.

    Args:
        evidence: with value and threshold, as it is if that was reached.
        leave: good are values of at most this.
        strictly: the threshold itself is not reached yet.
    """
    value, threshold = evidence.value, evidence.threshold
    assert value is not None
    assert threshold is not None
    if value > threshold or (value == threshold and not strictly):
        return bad(code, time_ns, evidence, is_new=is_new)
    return CheckSample(code, time_ns, SampleState.GOOD if value <= leave else SampleState.BETWEEN)


_MOST_STEPS = 4096


class Sample(NamedTuple):
    """A value of one source.

    Attributes:
        value: as read.
        time_ns: when, ns since the epoch.
        source: who read it.
    """

    value: float
    time_ns: int
    source: str


class CounterWindow:
    """One counter over some time. Growth between two samples is spread evenly over the time between them."""

    def __init__(self, seconds: float) -> None:
        self._window_ns = int(seconds * 1e9)
        self._steps: deque[tuple[int, int, float]] = deque(maxlen=_MOST_STEPS)
        self._last: Sample | None = None

    def add(self, sample: Sample | None) -> bool:
        """Take the newest sample; whether it tells of growth: it is new, and there is one before it.

        A lower value, another source or a time before the last one begin anew.
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
        """By how much it grew in the window that ends with the newest sample; 0 where nothing is known."""
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
    """Minutes of the clock in which something was seen, and what."""

    def __init__(self, wanted: int) -> None:
        """
        Args:
            wanted: over how many of the newest minutes.
        """
        self._wanted = wanted
        self._seen: dict[int, set[str]] = {}

    def add(self, time_ns: int, seen: set[str]) -> None:
        """Take a sample.

        Args:
            time_ns: of the sample, ns since the epoch.
            seen: what was so in it; empty: nothing.
        """
        newest = time_ns // _MINUTE_NS
        if seen:
            self._seen.setdefault(newest, set()).update(seen)
        self._seen = {minute: names for minute, names in self._seen.items() if -self._wanted < minute - newest <= 0}

    @property
    def count(self) -> int:
        """In how many minutes anything was seen."""
        return len(self._seen)

    @property
    def share(self) -> float:
        """The same as a share of all."""
        return self.count / self._wanted

    @property
    def names(self) -> set[str]:
        """All that was seen."""
        return set().union(*self._seen.values())
