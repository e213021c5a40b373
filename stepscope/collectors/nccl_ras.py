"""What does NCCL's RAS service answer? Its JSON, and its text, of which only what is wrong names ranks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from stepscope.core.errors import DataError
from stepscope.core.nccl_sources import RasCommunicator, RasRank, RasStatus

_COMMUNICATOR = re.compile(r"#\d+-\d+ \((?P<id>[0-9a-fx]+)\) (?P<what>[A-Z]+)")
_HAVE = re.compile(r"(?P<count>\d+) ranks? (?:has|have) (?P<what>.+)")
_RANK = re.compile(r"Rank (?P<rank>\d+) -- GPU \S+ managed by process (?P<process>\d+) on node (?P<host>\S+)")
_MISSING = re.compile(r"[Tt]he missing ranks?: (?P<ranks>[\d, \-]+)")
_PROCESS = re.compile(r"Process \d+ on node \S+ managing GPU \S+")
_MOST_RANKS, _MOST_DIGITS = 1 << 17, 9
_IN_JSON = '"communicators"'
_IN_TEXT = ("Communicators...", "Comms     Nodes")


def looks_like_ras(text: str) -> bool:
    """Whether a file is an answer of the RAS service."""
    return any(mark in text for mark in _IN_TEXT) or (text.lstrip()[:1] == "{" and _IN_JSON in text)


def read_ras(text: str, *, file: str) -> RasStatus:
    """One answer.

    Args:
        text: the whole of it.
        file: its name.

    Raises:
        DataError: it is JSON of another kind, or not whole.
    """
    if text.lstrip()[:1] != "{":
        return _of_text(text, file)
    try:
        told = json.loads(text)
        return RasStatus(file, tuple(_communicator(one) for one in told["communicators"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"is no answer of NCCL's RAS ({type(error).__name__})", where=file, what_next="ask it again, in JSON"
        ) from None


def _communicator(told: dict[str, Any]) -> RasCommunicator:
    return RasCommunicator(
        str(told["hash"]),
        int(told["size"]),
        tuple(_rank(one) for one in told.get("ranks") or ()),
        tuple(_rank(one) for one in told.get("missing_ranks") or ()),
    )


def _rank(told: dict[str, Any]) -> RasRank:
    status = told.get("status") or {}
    return RasRank(
        int(told["rank"]),
        str(told.get("host", "")),
        int(told.get("pid", 0)),
        {str(kind): int(count) for kind, count in (told.get("collective_counts") or {}).items()},
        bool(status.get("unresponsive")),
        bool(status.get("considered_dead")),
    )


def _of_text(text: str, file: str) -> RasStatus:
    """Groups of ranks after "6 ranks have launched up to operation 6649"; the largest group is not listed."""
    found: dict[str, RasCommunicator] = {}
    dead: dict[str, None] = {}
    current, saying, listed = "", "", list[int]()

    def close() -> None:
        nonlocal listed
        if current and listed:
            one = found[current]
            found[current] = replace(one, problems=(*one.problems, (tuple(listed), saying)))
        listed = []

    for line in map(str.strip, text.splitlines()):
        if match := _COMMUNICATOR.match(line):
            close()
            current = match["id"]
            found.setdefault(current, RasCommunicator(current, None))
        elif match := _HAVE.match(line):
            close()
            saying = match["what"]
        elif match := _RANK.match(line):
            listed.append(int(match["rank"]))
        elif (match := _MISSING.search(line)) and current:
            one = found[current]
            missing = tuple(RasRank(rank, "", 0, is_unresponsive=True) for rank in _numbers(match["ranks"]))
            found[current] = replace(one, missing=(*one.missing, *missing))
        elif _PROCESS.match(line):
            dead[line] = None
    close()
    return RasStatus(file, tuple(found.values()), tuple(dead))


def _numbers(told: str) -> list[int]:
    """ "3, 7-9" -> [3, 7, 8, 9]."""
    numbers: list[int] = []
    for part in told.split(","):
        first, _, last = part.replace(" ", "").partition("-")
        if first and len(first) <= _MOST_DIGITS and len(numbers) < _MOST_RANKS:
            numbers += range(int(first), min(int((last or first)[:_MOST_DIGITS]), int(first) + _MOST_RANKS) + 1)
    return numbers[:_MOST_RANKS]
