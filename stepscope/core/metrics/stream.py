"""JSON of collections of readings between processes.

The collections of a stream mostly have the same metrics and labels; this shape is sent only when it changes, and later
messages carry the values alone.

    {"shape": {"labels": [...], "readings": [[metric, label set]], "missing": [[metric, label set, reason, detail]]},
     "values": [...], "times": ns, or one for each value, "findings": [[code, message, labels, ns]]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import intern
from typing import Any

from stepscope.core.metrics.readings import (
    Collection,
    Finding,
    Labels,
    Missing,
    MissingReason,
    Reading,
    ReadingColumns,
    ReadingNames,
    Readings,
    blocks_of,
    read_labels,
    readings_of,
)


class CollectionWireError(Exception):
    """A message is not a collection of readings."""


class StreamWriter:
    """Writes collections of readings as the messages of one stream."""

    def __init__(self) -> None:
        self._names: list[tuple[str, Labels]] | None = None
        self._missing: tuple[Missing, ...] = ()

    def write(self, collection: Collection) -> dict[str, Any]:
        """The message for `StreamReader.read`, of numbers, texts and lists."""
        names, values, times = _columns_of(collection.readings)
        message: dict[str, Any] = {"values": values}
        if names != self._names or collection.missing != self._missing:
            self._names, self._missing = names, collection.missing
            message["shape"] = _shape_of(names, collection.missing)
        message["times"] = times[0] if times and times.count(times[0]) == len(times) else times
        if collection.findings:
            message["findings"] = [[one.code, one.message, one.labels, one.time_ns] for one in collection.findings]
        return message


class StreamReader:
    """Reads collections of readings from one stream, from its beginning.

    A value that has not changed is the object that it was: who keeps minutes of values then keeps few objects.
    """

    def __init__(self) -> None:
        self._names: ReadingNames | None = None
        self._values: list[float] = []
        self._missing: tuple[Missing, ...] = ()

    def read(self, message: Mapping[str, Any]) -> Collection:
        """The collection that was written.

        Raises:
            CollectionWireError: the message is not a collection, or no shape came before.
        """
        try:
            if "shape" in message:
                self._names, self._missing = _names_and_missing(message["shape"])
            if self._names is None:
                raise CollectionWireError("values without a shape")
            now, times = message["values"], message["times"]
            if len(now) == len(self._values):
                now = [
                    old if old == new and type(old) is type(new) else new
                    for old, new in zip(self._values, now, strict=True)
                ]
            self._values = now
            if isinstance(times, int):
                readings = Readings((ReadingColumns(self._names, now, times),))
            else:
                if any(not isinstance(time, int) for time in times):
                    raise CollectionWireError("a time is not a whole number")
                readings = readings_of(self._names.pairs, now, times)
            return Collection(
                readings,
                self._missing,
                tuple(
                    [
                        Finding(code, text, read_labels(pairs), time)
                        for code, text, pairs, time in message.get("findings", ())
                    ]
                ),
            )
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise CollectionWireError(f"{type(error).__name__}: {error}") from error


def _columns_of(readings: Sequence[Reading]) -> tuple[list[tuple[str, Labels]], list[float], list[int]]:
    """Metrics and labels, values and times."""
    names: list[tuple[str, Labels]] = []
    values: list[float] = []
    times: list[int] = []
    for block in blocks_of(readings):
        if isinstance(block, ReadingColumns):
            names += block.names.pairs
            values += block.values
            times += [block.time_ns] * len(block)
        else:
            names += [(one.metric, one.labels) for one in block]
            values += [one.value for one in block]
            times += [one.time_ns for one in block]
    return names, values, times


def _shape_of(names: list[tuple[str, Labels]], missing: tuple[Missing, ...]) -> dict[str, Any]:
    numbers: dict[Labels, int] = {}

    def number(labels: Labels) -> int:
        return numbers.setdefault(labels, len(numbers))

    return {
        "readings": [[metric, number(labels)] for metric, labels in names],
        "missing": [[one.metric, number(one.labels), one.reason, one.detail] for one in missing],
        "labels": list(numbers),
    }


def _names_and_missing(shape: Mapping[str, Any]) -> tuple[ReadingNames, tuple[Missing, ...]]:
    labels = [read_labels(pairs) for pairs in shape["labels"]]
    names = ReadingNames([(intern(metric), labels[who]) for metric, who in shape["readings"]])
    missing = tuple(
        Missing(metric, labels[who], MissingReason(reason), detail) for metric, who, reason, detail in shape["missing"]
    )
    return names, missing
