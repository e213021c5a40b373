"""Time lines of ranks: tiles for a zoom level, and the report's panel with a palette PNG per rank and theme.

A column keeps the share of every category, stacked, not just its most frequent one: at any zoom the area of a colour
on the screen is its share of time.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.text.numbers import milliseconds
from stepscope.core.vocabulary import CATEGORY_ORDER
from stepscope.workflow.panels.elements import Element, more, panel, tag
from stepscope.workflow.panels.ledger import most_different_ranks
from stepscope.workflow.panels.palette import DARK, LIGHT

SHARE_UNIT = 10_000
"""A column's shares are whole numbers that add up to this, give or take one per category."""

SLICES_PER_COLUMN = 0.25
"""With fewer slices per column, slices are wide enough to be drawn one by one."""

_NUM_CATEGORIES = len(CATEGORY_ORDER)
_Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Track:
    """One rank's time line as arrays, for the panel: `edges_ns` has one more entry than `codes`."""

    rank: int
    edges_ns: _Int64
    codes: _Int64
    step_starts_ns: _Int64
    step_indices: list[int]


@dataclass(frozen=True, slots=True)
class Tile:
    """Part of one rank's time line, as a panel shows it; times are ns after the origin.

    Attributes:
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
    """Make the arrays of one rank's time line, for the panel."""
    return Track(
        rank=timeline.rank,
        edges_ns=np.array([*timeline.start_ns, timeline.end_ns], dtype=np.int64),
        codes=np.array(timeline.categories, dtype=np.int64),
        step_starts_ns=np.array(timeline.step_starts_ns, dtype=np.int64),
        step_indices=timeline.step_indices,
    )


def make_tile(track: Track, *, origin_ns: int, start_ns: int, end_ns: int, width: int) -> Tile:
    """The tile of a time line's track between two times, in ns after `origin_ns`, with `width` columns."""
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
    """The `width` + 1 whole-nanosecond edges of a time line's pixel columns."""
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
    """Nanoseconds of each category in each pixel column of a time line; shape (columns, categories).

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


MAX_RANKS = 64
MAX_PICTURE_BYTES = 450_000
WIDTHS = (1600, 800, 400, 200)
"""Columns: the widest whose pictures stay small enough."""
NUM_TICKS = 5
MAX_TALL_RANKS = 8
"""Up to this many have taller rows."""


def timeline_panel(analysis: Analysis, timelines: Sequence[RankTimeline]) -> Element | None:
    """Panel of the time lines, a row per rank; None without time lines."""
    chosen = {rank.rank for rank in most_different_ranks(analysis, MAX_RANKS)}
    shown = [line for line in timelines if line.rank in chosen and line.start_ns]
    if not shown:
        return None
    tracks = [make_track(line) for line in shown]
    start = min(int(track.edges_ns[0]) for track in tracks)
    end = max(max(int(track.edges_ns[-1]) for track in tracks), start + 1)
    for width in WIDTHS:
        pictures = [paint_track(track, start_ns=start, end_ns=end, width=width) for track in tracks]
        themes = [[encode_pixels(picture, is_dark=dark) for picture in pictures] for dark in (False, True)]
        if sum(len(uri) for theme in themes for uri in theme) <= MAX_PICTURE_BYTES:
            break
    rows = [_row(track.rank, *uris) for track, *uris in zip(tracks, *themes, strict=True)]
    ticks = [tag("span", milliseconds((end - start) / 1e6 * place / (NUM_TICKS - 1))) for place in range(NUM_TICKS)]
    scale = tag("div", tag("span"), tag("div", ticks, class_="ticks"))
    return panel(
        "How did the window pass?",
        tag("div", rows, scale, class_="timeline tall" if len(rows) <= MAX_TALL_RANKS else "timeline"),
        more(len(timelines) - len(shown), "ranks, less different from the job,"),
        key="timeline",
        note="Colours as above; a column shows the share of each category in its time. Upright lines: a step begins.",
    )


def _row(rank: int, light: str, dark: str) -> Element:
    picture = tag(
        "picture",
        tag("source", srcset=dark, media="screen and (prefers-color-scheme: dark)"),
        tag("img", src=light, alt=f"Time line of rank {rank}"),
    )
    return tag("div", tag("span", str(rank), class_="ss-num"), picture)


ROW_PIXELS = 12
Pixels = NDArray[np.uint8]

_NOTHING = _NUM_CATEGORIES
_STEP = _NOTHING + 1
_STEP_LIGHT, _STEP_DARK = "#1c2024", "#e8eaed"


def paint_track(track: Track, *, start_ns: int, end_ns: int, width: int) -> Pixels:
    """Timeline panel: palette indices of one rank's row in its picture; a line marks the start of a step."""
    edges = column_edges(start_ns, end_ns, width)
    times = time_in_columns(track, edges)
    widths = np.maximum(np.diff(edges), 1)
    # heights are cut from the running sum, so that many slices of under a pixel still fill theirs
    tops = np.rint(np.cumsum(times, axis=1) / widths[:, None] * ROW_PIXELS).astype(np.int64)
    rows = np.arange(ROW_PIXELS)
    codes = (tops[:, None, :] <= rows[None, :, None]).sum(axis=2)
    pixels: Pixels = np.minimum(codes, _NOTHING).astype(np.uint8).T[::-1].copy()
    steps = np.searchsorted(edges, track.step_starts_ns, side="right") - 1
    pixels[:, steps[(steps >= 0) & (steps < width)]] = _STEP
    return pixels


def encode_pixels(pixels: Pixels, *, is_dark: bool) -> str:
    """Timeline panel: its pixels as a data URI; the space outside the rank's window is transparent."""
    height, width = pixels.shape
    colours = [*(DARK if is_dark else LIGHT).values(), "#000000", _STEP_DARK if is_dark else _STEP_LIGHT]
    palette = b"".join(bytes.fromhex(colour[1:]) for colour in colours)
    lines = np.concatenate((np.zeros((height, 1), np.uint8), pixels), axis=1)
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", palette),
            (b"tRNS", b"\xff" * _NOTHING + b"\x00"),
            (b"IDAT", zlib.compress(lines.tobytes(), 9)),
            (b"IEND", b""),
        )
    )
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
