"""Calibrated replay of light captures: what steps take without the profiler, and without one of their costs.

CUPTI adds a cost to each runtime call, which differs from job to job, and leaves the rest of the host's time as it is.
So one number is unknown, the cost of a call that does not follow another at once: the one with which the replayed
steps take as long as the unprofiled ones before the capture. With it the replay predicts the same steps without
blocking calls, allocations, copies, collectives or launch costs.

A kernel starts when its launch has returned, its stream is free, and what its stream was made to wait for has ended. A
call that waited for the GPU in the capture waits for the same work in the replay. A collective ends on all ranks when
the last of them has entered it and the bytes are through, which takes as long as it took the rank that entered last in
the capture: the shortest of the ranks' kernels.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

from stepscope.analyzer.what_if.light_capture import LONGEST_QUEUE, LaunchedWork, LightCapture
from stepscope.analyzer.what_if.planned_calls import REMOVED_CALLS, Act, PlannedCall, Removal, planned_calls
from stepscope.analyzer.what_if.slowed_kernels import unslowed_ns
from stepscope.analyzer.what_if.uneven_hosts import evened

BETWEEN_KERNELS_NS = 800
"""From the end of a kernel to the start of the next queued one of its stream, measured on H100 and H200."""
LAUNCH_LATENCY_NS = 4_000
"""From the return of a launch to the start of its kernel on an idle stream, measured on H200."""
MAX_CALL_COST_NS = 40_000
"""A cost beyond this is not the profiler's: 25 us of a mean call, as many follow another at once."""
MAX_ERROR = 0.05
"""Largest relative error of a replay from which anything is predicted."""

_FITTED = 0.002
"""Relative error at which a cost is good enough."""
_FINEST_COST_NS = 50.0


class Calibration(NamedTuple):
    """How well light captures explain unprofiled steps; times in ms, errors relative.

    Attributes:
        call_cost_us: what the profiler added to each runtime call that did not follow another at once.
        step_ms: the replayed step with that cost taken off and all else kept.
        captured_error: of the replay with no cost taken off, against the captured steps.
        error: of `step_ms`, against the unprofiled steps.
    """

    call_cost_us: float
    step_ms: float
    captured_error: float
    error: float

    @property
    def is_sound(self) -> bool:
        """Whether the replay predicts anything; else only bounds are known."""
        return (
            self.call_cost_us <= MAX_CALL_COST_NS / 1e3 and max(abs(self.captured_error), abs(self.error)) <= MAX_ERROR
        )


class ReplayedSteps(NamedTuple):
    """Replayed steps in steady state, ms.

    Attributes:
        step_ms: mean time of a step.
        host_ms: of it, what the host does without waiting for the GPU, on the rank where that is most.
        queued_ms: how long the GPU is busy after the host has ended a step, on the rank where that is least: a
            host that stops for less than that costs nothing.
        evened: place of the rank whose host was made as fast as those of the others.
        num_waits: how often a step that rank waits for its GPU where the others do not.
    """

    step_ms: float
    host_ms: float
    queued_ms: float
    evened: int | None = None
    num_waits: float = 0.0


