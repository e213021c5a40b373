"""Log lines that a terminal broke at its width, joined again.

A log that was copied from a terminal has its long lines in several rows: all but the last as long as the terminal was
wide, and in some copies the last one filled up with blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_MIN_WIDTH, _MAX_WIDTH = 40, 1000
"""Columns of a terminal."""
_MAX_ROWS, _MAX_CHARACTERS = 40, 4096
"""Of one line: no pattern needs more."""
_RECORD = re.compile(
    r"\s*$|\[rank\d+\]|\[?[EWIF]\d* ?\d\d|\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|\[[EWIF]\d* |\[PG |\[Rank "
    r"|\[\d+(?:,\d+)?\]|\S+:\d+:\d+ \[-?\d+\]|\(\w+ pid=|# |Traceback|NCCL version|\S+ \| "
)
_TIMEOUT = "WorkNCCL("


def begins_record(line: str) -> bool:
    """Whether a line begins as those of NCCL, torch and launchers do, so that it does not continue the one before."""
    return _RECORD.match(line) is not None


class WidthDetector:
    """Finds whether a terminal or an editor broke the lines of a file, and at which width."""

    def __init__(self) -> None:
        self._longest = self._width = self._num_full = self._num_continued = 0
        self._num_nccl = self._num_nccl_continued = 0
        self.num_timeouts = 0
        """Lines that begin to report a timeout."""

    def watch(self, lines: Iterable[str]) -> None:
        """See lines that follow each other in the file."""
        was_full = was_nccl = False
        longest = self._longest
        for line in lines:
            is_nccl = " NCCL " in line
            if (was_full or (was_nccl and not is_nccl)) and not begins_record(line):
                self._num_continued += was_full
                self._num_nccl_continued += was_nccl
            was_nccl = is_nccl
            self._num_nccl += is_nccl
            was_full = len(line) >= longest and line[-2:-1] != " "  # blanks fill up a last row
            if was_full:
                if len(line) > longest:
                    longest, self._num_full, self._num_continued = len(line), 0, 0
                    self._width = len(line.rstrip("\r\n"))
                self._num_full += 1
            if _TIMEOUT in line:
                self.num_timeouts += 1
        self._longest = longest

    def width(self) -> int | None:
        """Columns of the terminal; None where the longest lines are not continued by the ones after them."""
        is_broken = self._num_continued > 0 and 3 * self._num_continued >= self._num_full
        return self._width if is_broken and _MIN_WIDTH <= self._width <= _MAX_WIDTH else None

    def is_certain(self) -> bool:
        """Whether several lines are broken at that width."""
        return self._num_continued > 1 and self.width() is not None

    def is_often_continued(self) -> bool:
        """Whether a part of NCCL's lines is followed by what begins as no line does, as where words are wrapped."""
        return self._num_nccl_continued > 0 and 5 * self._num_nccl_continued >= self._num_nccl


def join_rows(lines: Iterable[tuple[int, str]], width: int) -> Iterator[tuple[int, str]]:
    """Lines whose rows of full width are joined with the row that follows; each has its first row's number."""
    whole, first, num_rows, is_full = "", 0, 0, False
    for number, raw_line in lines:
        line = raw_line.rstrip("\r\n")
        if is_full and num_rows < _MAX_ROWS and not begins_record(line):
            whole, num_rows = whole + line, num_rows + 1
        else:
            if num_rows:
                yield first, whole
            whole, first, num_rows = line, number, 1
        is_full = len(line) >= width
    if num_rows:
        yield first, whole


def join_paragraphs(lines: Iterable[tuple[int, str]], *, glue: str) -> Iterator[tuple[int, str]]:
    """Lines with all rows that follow and do not begin as a line does, whatever their length, `glue` between them."""
    rows: list[str] = []
    first = 0
    for number, raw_line in lines:
        line = raw_line[:_MAX_CHARACTERS].strip(" \r\n" if glue else "\r\n")
        if rows and len(rows) < _MAX_ROWS and not begins_record(line):
            rows.append(line)
            continue
        if rows:
            yield first, glue.join(rows)
        rows, first = [line], number
    if rows:
        yield first, glue.join(rows)
