"""Schedule of captures (`every`, `once`), and the `slow_step` rule, which requests one when steps become slow."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, get_type_hints

from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import counted
from stepscope.training.run.identity import Identity
from stepscope.training.steps.telemetry import StepRecord


class ProfilerState(Enum):
    """State of the profiler while a training step runs."""

    WAIT = "wait"
    """nothing is recorded"""
    WARMUP = "warmup"
    """the profiler is prepared; its start-up cost falls here"""
    ACTIVE = "active"
    """the step is profiled"""


LIGHT_APART = 7
"""Fewest steps from the end of a light capture to the full one: its trace is written in them, and the full one is
prepared."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of captures of `active` steps, the first of them at step `first`, then one every `period` steps.

    A light capture records the GPU's activities and runtime calls alone. It slows training less, and by an amount that
    can be computed; LIGHT_APART steps lie between its end and the beginning of the full one that follows.

    Attributes:
        first: index of the first profiled step, counted from 0 at the start of training.
        warmup: steps before each capture in which the profiler is prepared.
        active: steps in one capture.
        period: steps from the start of one capture to the start of the next; None for a single one.
        repeat: number of captures; None for no end.
        light: steps of the light capture before each capture; 0 for none. Without a GPU none is taken.
    """

    first: int = 4
    warmup: int = 1
    active: int = 3
    period: int | None = None
    repeat: int | None = None
    light: int = 0

    def __post_init__(self) -> None:
        for name, least in (("first", 0), ("warmup", 0), ("active", 1), ("period", 1), ("repeat", 1), ("light", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise UsageError(f"{name} must be a whole number of at least {least}, not {value!r}", where="schedule")
        before = self.warmup + (self.light + self._apart if self.light else 0)
        light = f"{self.light} of a light capture, {self._apart} after it" if self.light else ""
        if self.first < before:
            steps = (
                f"{counted(before, 'step comes', 'steps come')} before it ({self.warmup} to warm up, {light})"
                if light
                else f"{counted(before, 'warm-up step comes', 'warm-up steps come')} before it"
            )
            raise UsageError(
                f"the first profiled step is {self.first}, but {steps}",
                where="schedule",
                what_next=f"give first={before} or more",
            )
        if self.period is not None and self.period < before + self.active:
            raise UsageError(
                f"{self.warmup} warm-up{f' steps, {light},' if light else ''} and "
                f"{counted(self.active, 'profiled step')} do not fit into every {counted(self.period, 'step')}",
                where="schedule",
                what_next=f"capture every {before + self.active} steps or less often",
            )

    def counted_from(self, first_step: int) -> Schedule:
        """The same captures, counted from the first step of an attempt."""
        return replace(self, first=self.first + first_step)

    def state(self, step: int) -> ProfilerState:
        start = self.capture_from(step)
        if start is None or step < start - self.warmup:
            return ProfilerState.WAIT
        return ProfilerState.ACTIVE if step >= start else ProfilerState.WARMUP

    def capture_from(self, step: int) -> int | None:
        """First step of the capture that `step` belongs to, else of the next one; None without one."""
        num_over = 0  # captures that have ended before `step`
        if step >= self.first + self.active:
            if self.period is None:
                return None
            num_over = (step - self.first - self.active) // self.period + 1
        if self.repeat is not None and num_over >= self.repeat:
            return None
        start = self.first + num_over * (self.period or 0)
        light = self._light_before(start)
        return light if self.light and step < light + self.light else start

    def is_light(self, start: int) -> bool:
        """Whether the capture that begins with this step is a light one."""
        since = start - self._light_before(self.first)
        return self.light > 0 and (since % self.period == 0 if self.period else since == 0)

    def num_steps(self, start: int) -> int:
        """Steps of the capture that begins with this one."""
        return self.light if self.is_light(start) else self.active

    @property
    def _apart(self) -> int:
        """Steps from the end of a light capture to the full one."""
        return max(LIGHT_APART, self.warmup)

    def _light_before(self, start: int) -> int:
        return start - self._apart - self.light

    def missed_by(self, num_steps: int) -> str | None:
        """Why a training of `num_steps` steps left no trace, and what to do; None when a whole step was profiled."""
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
"""Without a GPU: three steps to settle, one to warm up, three captured, once: a short run ends with a capture."""

DEFAULT_GPU_SCHEDULE = Schedule(first=24, light=5)
"""On a GPU: by then the launch queue is full, and enough steps have run that no profiler slowed."""


def default_schedule(*, on_gpu: bool) -> Schedule:
    """The schedule of a training that names none; on a GPU with a light capture before the full one."""
    return DEFAULT_GPU_SCHEDULE if on_gpu else DEFAULT_SCHEDULE


def every(n: int, warmup: int = 1, active: int = 3, *, first: int | None = None, repeat: int | None = None) -> Schedule:
    """Schedule a capture of `active` steps every `n` steps.

    Args:
        n: steps from the start of one capture to the start of the next.
        warmup: steps before each capture in which the profiler is prepared.
        active: steps in one capture.
        first: index of the first profiled step; by default n, so that a long run has settled.
        repeat: number of captures; by default no end.

    Raises:
        UsageError: the numbers do not fit together.
    """
    return Schedule(first=n if first is None else first, warmup=warmup, active=active, period=n, repeat=repeat)


def once(wait: int = 3, warmup: int = 1, active: int = 3, *, light: int = 0) -> Schedule:
    """Schedule one capture: wait, warm up, capture; the counts are steps.

    Args:
        light: steps of a light capture that comes before it, at the end of `wait`.

    Raises:
        UsageError: a count is negative, or nothing would be captured.
    """
    return Schedule(first=wait + warmup, warmup=warmup, active=active, light=light)


_MAX_RANKS_CAPTURED = 64  # 64 traces of some 10 MB are what people open; larger jobs name their ranks


def captures_on_this_rank(ranks: str | Iterable[int], identity: Identity) -> bool:
    """Whether this rank takes scheduled captures. "all", "auto" (the first 64: whole neighbourhoods) or numbers."""
    if not isinstance(ranks, str):
        return identity.rank in set(ranks)
    if ranks == "all":
        return True
    if ranks != "auto":
        raise ValueError(f'ranks is "all", "auto" or rank numbers, not {ranks!r}')
    return identity.rank < _MAX_RANKS_CAPTURED


RULE_VARIABLE = "STEPSCOPE_CAPTURE_WHEN"
"""Environment: slow_step, or slow_step:factor=2,times=5 with any of the rule's numbers."""