class LightReplay:
    """Replay of the light captures of all ranks of a job.

    Attributes:
        step_ms: mean captured step, of all ranks.

    Raises:
        ValueError: the ranks do not launch the same collectives in the same order, or have not as many steps.
    """

    def __init__(self, captures: Sequence[LightCapture]) -> None:
        self._captures = captures
        self._known: dict[tuple[float, Removal], ReplayedSteps] = {}
        self.step_ms = sum(capture.step_ms for capture in captures) / len(captures)
        if len({capture.num_steps for capture in captures}) > 1:
            raise ValueError("the ranks' light captures have not as many steps")
        self._transfer_ns: list[int] = []
        self._works: list[Sequence[LaunchedWork]] = [capture.works for capture in captures]
        if len(captures) > 1:
            orders = [[name for _, name in capture.collectives] for capture in captures]
            if any(order != orders[0] for order in orders):
                raise ValueError("the ranks do not launch the same collectives in the same order")
            durations = [[capture.works[place].duration_ns for place, _ in capture.collectives] for capture in captures]
            self._transfer_ns = [min(of_ranks) for of_ranks in zip(*durations, strict=True)]
            collectives = [[place for place, _ in capture.collectives] for capture in captures]
            unslowed = unslowed_ns([capture.spans for capture in captures], collectives, self._transfer_ns)
            self._works = [
                [work._replace(duration_ns=ns) for work, ns in zip(capture.works, durations_ns, strict=True)]
                for capture, durations_ns in zip(captures, unslowed, strict=True)
            ]

    def calibrated(self, unprofiled_ms: float) -> Calibration:
        """The cost of a call with which the replayed step takes as long as unprofiled ones.

        By bisection and false position in turn: the step is shorter the more is taken off.
        """
        step_ms = plain_ms = self.replayed_ms(0.0)
        cost = low = 0.0
        high = float(MAX_CALL_COST_NS) if plain_ms > unprofiled_ms else 0.0
        fastest_ms = self.replayed_ms(high) if high else plain_ms
        if fastest_ms > unprofiled_ms * (1 + _FITTED):  # the host does not count, or something else is wrong
            close = plain_ms <= unprofiled_ms * (1 + MAX_ERROR)
            cost, step_ms, high = (0.0, plain_ms, 0.0) if close else (high, fastest_ms, 0.0)
        at_low, at_high, place = plain_ms, fastest_ms, 0.5
        while high - low > _FINEST_COST_NS and abs(step_ms / unprofiled_ms - 1) > _FITTED:
            cost = low + place * (high - low)
            step_ms = self.replayed_ms(cost)
            moves_low = step_ms > unprofiled_ms
            low, at_low = (cost, step_ms) if moves_low else (low, at_low)
            high, at_high = (high, at_high) if moves_low else (cost, step_ms)
            is_bisection = place == 0.5
            place = (
                min((at_low - unprofiled_ms) / (at_low - at_high), 1.0) if is_bisection and at_low > at_high else 0.5
            )
        return Calibration(cost / 1e3, step_ms, plain_ms / self.step_ms - 1, step_ms / unprofiled_ms - 1)

    def replayed_ms(self, call_cost_ns: float, without: Removal = Removal.NOTHING) -> float:
        """Mean time of a step in steady state, ms."""
        return self.replayed(call_cost_ns, without).step_ms

    def replayed(self, call_cost_ns: float, without: Removal = Removal.NOTHING) -> ReplayedSteps:
        """The steps in steady state: all of them are replayed twice, and the second time counts.

        A call that is taken away leaves the host time before it, unless that is spent for a read too.
        """
        key = call_cost_ns, without if self._has(without) else Removal.NOTHING
        if key not in self._known:
            self._known[key] = self._replayed(*key)
        return self._known[key]

    def _has(self, removed: Removal) -> bool:
        """Whether there is anything to take away."""
        if removed is Removal.COLLECTIVES:
            return any(capture.collectives for capture in self._captures)
        if removed is Removal.UNEVEN_HOST:
            return bool(self._transfer_ns)
        kinds = REMOVED_CALLS.get(removed)
        return kinds is None or any(call.kind & kinds for capture in self._captures for call in capture.calls)

    def _replayed(self, call_cost_ns: float, without: Removal) -> ReplayedSteps:
        together = bool(self._transfer_ns) and without is not Removal.COLLECTIVES
        num_steps = self._captures[0].num_steps
        planned: list[Sequence[PlannedCall]] = [
            planned_calls(capture, works, call_cost_ns, without)
            for capture, works in zip(self._captures, self._works, strict=True)
        ]
        even = None
        if without is Removal.UNEVEN_HOST:
            even = evened(planned, num_steps)
            planned = even.calls
        ranks = [
            _replayed(calls, len(works), without, together=together)
            for calls, works in zip(planned, self._works, strict=True)
        ]
        ends = _run_together(ranks, self._transfer_ns * 2 if together else [])
        steps_ns = max(rank.ended_ns for rank in ends) - max(rank.began_ns for rank in ends)
        queued_ns = min(rank.ended_ns - rank.host_ended_ns for rank in ends)
        host_ns = max(rank.host_ns for rank in ends)
        per_step = 1e6 * num_steps
        replayed = ReplayedSteps(steps_ns / per_step, host_ns / per_step, queued_ns / 1e6)
        return replayed if even is None else replayed._replace(evened=even.rank, num_waits=even.num_waits)


