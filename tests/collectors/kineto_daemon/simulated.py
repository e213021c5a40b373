"""Processes that behave as libkineto does, on a clock of their own, and the daemon's side of their polls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, floor

from stepscope.collectors.kineto_daemon.capture import Action, KinetoCapture, Offer, ProcessView, Take, Withdraw
from stepscope.collectors.kineto_daemon.processes import KinetoPeer, KinetoProcess, KinetoRegistry
from stepscope.collectors.kineto_daemon.protocol import KinetoPoll, KinetoTraceSummary
from stepscope.core.protocol.captures import CaptureProgress

LOOK_SECONDS = 0.2
WRITE_SECONDS = 0.3


@dataclass(slots=True)
class SimulatedProcess:
    """One rank.

    Attributes:
        phase: when it asks first, seconds; then every 5 s.
        loop_from: when its first optimizer step ends; None: never.
        step_seconds: of each.
        profiled: spans in which a torch.profiler of its script is at work; its begin ends a trace.
        ends_at: of the process.
        short_by: steps that each of its traces lacks.
        started_at: number of the step after which each of its traces began.
    """

    phase: float = 0.0
    loop_from: float | None = 0.0
    step_seconds: float = 0.1
    profiled: tuple[tuple[float, float], ...] = ()
    ends_at: float = 1e9
    short_by: int = 0
    started_at: list[int] = field(default_factory=list)
    _next_poll: float | None = None
    _trace: tuple[float, float, int, int, int] | None = None
    """begin, end, attempt, first step, number of steps"""
    written: dict[int, tuple[int, int]] = field(default_factory=dict)
    """by attempt: first step, number of steps"""

    def num_step(self, now: float) -> int:
        """The latest step, -1 before the first."""
        return -1 if self.loop_from is None else floor((now - self.loop_from) / self.step_seconds)

    def live(self, now: float) -> None:
        """Let time pass."""
        if self._trace is None:
            return
        begin, end, attempt, first, num_steps = self._trace
        if any(start < end and begin < stop and start <= now for start, stop in self.profiled):
            self._trace = None
        elif now >= end:
            self.written[attempt], self._trace = (first, num_steps), None

    def accepts(self, now: float) -> bool:
        """Whether no profiler is at work."""
        traces = self._trace is not None and self._trace[0] <= now
        return not traces and not any(start <= now < stop for start, stop in self.profiled)

    def take(self, offer: Offer, num_steps: int, now: float) -> None:
        """A request has come with an answer."""
        if self.num_step(now) < 0 or self._trace is not None or self.loop_from is None:
            return
        first = ceil((self.num_step(now) + 2) / offer.start_multiple) * offer.start_multiple
        begin = self.loop_from + (first - 1) * self.step_seconds
        end = begin + (num_steps + 1) * self.step_seconds + WRITE_SECONDS
        self.started_at.append(first)
        self._trace = (begin, end, offer.attempt, first, num_steps - self.short_by)

    def polls(self, now: float) -> bool:
        """Whether it asks at this look."""
        self._next_poll = self.phase if self._next_poll is None else self._next_poll
        if now < self._next_poll:
            return False
        self._next_poll += 5.0
        return True

    def summary(self, attempt: int) -> KinetoTraceSummary:
        """Of what it wrote."""
        assert self.loop_from is not None
        first, num_steps = self.written[attempt]
        times = [self.loop_from + (first + k) * self.step_seconds for k in range(num_steps + 1)]
        begin, *ends = (int(1e18 + 1e9 * time) for time in times)
        return KinetoTraceSummary(1000, True, {"cpu_op": 10}, begin, tuple(ends), None)


def run(
    processes: Mapping[str, SimulatedProcess],
    *,
    num_steps: int = 3,
    begin: float = 0.0,
    until: float | None = None,
    cancel_at: float | None = None,
    most_seconds: float = 3000.0,
) -> list[tuple[float, str, CaptureProgress]]:
    """Capture them; the changes of progress with their times, in seconds of the processes' clock, and keys."""
    registry = KinetoRegistry()
    capture = KinetoCapture(list(processes), num_steps=num_steps, begin=begin, until=until)
    laid_out: dict[str, Offer] = {}
    delivered: dict[str, int] = {}
    told: list[tuple[float, str, CaptureProgress]] = []
    now = begin
    for process in processes.values():  # all have asked before
        process.phase += 5.0 * ceil((begin - 5.0 - process.phase) / 5.0)

    def follow(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Offer):
                laid_out[action.key] = action
            elif isinstance(action, Withdraw):
                laid_out.pop(action.key, None)
                delivered.pop(action.key, None)
            elif isinstance(action, Take):
                capture.taken(action.key, processes[action.key].summary(action.attempt))

    tick = round((begin - 5.2) / LOOK_SECONDS)
    while not capture.is_over and now < begin + most_seconds:
        now = tick * LOOK_SECONDS
        tick += 1
        for key, process in processes.items():
            process.live(now)
            if now < process.ends_at and process.polls(now):
                accepts = process.accepts(now)
                seen = registry.record(key, KinetoPeer(1, 0, 0), KinetoPoll(accepts, 0, (1,)), now)
                is_due = key in laid_out and capture.attempt not in process.written
                if seen is not None and accepts and is_due:
                    process.take(laid_out.pop(key), num_steps, now)
                    delivered[key] = seen.num_polls
        if now < begin:
            continue
        if cancel_at is not None and now >= cancel_at:
            follow(capture.cancel())
        known = {str(one.address): one for one in registry.processes(now)}
        views = {key: _view(one, known.get(key), delivered.get(key), capture, now) for key, one in processes.items()}
        follow(capture.step(views, now))
        told += [(now, key, progress) for key, progress in capture.take_changes()]
    return told


def _view(
    process: SimulatedProcess, known: KinetoProcess | None, delivered: int | None, capture: KinetoCapture, now: float
) -> ProcessView:
    return ProcessView(known if now < process.ends_at else None, delivered, capture.attempt in process.written)
