"""Counters that the ranks of a run kept of their own GPUs and hosts (metrics/rank{r}.jsonl)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from stepscope.core.documents import run_directory as layout
from stepscope.core.documents.run_counters import RankCounters
from stepscope.core.protocol.counters import Counters
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice
from stepscope.store.files import open_regular

MAX_RANKS_OF_COUNTERS = 256
MAX_BYTES = 256 << 20
"""Read of all ranks together; of longer files, blocks spread evenly over the run."""
_BLOCK_BYTES = 1 << 18
_MAX_TIME_NS = 1 << 62
_FILE = re.compile(r"rank(\d{1,9})\.jsonl")
_decode = msgspec.json.Decoder(Counters).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_counters(run_directory: Path, *, max_bytes: int = MAX_BYTES) -> tuple[list[RankCounters], list[Notice]]:
    """Read the counters of a run, of at most MAX_RANKS_OF_COUNTERS ranks. Empty where no agent gave any.

    Returns:
        The ranks with counters; and notices of lines and files that could not be read. A last line that was cut, as
        after a kill, is left out without one.
    """
    files = _files(run_directory)
    files = [files[place] for place in range(0, len(files), -(-len(files) // MAX_RANKS_OF_COUNTERS) or 1)]
    ranks, notices = [], []
    for rank, path in files:
        counters, num_unreadable = RankCounters(rank), 0
        try:
            for line in _lines(path, max_bytes // len(files)):
                message = _message(line)
                num_unreadable += message is None
                counters.messages.extend([] if message is None else [message])
        except OSError as error:
            notices.append(Notice("unusable_file", f"{path}: cannot be read ({error}); left out"))
        if num_unreadable:
            lines = counted(num_unreadable, "line is not counters and is", "lines are not counters and are")
            notices.append(Notice("unreadable_lines", f"{path}: {lines} left out"))
        ranks += [counters] if counters.messages else []
    return ranks, notices


def _message(line: bytes) -> Counters | None:
    with suppress(*_UNREADABLE):
        message = _decode(line)
        times = [message.time_ns, *(t for gpu in message.gpus for t in gpu.times_ns)]
        times += [] if message.host is None else message.host.times_ns
        if min(times) >= 0 and max(times) <= _MAX_TIME_NS:
            return message
    return None


def _lines(path: Path, max_bytes: int) -> Iterator[bytes]:
    """Whole lines of a file, without a last one that has no end; of a long file those of some blocks."""
    size = path.stat().st_size
    with open_regular(path) as file:
        if size <= max_bytes:
            yield from filter(None, file.read().split(b"\n")[:-1])
            return
        num_blocks = max(max_bytes // _BLOCK_BYTES, 1)
        for place in range(num_blocks):
            file.seek(place * max(size - _BLOCK_BYTES, 0) // max(num_blocks - 1, 1))
            lines = file.read(_BLOCK_BYTES).split(b"\n")[:-1]
            yield from filter(None, lines[1:] if place else lines)


def _files(run_directory: Path) -> list[tuple[int, Path]]:
    try:
        files = (run_directory / layout.METRICS_FOLDER).iterdir()
        return sorted((int(match[1]), path) for path in files if (match := _FILE.fullmatch(path.name)))
    except OSError:
        return []
