"""What does a check say of one sample? Whether that makes an episode is for `episodes`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stepscope.core.health import Action, Severity


class Standing(Enum):
    """How a sample stands to a check."""

    GOOD = "good"
    BETWEEN = "between"  # begins no episode and ends none: between the thresholds to enter and to leave
    BAD = "bad"
    OVER = "over"  # it cannot be so any more: the GPU was reset


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is wrong, as in `core.health.HealthEvent`."""

    severity: Severity
    action: Action
    message: str
    value: float | None = None
    threshold: float | None = None
    unit: str = ""

    def is_worse_than(self, other: Evidence) -> bool:
        """Whether it says more than another of the same episode; of equals the newer does."""
        if self.severity is not other.severity:
            return self.severity.rank > other.severity.rank
        if self.value is None or self.threshold is None or other.value is None or other.threshold is None:
            return True
        return abs(self.value - self.threshold) >= abs(other.value - other.threshold)


@dataclass(frozen=True, slots=True)
class Sign:
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
    standing: Standing
    evidence: Evidence | None = None
    count: int = 1
    is_new: bool = False


def bad(code: str, time_ns: int, evidence: Evidence, *, count: int = 1, is_new: bool = False) -> Sign:
    """A sample that is bad."""
    return Sign(code, time_ns, Standing.BAD, evidence, count, is_new)


def good(code: str, time_ns: int) -> Sign:
    """A sample that is good."""
    return Sign(code, time_ns, Standing.GOOD)


def above(
    code: str, time_ns: int, evidence: Evidence, *, leave: float, strictly: bool = False, is_new: bool = False
) -> Sign:
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
    return Sign(code, time_ns, Standing.GOOD if value <= leave else Standing.BETWEEN)
