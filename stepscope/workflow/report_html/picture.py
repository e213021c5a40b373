"""How does one rank's time line become a small picture? A palette PNG, one for each theme, a few kilobytes.

Every column keeps the share of each heading, stacked, so that the area of a colour is the share of its time however
much time a column stands for.
"""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt

from stepscope.core.palette import DARK, LIGHT
from stepscope.core.timeline import HEADING_ORDER
from stepscope.workflow.timeline_tiles import Track, column_edges, time_in_columns

ROW_PIXELS = 12
Pixels = npt.NDArray[np.uint8]

_NOTHING = len(HEADING_ORDER)
_STEP = _NOTHING + 1
_STEP_LIGHT, _STEP_DARK = "#1c2024", "#e8eaed"


def paint(track: Track, *, start_ns: int, end_ns: int, width: int) -> Pixels:
    """Palette indices of one rank's row, shape (ROW_PIXELS, width); a line marks where a step begins."""
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
