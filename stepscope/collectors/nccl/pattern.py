"""Pattern of one kind of log line, and the event that a matching line becomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stepscope.core.documents.nccl_facts import LogEvent, LogPlace

Match = re.Match[str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line: its expression is tried only on lines with `word` in them."""

    word: str
    expression: re.Pattern[str]
    event: Callable[[LogPlace, Match], LogEvent | None]


TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*+ ?+(?:std(?:out|err) [FP] )?+"
"""Time that Kubernetes puts before a line."""
_TIME = re.compile(TIME)


def without_time(line: str) -> str:
    """The line without the time before it."""
    match = _TIME.match(line) if line[:2] == "20" else None
    return line if match is None else line[match.end() :]


def pattern(word: str, expression: str, event: Callable[[LogPlace, Match], LogEvent | None]) -> Pattern:
    """A pattern from the text of its expression."""
    return Pattern(word, re.compile(expression), event)


def first_match(
    patterns: Iterable[Pattern], text: str, *, file: str, number: int, process: str = "", thread: str = ""
) -> LogEvent | None:
    """Event of the first pattern that makes one of the line; its place is built only then."""
    for one in patterns:
        if one.word in text:
            match = one.expression.search(text)
            if match is not None:
                event = one.event(LogPlace(file, number, process, thread), match)
                if event is not None:
                    return event
    return None
