"""When does a run ask for a capture of itself? When its steps have become slow and stay so."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.training.steps.telemetry import StepRecord

RULE_VARIABLE = "STEPSCOPE_CAPTURE_WHEN"
"""Environment: slow_step, or slow_step:factor=2,times=5 with any of the rule's numbers."""

_WINDOW_STEPS = 64
_SETTLED_STEPS = 10  # before that a median says little, and kernels are still being tuned
_MEDIAN_EVERY = 8
_QUIET_STEPS = 5  # after a capture: other ranks may still be at work on theirs
_PAUSES = frozenset({"checkpoint", "save", "eval", "evaluation", "validation", "test"})
"""Phases that are no part of a training step; one that has any of them is not judged."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    """The rule: made by `slow_step`."""

    factor: float
    times: int
    steps: int
    cooldown_seconds: float
    most: int


_NUMBERS: dict[str, type[int] | type[float]] = {
    "factor": float,
    "times": int,
    "steps": int,
    "cooldown_seconds": float,
    "most": int,
}


def slow_step(
    factor: float = 1.5, times: int = 3, *, steps: int = 3, cooldown_seconds: float = 600.0, most: int = 3
) -> SlowStep:
    """Capture when the step time is more than `factor` x its running median `times` times in a row.

    Args:
        factor: above 1.
        times: slow steps in a row; one alone is noise.
        steps: in the capture, taken on the ranks that the schedule would take.
        cooldown_seconds: until the rule may ask again.
        most: captures of a run that the rule may ask for.

    Raises:
        UsageError: a number is out of its range.
    """
    ok = {
        "factor": factor > 1,
        "times": times >= 1,
        "steps": 1 <= steps <= 1000,
        "cooldown_seconds": cooldown_seconds >= 0,
        "most": most >= 1,
    }
    for name, is_good in ok.items():
        if not is_good:
            raise UsageError(f"{name} is out of its range", where="slow_step", what_next="see help(slow_step)")
    return SlowStep(factor, times, steps, cooldown_seconds, most)


def rule_from_environment() -> SlowStep | None:
    """The rule that STEPSCOPE_CAPTURE_WHEN names; None where it is not set.

    Raises:
        UsageError: it names none.
    """
    text = os.environ.get(RULE_VARIABLE, "")
    name, _, numbers = text.partition(":")
    if not name.strip():
        return None
    try:
        if name.strip() != "slow_step":
            raise KeyError(name)
        pairs = (pair.partition("=") for pair in numbers.split(",") if pair.strip())
        given: dict[str, Any] = {key.strip(): _NUMBERS[key.strip()](value) for key, _, value in pairs}
        return slow_step(**given)
    except (KeyError, ValueError):
        what_next = f"write slow_step, or slow_step:factor=2,times=5 with any of {', '.join(_NUMBERS)}"
        raise UsageError(f"{text!r} names no rule", where=RULE_VARIABLE, what_next=what_next) from None


class SlowSteps:
    """Watches a run's steps by the rule, in a microsecond a step.

    Attributes:
        num_steps: that a capture of the rule has.
        num_captures: how many the rule has asked for, on whichever rank.
    """

    def __init__(self, rule: SlowStep) -> None:
        self.num_steps = rule.steps
        self.num_captures = 0
        self._rule = rule
        self._durations: deque[int] = deque(maxlen=_WINDOW_STEPS)
        self._threshold_ns = 0.0
        self._num_judged = self._num_slow = self._num_quiet = 0
        self._asks_again_at = 0.0

    def is_due(self, record: StepRecord, *, is_writing: bool) -> bool:
        """Count a finished step; whether a capture should be asked for now.

        Steps in or beside a capture or while its trace is written, and those with a pause such as a checkpoint, are
        passed over: they neither count nor end a row.
        """
        if record.state != "wait" or record.export_ns or is_writing:
            self._num_quiet = _QUIET_STEPS
            return False
        if self._num_quiet:
            self._num_quiet -= 1
            return False
        if record.phases and not _PAUSES.isdisjoint(record.phases):
            return False
        duration = record.duration_ns
        is_slow = self._num_judged >= _SETTLED_STEPS and duration > self._threshold_ns
        self._num_slow = self._num_slow + 1 if is_slow else 0
        self._durations.append(duration)
        self._num_judged += 1
        if self._num_judged % _MEDIAN_EVERY == 0 or self._num_judged == _SETTLED_STEPS:
            self._threshold_ns = self._rule.factor * sorted(self._durations)[len(self._durations) // 2]
        if self._num_slow < self._rule.times:
            return False
        self._num_slow = 0
        return self.num_captures < self._rule.most and time.monotonic() >= self._asks_again_at

    def asked(self) -> None:
        """A capture has been asked for, by this rank or another; from any thread."""
        self.num_captures += 1
        self._asks_again_at = time.monotonic() + self._rule.cooldown_seconds
