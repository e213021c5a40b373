"""Which of a stage's waits does the pipeline itself explain? They are renamed bubble, or charged to the uneven cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.call_words import P2P_KINDS
from stepscope.analyzer.alignment.split import WaitPieces
from stepscope.analyzer.intervals import (
    Intervals,
    Nanoseconds,
    clip,
    covered_time,
    empty,
    intersect,
    pieces,
    subtract,
    union,
)
from stepscope.analyzer.ledger.segments import CHARGE, TO_BLAME, Paint, Segments, assemble
from stepscope.core.causes import Cause
from stepscope.core.headings import Heading
from stepscope.core.timeline import HEADING_CODE


@dataclass(frozen=True, slots=True)
class ScheduledIdle:
    """Time a step, nanoseconds: all of it, and before each pass whose input comes from another device, in order."""

    total_ns: float
    at_receive_ns: tuple[float, ...]


def charge_schedule(
    segments: Segments,
    waits: WaitPieces,
    calls: list[Call],
    *,
    step_bounds_ns: Nanoseconds,
    structural: ScheduledIdle,
    imbalance: ScheduledIdle,
) -> Segments:
    """Rename up to `structural` of cross-stage waiting in each step to bubble, charge up to `imbalance` more to the
    uneven cut. What the schedule costs beyond the waiting shows as idle device time and is charged there.

    Of each receive's waiting, first what the schedule explains there: the rest is somebody's lateness (a loader's in
    the first stage shows at the first receive of all others). Only what then is left of a step's budget takes the first
    waiting that comes.
    """
    cross_stage = np.array([call.kind in P2P_KINDS for call in calls] or [False])[waits.call]
    waiting = Intervals(waits.start_ns[cross_stage], waits.end_ns[cross_stage])
    bubble, missing = _scheduled(waiting, calls, step_bounds_ns, structural)
    uneven, _ = _scheduled(subtract(waiting, bubble), calls, step_bounds_ns, imbalance)
    queued = segments.intervals_of(Heading.DEVICE_GAP, Heading.SYNCHRONIZATION)
    caused_idle, _ = _first_of_each_step(queued, step_bounds_ns, missing)
    segments = _repaint(segments, bubble, heading=Heading.BUBBLE, charge=Cause.PIPELINE_BUBBLE)
    segments = _repaint(segments, uneven, heading=None, charge=Cause.IMBALANCE)
    return _repaint(segments, caused_idle, heading=None, charge=Cause.PIPELINE_BUBBLE)


def _scheduled(
    waiting: Intervals, calls: list[Call], bounds: Nanoseconds, idle: ScheduledIdle
) -> tuple[Intervals, npt.NDArray[np.float64]]:
    """The waiting that the idle time explains: during each receive, whichever call waits, then the first of a step."""
    spans = [empty()]
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        for place, budget in _receives(calls, begin, end, idle.at_receive_ns):
            during = clip(waiting, calls[place].exposed_from_ns, calls[place].end_ns)
            spans.append(_first_of(during, budget))
    at_receives = union(np.concatenate([span.start for span in spans]), np.concatenate([span.end for span in spans]))
    taken = covered_time(bounds[:-1], bounds[1:], at_receives)
    left = np.maximum(idle.total_ns - taken, 0.0)
    more, missing = _first_of_each_step(subtract(waiting, at_receives), bounds, left)
    together = union(np.concatenate([at_receives.start, more.start]), np.concatenate([at_receives.end, more.end]))
    return together, missing


def _receives(calls: list[Call], begin: int, end: int, idle_ns: Sequence[float]) -> list[tuple[int, float]]:
    """The receiving calls of a step with what the schedule idles before what they bring; none where they are others
    than the schedule's."""
    found = []
    for place, call in enumerate(calls):
        if begin <= call.exposed_from_ns < end and call.peers:
            found += [place] * sum(peer.destination == call.rank for peer in call.peers)
    if len(found) != len(idle_ns):
        return []
    budget = Counter[int]()
    for place, idle in zip(found, idle_ns, strict=True):
        budget[place] += round(idle)
    return list(budget.items())


def _first_of(time: Intervals, budget: float) -> Intervals:
    """The first so many nanoseconds of the time."""
    length = time.end - time.start
    take = np.clip(round(budget) - (np.cumsum(length) - length), 0, length)
    return union(time.start, time.start + take)


def _first_of_each_step(
    time: Intervals, bounds: Nanoseconds, budget_ns: npt.NDArray[np.float64]
) -> tuple[Intervals, npt.NDArray[np.float64]]:
    """The first `budget_ns` of the time in each step, and how much of the budget found no time."""
    taken_start, taken_end, missing = [], [], []
    for start, end, budget in zip(bounds[:-1], bounds[1:], budget_ns, strict=True):
        step = intersect(time, Intervals(np.array([start]), np.array([end])))
        taken = _first_of(step, float(budget))
        taken_start.append(taken.start)
        taken_end.append(taken.end)
        missing.append(max(float(budget) - taken.total, 0.0))
    if not taken_start:
        return union([], []), np.array(missing)
    return union(np.concatenate(taken_start), np.concatenate(taken_end)), np.array(missing)


def _repaint(segments: Segments, cover: Intervals, *, heading: Heading | None, charge: Cause) -> Segments:
    """Give what lies under `cover` and still is to blame, or is idle, a new charge and perhaps a new heading."""
    inside, start, end = pieces(segments.start_ns, segments.end_ns, cover)
    eligible = np.isin(segments.charge[inside], [TO_BLAME, CHARGE[Cause.DEVICE_GAP], CHARGE[Cause.SYNCHRONIZATION]])
    inside, start, end = inside[eligible], start[eligible], end[eligible]
    changed = Intervals(start, end)
    kept, kept_start, kept_end = _outside(segments, changed)
    headings = segments.heading[inside] if heading is None else np.full(len(inside), HEADING_CODE[heading], np.int8)
    return assemble(
        [
            Paint(Intervals(kept_start, kept_end), segments.heading[kept], segments.charge[kept]),
            Paint(changed, headings, charge),
        ]
    )


def _outside(segments: Segments, cover: Intervals) -> tuple[npt.NDArray[np.intp], Nanoseconds, Nanoseconds]:
    """What of each segment does not lie under `cover`."""
    if not len(segments):
        return np.empty(0, np.intp), segments.start_ns, segments.end_ns
    whole = union(segments.start_ns[:1], segments.end_ns.max(keepdims=True))
    return pieces(segments.start_ns, segments.end_ns, subtract(whole, cover))