class _ReplayedRank(NamedTuple):
    """Counted steps of a rank, ns: when they began and ended, and when the host was through with them and for how long
    it did not wait."""

    began_ns: float
    ended_ns: float
    host_ended_ns: float
    host_ns: float


Replayed = Generator[float, float, _ReplayedRank]
"""Gives the start of each collective, is given its end."""


def _run_together(ranks: Sequence[Replayed], transfer_ns: Sequence[int]) -> list[_ReplayedRank]:
    """Run the replays of all ranks: each collective ends when the last one has entered it and the bytes are through."""
    results: list[_ReplayedRank] = []
    starts = [_advance(rank, None, results) for rank in ranks]
    for taken_ns in transfer_ns:
        end_ns = max(start for start in starts if start is not None) + taken_ns
        starts = [_advance(rank, end_ns, results) for rank in ranks]
    return results


def _advance(rank: Replayed, end_ns: float | None, results: list[_ReplayedRank]) -> float | None:
    """Go on to the next collective of a rank, or to its end."""
    try:
        return next(rank) if end_ns is None else rank.send(end_ns)
    except StopIteration as stop:
        results.append(stop.value)
        return None


def _replayed(planned: Sequence[PlannedCall], num_works: int, without: Removal, *, together: bool) -> Replayed:
    """Replay of one rank."""
    host_ns = host_before_ns = host_began_ns = began_ns = ended_ns = waited_ns = 0.0
    aside_ns: dict[int, float] = {}
    free_ns: dict[int, float] = {}  # by stream: when its last work ends
    begun_ns: list[float] = []  # by launch: when its first work starts
    end_ns = [0.0] * num_works
    for _ in range(2):
        began_ns, host_began_ns, waited_ns = ended_ns, host_ns, 0.0
        for act, before, after, works, awaits, aside in planned:
            now_ns = max(aside_ns.get(aside, 0.0), host_before_ns) if aside else host_ns
            free_since_ns = now_ns
            if act is Act.LAUNCH and len(begun_ns) >= LONGEST_QUEUE:
                now_ns = max(now_ns, begun_ns[-LONGEST_QUEUE])
            own_ns = before + after * (act in (Act.LAUNCH_AND_WAIT, Act.WAIT))
            now_ns += before
            for place, work in works:
                start_ns = max(free_ns.get(work.stream, 0.0) + BETWEEN_KERNELS_NS, now_ns + LAUNCH_LATENCY_NS)
                for awaited in work.after:
                    start_ns = max(start_ns, end_ns[awaited])
                if place == works[0][0]:
                    begun_ns.append(start_ns)
                if work.communicates and together:
                    ends_ns = yield start_ns
                else:
                    is_gone = work.communicates and without is Removal.COLLECTIVES
                    ends_ns = start_ns + (0 if is_gone else work.duration_ns)
                end_ns[place] = free_ns[work.stream] = ends_ns
            if act is Act.LAUNCH_AND_WAIT:
                now_ns = max(now_ns, ends_ns) + after
            elif act is Act.WAIT:
                awaited_ns = free_ns.values() if awaits is None else [end_ns[place] for place in awaits]
                now_ns = max(now_ns, *awaited_ns, 0.0) + after
            if aside:
                aside_ns[aside] = now_ns
            else:
                host_before_ns, host_ns = host_ns, now_ns
                waited_ns += now_ns - free_since_ns - own_ns
        ended_ns = max(host_ns, *free_ns.values(), 0.0)
    return _ReplayedRank(began_ns, ended_ns, host_ns, host_ns - host_began_ns - waited_ns)
