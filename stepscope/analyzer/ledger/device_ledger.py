"""Time breakdown of a rank's device: attributes each instant of the window to one category.

Idea: categories are taken in priority order (a compute kernel runs > communication alone > a copy alone > nothing
runs), and each gets its spans minus what is already taken. Every instant is thus attributed exactly once, so the
categories add up to the window by construction, however kernels overlap. All steps are set operations on sorted spans
(`intervals`), O(n log n). Communication stays `communication_unsplit` here; collectives/arrivals.py splits it once the
other ranks are known. Rules and measurements: docs/explanation/how-numbers-are-made.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepscope.analyzer.intervals import Intervals, Nanoseconds, clip, join, owned, pieces, single, subtract, union
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.ledger.idle_time import Host, attribute_gaps, late_host
from stepscope.analyzer.ledger.segments import CategorySpans, Segments, assemble
from stepscope.analyzer.ledger.steps import Window
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, TimeCategory
from stepscope.trace.columns import IntColumn


class OwnLedger(NamedTuple):
    """One rank's window before the other ranks are known.

    `kernel_owned_ns` is the time in the window attributed to each compute kernel (in the order of
    Activities.of(COMPUTE)).
    """

    segments: Segments
    kernel_owned_ns: Nanoseconds
    hidden_communication_ns: int


def attribute_device_time(
    activities: Activities, window: Window, host: Host, kernel_categories: IntColumn
) -> OwnLedger:
    """Attribute a rank's window. `kernel_categories` has one category code for each compute kernel."""
    whole = single(window.start_ns, window.end_ns)
    compute = activities.of(Work.COMPUTE)
    start, end = _own_pieces(activities, compute, window)
    by_start = np.argsort(start, kind="stable")
    by_start = by_start[end[by_start] > start[by_start]]
    parts = [CategorySpans(Intervals(start[by_start], end[by_start]), kernel_categories[by_start])]

    communicating = _covered(activities, Work.COMMUNICATION, window)
    occupied = union(start, end)
    alone = subtract(communicating, occupied)
    parts += _exposed(alone, late_host(alone, activities, host))
    occupied = join(occupied, alone)

    copies = activities.of(Work.COPY)
    copy_start, copy_end = _own_pieces(activities, copies, window)
    free = subtract(whole, occupied)
    of_copy, piece_start, piece_end = pieces(copy_start, copy_end, free)
    causes = host.copy_causes(activities)[copies][of_copy]
    by_start = np.argsort(piece_start, kind="stable")
    copying = Intervals(piece_start[by_start], piece_end[by_start])
    parts.append(CategorySpans(copying, TimeCategory.COPY, causes[by_start]))

    parts += attribute_gaps(subtract(free, union(copying.start, copying.end)), activities, host)
    return OwnLedger(
        segments=assemble(parts),
        kernel_owned_ns=end - start,
        hidden_communication_ns=communicating.total - alone.total,
    )


def _own_pieces(activities: Activities, chosen: IntColumn, window: Window) -> tuple[Nanoseconds, Nanoseconds]:
    """The part of each chosen activity in the window that no earlier one covers; perhaps of length 0."""
    # activities are ordered by start, then stream, so that position breaks ties
    start, end = owned(activities.start_ns[chosen], activities.end_ns[chosen], tie=np.arange(len(chosen)))
    start = np.clip(start, window.start_ns, window.end_ns)
    return start, np.maximum(np.clip(end, window.start_ns, window.end_ns), start)


def _covered(activities: Activities, work: Work, window: Window) -> Intervals:
    chosen = activities.of(work)
    return clip(union(activities.start_ns[chosen], activities.end_ns[chosen]), window.start_ns, window.end_ns)


def _exposed(alone: Intervals, late: list[CategorySpans]) -> list[CategorySpans]:
    """Communication-only time; its cause is the host's where the host was late anyway."""
    parts = []
    rest = alone
    for part in late:
        parts.append(CategorySpans(part.intervals, TimeCategory.COMMUNICATION_UNSPLIT, part.codes()[1]))
        rest = subtract(rest, part.intervals)
    return [*parts, CategorySpans(rest, TimeCategory.COMMUNICATION_UNSPLIT)]


def fractions(segments: Segments, window_ns: int) -> dict[TimeCategory, float]:
    """Share of the window by category, with all categories."""
    time = np.bincount(segments.category, weights=segments.duration_ns, minlength=len(CATEGORY_ORDER))
    return {category: float(time[CATEGORY_CODE[category]]) / window_ns for category in CATEGORY_ORDER}
