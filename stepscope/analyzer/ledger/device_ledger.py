"""Ledger of a rank's device: the sweep that attributes each instant to a category.

Priority at each instant: a compute kernel runs > communication alone > a copy alone > nothing runs. Communication
stays `communication_unsplit` here; alignment/arrivals.py splits it once the other ranks are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.intervals import Intervals, Nanoseconds, clip, owned, pieces, single, subtract, union
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.idle_time import Host, attribute_gaps, late_host
from stepscope.analyzer.ledger.segments import CategorySpans, Segments, assemble
from stepscope.analyzer.ledger.steps import Window
from stepscope.core.vocabulary.categories import CATEGORY_CODE, CATEGORY_ORDER, TimeCategory
from stepscope.trace.columns import IntColumn


@dataclass(frozen=True, slots=True)
class OwnLedger:
    """One rank's window before the other ranks are known.

    `kernel_owned_ns` has, for each compute kernel (in the order of Activities.of(COMPUTE)), the time inside the
    window that is booked on it.
    """

    segments: Segments
    kernel_owned_ns: Nanoseconds
    hidden_communication_ns: int


def attribute_device_time(
    activities: Activities, window: Window, host: Host, kernel_categories: IntColumn
) -> OwnLedger:
    """Book a rank's window. `kernel_categories` has one category code for each compute kernel."""
    whole = single(window.start_ns, window.end_ns)
    compute = activities.of(Work.COMPUTE)
    start, end = _own_pieces(activities, compute, window)
    computing = Intervals(start, end)
    by_start = np.argsort(start, kind="stable")
    busy = end[by_start] > start[by_start]
    by_start = by_start[busy]
    paints = [CategorySpans(Intervals(start[by_start], end[by_start]), kernel_categories[by_start])]

    communicating = _covered(activities, Work.COMMUNICATION, window)
    occupied = union(start, end)
    alone = subtract(communicating, occupied)
    paints += _exposed(alone, late_host(alone, activities, host))
    occupied = union(np.concatenate((occupied.start, alone.start)), np.concatenate((occupied.end, alone.end)))

    copies = activities.of(Work.COPY)
    copy_start, copy_end = _own_pieces(activities, copies, window)
    free = subtract(whole, occupied)
    of_copy, piece_start, piece_end = pieces(copy_start, copy_end, free)
    causes = host.copy_causes(activities)[copies][of_copy]
    by_start = np.argsort(piece_start, kind="stable")
    copying = Intervals(piece_start[by_start], piece_end[by_start])
    paints.append(CategorySpans(copying, TimeCategory.COPY, causes[by_start]))

    paints += attribute_gaps(subtract(free, union(copying.start, copying.end)), activities, host)
    return OwnLedger(
        segments=assemble(paints),
        kernel_owned_ns=computing.end - computing.start,
        hidden_communication_ns=communicating.total - alone.total,
    )


def _own_pieces(activities: Activities, chosen: IntColumn, window: Window) -> tuple[Nanoseconds, Nanoseconds]:
    """The part of each chosen activity that no earlier one covers, inside the window; empty ones have no length."""
    start, end = owned(
        activities.start_ns[chosen], activities.end_ns[chosen], tie=np.arange(len(chosen))
    )  # activities come ordered by start, then stream
    start = np.clip(start, window.start_ns, window.end_ns)
    return start, np.maximum(np.clip(end, window.start_ns, window.end_ns), start)


def _covered(activities: Activities, work: Work, window: Window) -> Intervals:
    chosen = activities.of(work)
    return clip(union(activities.start_ns[chosen], activities.end_ns[chosen]), window.start_ns, window.end_ns)


def _exposed(alone: Intervals, late: list[CategorySpans]) -> list[CategorySpans]:
    """Communication-only time: booked as communication, attributed to the host where the host was late anyway."""
    paints = []
    rest = alone
    for paint in late:
        cause = paint.codes()[1]
        paints.append(CategorySpans(paint.intervals, TimeCategory.COMMUNICATION_UNSPLIT, cause))
        rest = subtract(rest, paint.intervals)
    return [*paints, CategorySpans(rest, TimeCategory.COMMUNICATION_UNSPLIT)]


def fractions(segments: Segments, window_ns: int) -> dict[TimeCategory, float]:
    """Share of the window by category; every category is there."""
    time = np.bincount(segments.category, weights=segments.duration_ns, minlength=len(CATEGORY_ORDER))
    return {category: float(time[CATEGORY_CODE[category]]) / window_ns for category in CATEGORY_ORDER}
