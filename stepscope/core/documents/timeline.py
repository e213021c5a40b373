"""Timeline of a rank: segments by category, as timeline.json keeps them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """One rank's window, cut into segments of one category each.

    Attributes:
        start_ns: start of each segment, ascending, ns since the epoch on the job's clock.
        end_ns: end of the last segment; segment i ends where segment i + 1 starts.
        categories: of each segment, as an index in CATEGORY_ORDER.
        step_starts_ns: device boundaries of the steps in the window.
        step_indices: number of the step that begins at each boundary.
    """

    rank: int
    start_ns: list[int]
    end_ns: int
    categories: list[int]
    step_starts_ns: list[int]
    step_indices: list[int]
