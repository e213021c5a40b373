"""Panel of the time lines of a report: a small palette PNG per rank and theme.

Every column keeps the share of each category, stacked, so that the area of a colour is its share of time.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.palette import DARK, LIGHT
from stepscope.core.text.numbers import milliseconds
from stepscope.core.vocabulary import CATEGORY_ORDER
from stepscope.workflow.panels.elements import Element, more, panel, tag
from stepscope.workflow.panels.ledger import most_different_ranks
from stepscope.workflow.panels.timeline_tiles import Track, column_edges, make_track, time_in_columns

MAX_RANKS = 64
MAX_PICTURE_BYTES = 450_000
WIDTHS = (1600, 800, 400, 200)
"""Columns: the widest whose pictures stay small enough."""
NUM_TICKS = 5
MAX_TALL_RANKS = 8
"""Up to this many have taller rows."""


def timeline_panel(analysis: Analysis, timelines: Sequence[RankTimeline]) -> Element | None:
    """A row per rank; None without time lines."""
    chosen = {rank.rank for rank in most_different_ranks(analysis, MAX_RANKS)}
    shown = [line for line in timelines if line.rank in chosen and line.start_ns]
    if not shown:
        return None
    tracks = [make_track(line) for line in shown]
    start = min(int(track.edges_ns[0]) for track in tracks)
    end = max(max(int(track.edges_ns[-1]) for track in tracks), start + 1)
    for width in WIDTHS:
        pictures = [paint(track, start_ns=start, end_ns=end, width=width) for track in tracks]
        themes = [[encode(picture, is_dark=dark) for picture in pictures] for dark in (False, True)]
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
        note="Colours as above; a column shows the share of each heading in its time. Upright lines: a step begins.",
    )


def _row(rank: int, light: str, dark: str) -> Element:
    picture = tag(
        "picture",
        tag("source", srcset=dark, media="screen and (prefers-color-scheme: dark)"),
        tag("img", src=light, alt=f"Time line of rank {rank}"),
    )
    return tag("div", tag("span", str(rank), class_="ss-num"), picture)


ROW_PIXELS = 12
Pixels = npt.NDArray[np.uint8]

_NOTHING = len(CATEGORY_ORDER)
_STEP = _NOTHING + 1
_STEP_LIGHT, _STEP_DARK = "#1c2024", "#e8eaed"


def paint(track: Track, *, start_ns: int, end_ns: int, width: int) -> Pixels:
    """Palette indices of one rank's row, shape (ROW_PIXELS, width); a line marks the start of a step."""
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


def encode(pixels: Pixels, *, is_dark: bool) -> str:
    """The pixels as a data URI; the space outside the rank's window is transparent."""
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
