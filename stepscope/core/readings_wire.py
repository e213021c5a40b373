"""How do collections get from one process to another, again and again? As JSON; what stays the same is written once.

A stream is what one source says of one thing each time: mostly the same metrics of the same labels, missing for the
same reasons. That is its shape, and goes ahead of the values where it is new.

    {"shape": {"labels": [...], "readings": [[metric, label set]], "missing": [[metric, label set, reason, detail]]},
     "values": [...], "times": ns, or one for each value, "findings": [[code, message, labels, ns]]}
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any

from stepscope.core.readings import Collection, Finding, Labels, Missing, MissingReason, Reading


class WireError(Exception):
    """What came is no collection."""


class StreamWriter:
    """Writes the collections of one stream."""

    def __init__(self) -> None:
        self._names: list[tuple[str, Labels]] | None = None
        self._missing: tuple[Missing, ...] = ()

    def write(self, collection: Collection) -> dict[str, Any]:
        """What `StreamReader.read` reads, of numbers, texts and lists."""
        readings = collection.readings
        message: dict[str, Any] = {"values": [one.value for one in readings]}
        names = [(one.metric, one.labels) for one in readings]
        if names != self._names or collection.missing != self._missing:
            self._names, self._missing = names, collection.missing
            message["shape"] = _shape_of(names, collection.missing)
        times = [one.time_ns for one in readings]
        message["times"] = times[0] if times and times.count(times[0]) == len(times) else times
        if collection.findings:
            message["findings"] = [[one.code, one.message, one.labels, one.time_ns] for one in collection.findings]
        return message


class StreamReader:
    """Reads the collections of one stream; one that begins in the middle of it cannot."""

    def __init__(self) -> None:
        self._names: list[tuple[str, Labels]] | None = None
        self._missing: tuple[Missing, ...] = ()

    def read(self, message: Mapping[str, Any]) -> Collection:
        """The collection that was written.

        Raises:
            WireError: it is none, or the shape was never told.
        """
        try:
            if "shape" in message:
                self._names, self._missing = _names_and_missing(message["shape"])
            if self._names is None:
                raise WireError("values without a shape")
            times = message["times"]
            each = times if isinstance(times, list) else [times]
            if any(not isinstance(time, int) for time in each):
                raise WireError("a time is no whole number")
            if each is not times:
                times = each * len(self._names)
            told = zip(self._names, message["values"], times, strict=True)
            return Collection(
                tuple([Reading(metric, value, labels, time) for (metric, labels), value, time in told]),
                self._missing,
                tuple(
                    [
                        Finding(code, text, labels_from(pairs), time)
                        for code, text, pairs, time in message.get("findings", ())
                    ]
                ),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise WireError(f"{type(error).__name__}: {error}") from error


def written_alone(collection: Collection) -> dict[str, Any]:
    """A collection that is no part of a stream; `read_alone` reads it."""
    return StreamWriter().write(collection)


def read_alone(message: Mapping[str, Any]) -> Collection:
    """The collection that `written_alone` wrote.

    Raises:
        WireError: it is none.
    """
    return StreamReader().read(message)


def labels_from(pairs: list[list[str]]) -> Labels:
    """Labels as JSON has them."""
    return tuple((intern(name), intern(value)) for name, value in pairs)


def _shape_of(names: list[tuple[str, Labels]], missing: tuple[Missing, ...]) -> dict[str, Any]:
    numbers: dict[Labels, int] = {}

    def number(labels: Labels) -> int:
        return numbers.setdefault(labels, len(numbers))

    return {
        "readings": [[metric, number(labels)] for metric, labels in names],
        "missing": [[one.metric, number(one.labels), one.reason, one.detail] for one in missing],
        "labels": list(numbers),
    }


def _names_and_missing(shape: Mapping[str, Any]) -> tuple[list[tuple[str, Labels]], tuple[Missing, ...]]:
    labels = [labels_from(pairs) for pairs in shape["labels"]]
    names = [(intern(metric), labels[who]) for metric, who in shape["readings"]]
    missing = tuple(
        Missing(metric, labels[who], MissingReason(reason), detail) for metric, who, reason, detail in shape["missing"]
    )
    return names, missing
