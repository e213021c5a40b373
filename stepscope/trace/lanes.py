"""On which thread or stream did a row run? Ids as profilers write them (numbers, quoted numbers, words) to lanes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stepscope.trace.categories import ON_DEVICE
from stepscope.trace.columns import Category, Lane
from stepscope.trace.interning import Numbered

Track = tuple[str | None, int | str | None, int | str | None]
"""(category, process, thread) as written."""

_SYNC_THREAD_OFFSET = 1_000_000
"""Since 2026-04 the synchronizations of a stream have a thread of their own: the stream + this."""
_STREAM_NAME = re.compile(r"stream\s*(-?\d+)")
_PART_NAME = re.compile(r"(\[[^\]]*\]|(?:rank|worker)[ _:#-]*\d+)(?:[ _:/,-]+(\S.*))?", re.IGNORECASE)
"""Process ids that merging tools write: the rank, and what the id was ("[TP01-PP00] 4711", "rank3 4711", "rank 3")."""
_WORD_ID_BASE = -(2**40)
"""Processes and threads that are words get numbers from here down, far from real ids, which may be negative too."""
_LARGEST_ID = 2**62


def lanes_of(
    tracks: Sequence[Track], categories: Sequence[Category], told_ranks: Mapping[int | str | None, int]
) -> tuple[list[int], tuple[Lane, ...]]:
    """For each track the index of its lane, and the lanes in order of first sight.

    Args:
        tracks: as written.
        categories: kind of each track.
        told_ranks: process (as written) -> rank, where events tell it of themselves.
    """
    words: Numbered[str] = Numbered()
    lanes: Numbered[Lane] = Numbered()
    places: list[int] = []
    is_merged = len(set(told_ranks.values())) > 1  # one rank of its own in all events says nothing new
    for (_, process, thread), category in zip(tracks, categories, strict=True):
        thread_id = _id(thread, words)
        if category is Category.SYNC_RECORD and thread_id >= _SYNC_THREAD_OFFSET:
            thread_id -= _SYNC_THREAD_OFFSET
        part, written = _part_of(process)
        if is_merged and process in told_ranks:
            part = f"rank {told_ranks[process]}"
        places.append(lanes[Lane(_id(written, words), thread_id, category in ON_DEVICE, part)])
    return places, tuple(lanes)


def _part_of(process: int | str | None) -> tuple[str, int | str | None]:
    """The rank's name that a merging tool put before the process id, and the id without it."""
    if isinstance(process, str) and (match := _PART_NAME.fullmatch(process)):
        return match[1], match[2] or match[1]
    return "", process


def _id(written: int | str | None, words: Numbered[str]) -> int:
    if isinstance(written, int) and abs(written) < _LARGEST_ID:
        return written
    text = str(written)
    if stream := _STREAM_NAME.fullmatch(text):
        text = stream[1]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    return _WORD_ID_BASE - words[text]
