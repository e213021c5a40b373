"""Tiles of time lines for a zoom level: exact slices where they are few, else shares of time per column.

A column keeps the share of every category, not just its most frequent one: at any zoom the area of a colour on the
screen is its share of time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.vocabulary import CATEGORY_ORDER

SHARE_UNIT = 10_000
"""A column's shares are whole numbers that add up to this, give or take one per category."""

SLICES_PER_COLUMN = 0.25
"""With fewer slices per column, slices are wide enough to be drawn one by one."""

_NUM_CATEGORIES = len(CATEGORY_ORDER)
_Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Track:
    """One rank's time line as arrays: `edges_ns` has one more entry than `codes`."""

    rank: int
    edges_ns: _Int64
    codes: _Int64
    step_starts_ns: _Int64
    step_indices: list[int]


@dataclass(frozen=True, slots=True)
class Tile:
    """One rank's part of a view; times are ns after the origin.

    Attributes:
        rank: the rank.
        slices: [start, end, category code] of each slice in view, exact; None where they are too many.
        shares: category code -> one whole number per column, in SHARE_UNIT-ths of the column's full width; a column
            that reaches beyond the window adds up to less. None where `slices` is given.
        steps: [start, step number] of each step boundary in view.
    """

    rank: int
    slices: list[list[int]] | None
    shares: dict[int, list[int]] | None
    steps: list[list[int]]


def make_track(timeline: RankTimeline) -> Track:
    """One rank's time line as arrays."""
    return Track(
        rank=timeline.rank,
        edges_ns=np.array([*timeline.start_ns, timeline.end_ns], dtype=np.int64),
        codes=np.array(timeline.categories, dtype=np.int64),
        step_starts_ns=np.array(timeline.step_starts_ns, dtype=np.int64),
        step_indices=timeline.step_indices,
    )


def make_tile(track: Track, *, origin_ns: int, start_ns: int, end_ns: int, width: int) -> Tile:
    """The tile of a track between two times, in ns after `origin_ns`, with `width` columns."""
    start, end = origin_ns + start_ns, origin_ns + end_ns
    first, last = _in_view(track, start, end)
    few = last - first <= max(1, width * SLICES_PER_COLUMN)
    visible = (track.step_starts_ns >= start) & (track.step_starts_ns <= end)
    places = np.flatnonzero(visible)
    return Tile(
        rank=track.rank,
        slices=_slices(track, first, last, origin_ns, start, end) if few else None,
        shares=None if few else _shares(track, column_edges(start, end, width)),
        steps=[[int(track.step_starts_ns[place]) - origin_ns, track.step_indices[place]] for place in places],
    )


def column_edges(start_ns: int, end_ns: int, width: int) -> _Int64:
    """The `width` + 1 whole-nanosecond edges of the columns."""
    return np.array([start_ns + (end_ns - start_ns) * place // width for place in range(width + 1)], dtype=np.int64)


def _slices(track: Track, first: int, last: int, origin_ns: int, start: int, end: int) -> list[list[int]]:
    starts = np.clip(track.edges_ns[first:last], start, end) - origin_ns
    ends = np.clip(track.edges_ns[first + 1 : last + 1], start, end) - origin_ns
    rows = zip(starts.tolist(), ends.tolist(), track.codes[first:last].tolist(), strict=True)
    return [[begin, finish, code] for begin, finish, code in rows if finish > begin]


def _shares(track: Track, edges: _Int64) -> dict[int, list[int]]:
    times = time_in_columns(track, edges)
    widths = np.maximum(np.diff(edges), 1)
    shares = _round_to_whole(times * (SHARE_UNIT / widths)[:, None])
    present = np.flatnonzero(times.any(axis=0))
    return {int(code): shares[:, code].tolist() for code in present}


def _in_view(track: Track, start_ns: int, end_ns: int) -> tuple[int, int]:
    """The first slice in view and the one after the last."""
    first = max(int(np.searchsorted(track.edges_ns, start_ns, side="right")) - 1, 0)
    return first, min(int(np.searchsorted(track.edges_ns, end_ns, side="left")), len(track.codes))


def time_in_columns(track: Track, edges: _Int64) -> _Int64:
    """Nanoseconds of each category in each column between two `edges`; shape (columns, categories).

    The slices are cut at the columns' edges; each piece then belongs to one column and one category.
    """
    first, last = _in_view(track, int(edges[0]), int(edges[-1]))
    num_columns = len(edges) - 1
    inner = track.edges_ns[first : last + 1]
    places = np.searchsorted(inner, edges)
    cuts = np.insert(inner, places, edges)  # both are sorted, so this is a merge; equal cuts make pieces of no length
    is_edge = np.zeros(len(cuts), dtype=bool)
    is_edge[places + np.arange(len(edges))] = True
    columns = np.cumsum(is_edge)[:-1] - 1
    slices = np.arange(len(cuts) - 1) - columns - 1
    inside = (columns >= 0) & (columns < num_columns) & (slices >= 0) & (slices < last - first)
    columns, pieces = columns[inside], np.diff(cuts)[inside]
    codes = track.codes[first:last][slices[inside]]
    # float64 weights are exact here: a sum of ns stays under 2**53 for views shorter than 104 days
    totals = np.bincount(columns * _NUM_CATEGORIES + codes, weights=pieces, minlength=num_columns * _NUM_CATEGORIES)
    return totals.astype(np.int64).reshape(num_columns, _NUM_CATEGORIES)


def _round_to_whole(shares: NDArray[np.float64]) -> _Int64:
    """Round along the columns and carry the remainder, so that a category rare in every column is not lost."""
    sums = np.rint(np.cumsum(shares, axis=0)).astype(np.int64)
    return np.diff(sums, axis=0, prepend=0)
