"""Rows of nccl-tests' table that other lines break up, put together again.

nccl-tests writes a row in parts, as it measures them; lines of NCCL's and tags of a launcher come between the parts.
"""

from __future__ import annotations

import re

TYPES = r"u?int\d+|half|b?float(?:16)?|double|char|f(?:p|loat)?8_?e\dm\d\w*"
"""Data types of nccl-tests."""

_END = r"(?=[^\d\s.,]|\s*$|\s+\S)"
_HEAD = re.compile(rf"\s*(?P<bytes>\d{{1,18}}) +\d+ +(?:{TYPES}) +(?:[a-z]+ +)?(?:-1|\d{{1,6}}){_END}")
_PART = re.compile(rf"\s+(?P<us>\d+(?:\.\d+)?) +(?P<gbs>\d+\.\d+) +\d+\.\d+ +(?:0|[1-9]\d*|N/A){_END}")
"""Time, algorithm bandwidth, bus bandwidth, wrong values."""
_TAGGED_ROW = re.compile(rf"(\[\d+\])\s*\d+ +\d+ +(?:{TYPES}) ")
_TAGGED_PART = re.compile(r"(\[\d+\])\s+\d")
_MAX_BETWEEN = 10_000
_ROUNDING_GBS, _ROUNDING_SHARE = 0.006, 0.01


class TornRows:
    """Reader of the lines of one log that may be parts of a row."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._bytes = self._number = 0
        self._num_parts = 2

    def awaits(self, number: int) -> bool:
        """Whether the line of this number may complete a row."""
        return bool(self._texts) and number - self._number <= _MAX_BETWEEN

    def feed(self, number: int, line: str) -> tuple[str | None, str]:
        """The row that this line completes, if it was torn, and the rest of the line that is no part of it."""
        if line[:1].isalpha() and not self._texts:  # nearly all lines
            return None, line
        if line.startswith("["):
            line = self._without_tags(line)
        if line[:1] == "#":
            self._num_parts = line.count("busbw") or self._num_parts
            return None, line
        head = _HEAD.match(line) if line[:1].isspace() or line[:1].isdigit() else None
        if head is not None:
            self._texts, self._bytes, self._number = [head[0]], int(head["bytes"]), number
        elif not self.awaits(number):
            return None, line
        end = 0 if head is None else head.end()
        while len(self._texts) <= self._num_parts and (part := _PART.match(line, end)) and self._is_of_row(part):
            self._texts.append(part[0])
            end = part.end()
        if not end:
            return None, line
        rest = line[end:].strip()
        is_complete = len(self._texts) > self._num_parts
        if head is not None and not rest and is_complete:
            self._texts = []
            return None, line  # as it should be
        if head is not None and rest and rest[0].isdigit() and line[end].isspace():
            self._texts = []
            return None, line  # a row of another form
        row = None
        if is_complete:
            row, self._texts = "".join(self._texts), []
        return row, rest

    def _without_tags(self, line: str) -> str:
        tagged = _TAGGED_ROW.match(line) or (_TAGGED_PART.match(line) if self._texts else None)
        return line if tagged is None else re.sub(rf"{re.escape(tagged[1])}(?=\s+[\d.]|\s*\d)", " ", line)

    def _is_of_row(self, part: re.Match[str]) -> bool:
        """Whether the bandwidth is that of the row's size in that time; else the numbers are another program's."""
        microseconds, gbs = float(part["us"]), float(part["gbs"])
        expected = self._bytes / 1e3 / microseconds if microseconds else gbs
        return abs(expected - gbs) <= _ROUNDING_GBS + _ROUNDING_SHARE * gbs