_WINDOW_STEPS = 64
_SETTLED_STEPS = 10  # before that a median is unreliable, and kernels are still being tuned
_MEDIAN_EVERY = 8
_QUIET_STEPS = 5  # after a capture: other ranks may still be writing theirs
_PAUSES = frozenset({"checkpoint", "save", "eval", "evaluation", "validation", "test"})
"""Phases outside training steps; a step that has any of them is not judged."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    """Capture rule for steps that become slow; made by `slow_step`."""

    factor: float
    times: int
    steps: int
    cooldown_seconds: float
    most: int


def slow_step(
    factor: float = 1.5, times: int = 3, *, steps: int = 3, cooldown_seconds: float = 600.0, most: int = 3
) -> SlowStep:
    """Capture rule: when the step time is more than `factor` x its running median `times` times in a row.

    Args:
        factor: above 1.
        times: slow steps in a row; one alone is noise.
        steps: in the capture, taken on the ranks that take scheduled captures.
        cooldown_seconds: until the rule may request the next one.
        most: captures that the rule may request in a run.

    Raises:
        UsageError: a number is out of its range.
    """
    in_range = {
        "factor": factor > 1,
        "times": times >= 1,
        "steps": 1 <= steps <= 1000,
        "cooldown_seconds": cooldown_seconds >= 0,
        "most": most >= 1,
    }
    for name, is_in_range in in_range.items():
        if not is_in_range:
            raise UsageError(f"{name} is out of its range", where="slow_step", what_next="see help(slow_step)")
    return SlowStep(factor, times, steps, cooldown_seconds, most)


def capture_rule_from_environment() -> SlowStep | None:
    """The capture rule in STEPSCOPE_CAPTURE_WHEN; None where it is not set.

    Raises:
        UsageError: it is not a rule.
    """
    text = os.environ.get(RULE_VARIABLE, "")
    name, _, numbers = text.partition(":")
    if not name.strip():
        return None
    kinds = get_type_hints(SlowStep)  # int or float by name
    try:
        if name.strip() != "slow_step":
            raise KeyError(name)
        pairs = (pair.partition("=") for pair in numbers.split(",") if pair.strip())
        values: dict[str, Any] = {key.strip(): kinds[key.strip()](value) for key, _, value in pairs}
        return slow_step(**values)
    except (KeyError, ValueError):
        what_next = f"write slow_step, or slow_step:factor=2,times=5 with any of {', '.join(kinds)}"
        raise UsageError(f"{text!r} is not a rule", where=RULE_VARIABLE, what_next=what_next) from None


class SlowStepWatch:
    """Watch for slow training steps by a capture rule, in a microsecond a step.

    Attributes:
        num_steps: steps of a capture of the rule.
        num_captures: captures that the rule has requested, on any rank.
    """

    def __init__(self, rule: SlowStep) -> None:
        self.num_steps = rule.steps
        self.num_captures = 0
        self._rule = rule
        self._durations: deque[int] = deque(maxlen=_WINDOW_STEPS)
        self._threshold_ns = 0.0
        self._num_judged = self._num_slow = self._num_quiet = 0
        self._next_request_at = 0.0

    def is_due(self, record: StepRecord, *, is_writing: bool) -> bool:
        """Count a finished step; returns whether a capture should be requested now.

        Steps in or beside a capture or while its trace is written, and those with a pause such as a checkpoint, are
        ignored: they neither count nor end a row.
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
        return self.num_captures < self._rule.most and time.monotonic() >= self._next_request_at

    def count_capture(self) -> None:
        """Count a capture that this rank or another has requested; from any thread."""
        self.num_captures += 1
        self._next_request_at = time.monotonic() + self._rule.cooldown_seconds
