"""On which thread or stream did a row run? Ids as profilers write them (numbers, quoted numbers, words) to lanes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.trace.categories import ON_DEVICE
from stepscope.trace.columns import Category, Lane
from stepscope.trace.interning import Numbered

Track = tuple[str | None, int | str | None, int | str | None]
"""(category, process, thread) as written."""

_SYNC_THREAD_OFFSET = 1_000_000
"""Since 2026-04 the synchronizations of a stream have a thread of their own: the stream + this."""
_STREAM_NAME = re.compile(r"stream\s*(-?\d+)")
_WORD_ID_BASE = -(2**40)
"""Processes and threads that are words get numbers from here down, far from real ids, which may be negative too."""
_LARGEST_ID = 2**62


def lanes_of(tracks: Sequence[Track], categories: Sequence[Category]) -> tuple[list[int], tuple[Lane, ...]]:
    """For each track the index of its lane, and the lanes in order of first sight."""
    words: Numbered[str] = Numbered()
    lanes: Numbered[Lane] = Numbered()
    places: list[int] = []
    for (_, process, thread), category in zip(tracks, categories, strict=True):
        thread_id = _id(thread, words)
        if category is Category.SYNC_RECORD and thread_id >= _SYNC_THREAD_OFFSET:
            thread_id -= _SYNC_THREAD_OFFSET
        places.append(lanes[Lane(_id(process, words), thread_id, on_device=category in ON_DEVICE)])
    return places, tuple(lanes)


def _id(written: int | str | None, words: Numbered[str]) -> int:
    if isinstance(written, int) and abs(written) < _LARGEST_ID:
        return written
    text = str(written)
    if stream := _STREAM_NAME.fullmatch(text):
        text = stream[1]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    return _WORD_ID_BASE - words[text]
