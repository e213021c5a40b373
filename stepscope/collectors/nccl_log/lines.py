"""What in a line of a job's output is NCCL's? Launchers put ranks, times and addresses before it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NCCL = re.compile(
    r"(?:(?P<host>[^\s:\[\]()<>]+):)?(?P<pid>\d+):\d+ \[-?\d+\] "
    r"(?:(?P<source>\S+:\d+) )?NCCL (?P<level>INFO|WARN|TRACE|VERSION|ABORT) (?P<text>.*)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MOST_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class NcclLine:
    """One line of NCCL's: who wrote it, how important it is, what it says."""

    process: str
    level: str
    text: str


def nccl_line(line: str) -> NcclLine | None:
    """NCCL's part of a line; None where there is none."""
    if " NCCL " not in line:
        return None
    match = _NCCL.search(line)
    if match is None:
        return None
    return NcclLine(f"{match['host'] or ''}:{match['pid']}", match["level"], match["text"].rstrip())


def plain(line: str) -> str:
    """The line without a terminal's colours, and no longer than any that means something."""
    return _COLOUR.sub("", line[:MOST_CHARACTERS]) if "\x1b" in line else line[:MOST_CHARACTERS]
