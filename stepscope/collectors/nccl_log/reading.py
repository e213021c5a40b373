"""What does one log say? Line by line, whatever else the job wrote into it; each fact with its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope.collectors.nccl_log.lines import NcclLine, nccl_line, plain
from stepscope.collectors.nccl_log.patterns import OF_NCCL, OF_OTHERS, Pattern
from stepscope.core.nccl_events import LogEvent, Place, Warned


def read_log(lines: Iterable[str], *, file: str) -> Iterator[LogEvent]:
    """The facts of a log in their order.

    Args:
        lines: of the log, of any length and encoding trouble; read once.
        file: its name, for the places.
    """
    for number, line in enumerate(lines, 1):
        line = plain(line.rstrip("\n"))
        told = nccl_line(line)
        if told is None:
            event = _first(OF_OTHERS, line, Place(file, number))
        else:
            event = _of_nccl(told, Place(file, number, told.process))
        if event is not None:
            yield event


def _of_nccl(told: NcclLine, place: Place) -> LogEvent | None:
    event = _first(OF_NCCL, told.text, place) or _first(OF_OTHERS, told.text, place)
    return Warned(place, told.text) if event is None and told.level in ("WARN", "ABORT") else event


def _first(patterns: Iterable[Pattern], text: str, place: Place) -> LogEvent | None:
    for pattern in patterns:
        if pattern.word in text:
            match = pattern.expression.search(text)
            event = pattern.event(place, match) if match is not None else None
            if event is not None:
                return event
    return None
