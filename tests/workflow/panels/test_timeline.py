"""Timeline picture: the area of a colour is its share of time, and the file is a PNG."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, TimeCategory
from stepscope.workflow.panels.timeline import ROW_PIXELS, encode_pixels, make_track, paint_track

COMPUTE, WAIT = (CATEGORY_CODE[h] for h in (TimeCategory.COMPUTE_BOUND, TimeCategory.WAIT))
NOTHING, STEP = len(CATEGORY_ORDER), len(CATEGORY_ORDER) + 1


def line(starts: list[int], end: int, headings: list[int], steps: tuple[int, ...] = ()) -> RankTimeline:
    return RankTimeline(0, starts, end, headings, list(steps), list(range(len(steps))))


def test_columns_hold_the_shares_of_their_time_and_what_is_outside_is_empty() -> None:
    track = make_track(line([0, 100, 150], 200, [COMPUTE, WAIT, COMPUTE]))
    pixels = paint_track(track, start_ns=0, end_ns=400, width=4)
    assert pixels.shape == (ROW_PIXELS, 4)
    assert (pixels[:, 0] == COMPUTE).all()
    assert (pixels[:, 1] == COMPUTE).sum() == (pixels[:, 1] == WAIT).sum() == ROW_PIXELS / 2
    assert (pixels[:, 2:] == NOTHING).all()


def test_a_step_is_an_upright_line() -> None:
    track = make_track(line([0], 400, [COMPUTE], steps=(0, 250)))
    pixels = paint_track(track, start_ns=0, end_ns=400, width=4)
    assert (pixels[:, [0, 2]] == STEP).all()
    assert (pixels[:, [1, 3]] == COMPUTE).all()


def test_the_picture_is_a_png_of_the_pixels() -> None:
    pixels = np.arange(ROW_PIXELS * 3, dtype=np.uint8).reshape(ROW_PIXELS, 3) % (STEP + 1)
    content = base64.b64decode(encode_pixels(pixels, is_dark=False).removeprefix("data:image/png;base64,"))
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        kind, data = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", content, place + 8 + length)[0] == zlib.crc32(kind + data)
        chunks[kind] = data
        place += length + 12
    assert list(chunks) == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(ROW_PIXELS, 4)
    assert (lines[:, 0] == 0).all()
    assert (lines[:, 1:] == pixels).all()
