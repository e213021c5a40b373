"""What does the profiler do during step k? Pure arithmetic, no clock and no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from stepscope.core.counting import counted
from stepscope.core.errors import UsageError


class State(Enum):
    """What happens while a step runs."""

    WAIT = "wait"
    """nothing is recorded"""
    WARMUP = "warmup"
    """the profiler is prepared; its start-up cost falls here"""
    ACTIVE = "active"
    """the step is captured"""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Captures of `active` steps, the first of them at step `first`, then one every `period` steps.

    Attributes:
        first: index of the first captured step, counted from 0 at the start of training.
        warmup: steps before each capture in which the profiler is prepared.
        active: steps in one capture.
        period: steps from the start of one capture to the start of the next; None for a single one.
        repeat: number of captures; None for no end.
    """

    first: int = 4
    warmup: int = 1
    active: int = 3
    period: int | None = None
    repeat: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("first", 0), ("warmup", 0), ("active", 1), ("period", 1), ("repeat", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise UsageError(f"{name} must be a whole number of at least {least}, not {value!r}", where="schedule")
        if self.first < self.warmup:
            raise UsageError(
                f"the first captured step is {self.first}, but "
                f"{counted(self.warmup, 'warm-up step comes', 'warm-up steps come')} before it",
                where="schedule",
                what_next=f"give first={self.warmup} or more",
            )
        if self.period is not None and self.period < self.warmup + self.active:
            raise UsageError(
                f"{self.warmup} warm-up and {counted(self.active, 'captured step')} do "
                f"not fit into every {counted(self.period, 'step')}",
                where="schedule",
                what_next=f"capture every {self.warmup + self.active} steps or more seldom",
            )

    def counted_from(self, first_step: int) -> Schedule:
        """The same captures after the beginning of an attempt whose first step has this number."""
        return replace(self, first=self.first + first_step)

    def state(self, step: int) -> State:
        """What happens during `step`."""
        if self.capture_at(step) is not None:
            return State.ACTIVE
        if self.warmup and self.capture_at(self.next_capture(step)) is not None:
            return State.WARMUP if self.next_capture(step) - step <= self.warmup else State.WAIT
        return State.WAIT

    def capture_at(self, step: int) -> int | None:
        """First step of the capture that `step` belongs to; None when it belongs to none."""
        if step < self.first:
            return None
        ordinal = 0 if self.period is None else (step - self.first) // self.period
        if self.repeat is not None and ordinal >= self.repeat:
            return None
        start = self.first + ordinal * (self.period or 0)
        return start if step - start < self.active else None

    def next_capture(self, step: int) -> int:
        """Where the first capture after `step` would start; it may not take place."""
        if step < self.first:
            return self.first
        if self.period is None:
            return step
        return self.first + ((step - self.first) // self.period + 1) * self.period

    def capture_from(self, step: int) -> int | None:
        """First step of the capture that `step` belongs to, else of the next one; None when there is none any more."""
        start = self.capture_at(step)
        start = self.next_capture(step) if start is None else start
        return None if self.capture_at(start) is None else start

    def missed_by(self, num_steps: int) -> str | None:
        """Why a training of `num_steps` steps left no trace, and what to do; None when a whole step was captured."""
        if num_steps > self.first:
            return None
        if num_steps == 0:
            what_next = "call prof.step() after each optimizer step"
        else:
            sooner = "schedule=stepscope.once(wait=0), stepscope run --first 1"
            what_next = f"train {self.first + 1} steps or more, or capture sooner ({sooner})"
        if num_steps == self.first and num_steps:
            return f"ended inside step {num_steps}, the first captured one, so there is no trace; {what_next}"
        return (
            f"ended after {counted(num_steps, 'step')}; the first capture would "
            f"have started at step {self.first}; {what_next}"
        )


DEFAULT_SCHEDULE = Schedule()
"""Three steps to settle, one to warm up, three captured, once: a short run ends with a capture."""


def every(n: int, warmup: int = 1, active: int = 3, *, first: int | None = None, repeat: int | None = None) -> Schedule:
    """Capture `active` steps every `n` steps.

    Args:
        n: steps from the start of one capture to the start of the next.
        warmup: steps before each capture in which the profiler is prepared.
        active: steps in one capture.
        first: index of the first captured step; by default n, so that a long run has settled.
        repeat: number of captures; by default no end.

    Raises:
        UsageError: the numbers do not fit together.
    """
    return Schedule(first=n if first is None else first, warmup=warmup, active=active, period=n, repeat=repeat)


def once(wait: int = 3, warmup: int = 1, active: int = 3) -> Schedule:
    """Wait, warm up, capture, once; the counts are steps.

    Raises:
        UsageError: a count is negative, or nothing would be captured.
    """
    return Schedule(first=wait + warmup, warmup=warmup, active=active)
