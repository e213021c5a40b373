"""Which of a stage's waits does the pipeline itself explain? They are renamed bubble, or charged to the uneven cut."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.call_words import P2P_KINDS
from stepscope.analyzer.alignment.split import WaitPieces
from stepscope.analyzer.intervals import Intervals, Nanoseconds, intersect, pieces, subtract, union
from stepscope.analyzer.ledger.segments import CHARGE, TO_BLAME, Paint, Segments, assemble
from stepscope.core.causes import Cause
from stepscope.core.headings import Heading
from stepscope.core.timeline import HEADING_CODE


def charge_schedule(
    segments: Segments,
    waits: WaitPieces,
    calls: list[Call],
    *,
    step_bounds_ns: Nanoseconds,
    structural_ns: float,
    imbalance_ns: float,
) -> Segments:
    """Rename up to `structural_ns` of cross-stage waiting in each step to bubble, charge up to `imbalance_ns` more to
    the uneven cut. What the schedule costs beyond the waiting shows as idle device time and is charged there."""
    cross_stage = np.array([call.kind in P2P_KINDS for call in calls] or [False])[waits.call]
    waiting = Intervals(waits.start_ns[cross_stage], waits.end_ns[cross_stage])
    bubble, missing = _first_of_each_step(waiting, step_bounds_ns, np.full(len(step_bounds_ns) - 1, structural_ns))
    uneven, _ = _first_of_each_step(
        subtract(waiting, bubble), step_bounds_ns, np.full(len(step_bounds_ns) - 1, imbalance_ns)
    )
    queued = segments.intervals_of(Heading.DEVICE_GAP, Heading.SYNCHRONIZATION)
    caused_idle, _ = _first_of_each_step(queued, step_bounds_ns, missing)
    segments = _repaint(segments, bubble, heading=Heading.BUBBLE, charge=Cause.PIPELINE_BUBBLE)
    segments = _repaint(segments, uneven, heading=None, charge=Cause.IMBALANCE)
    return _repaint(segments, caused_idle, heading=None, charge=Cause.PIPELINE_BUBBLE)


def _first_of_each_step(
    time: Intervals, bounds: Nanoseconds, budget_ns: npt.NDArray[np.float64]
) -> tuple[Intervals, npt.NDArray[np.float64]]:
    """The first `budget_ns` of the time in each step, and how much of the budget found no time."""
    taken_start, taken_end, missing = [], [], []
    for start, end, budget in zip(bounds[:-1], bounds[1:], budget_ns, strict=True):
        step = intersect(time, Intervals(np.array([start]), np.array([end])))
        length = step.end - step.start
        before = np.cumsum(length) - length
        take = np.clip(round(float(budget)) - before, 0, length)
        taken_start.append(step.start)
        taken_end.append(step.start + take)
        missing.append(max(float(budget) - float(take.sum()), 0.0))
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
