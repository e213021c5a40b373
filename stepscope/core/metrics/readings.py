"""Readings: what collectors return, what is missing and why, and their JSON between processes.

Unknown is a `Missing` with its reason, never 0 and never NaN. Labels are sorted pairs, so that two of the same thing
are equal and can be keys. Between processes a stream carries what one source says of one thing each time, mostly the
same metrics of the same labels: this shape goes ahead of the values where it is new.

    {"shape": {"labels": [...], "readings": [[metric, label set]], "missing": [[metric, label set, reason, detail]]},
     "values": [...], "times": ns, or one for each value, "findings": [[code, message, labels, ns]]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from math import isfinite
from sys import intern
from typing import Any, Protocol

Labels = tuple[tuple[str, str], ...]
"""Sorted pairs of label name and value."""

GPU_LABELS = ("gpu", "uuid", "gpu_instance", "compute_instance", "mig_profile")
"""Who a GPU's reading is of: NVML's index, the UUID (of the MIG instance where the reading is of one), and for MIG
instances NVML's ids and the profile ("1g.10gb"). Join on `uuid`: NVML's index is neither CUDA's nor the minor number
of /dev (PrincetonUniversity/jobstats#34)."""


def labels_of(**values: str | int) -> Labels:
    """Labels from keywords, sorted by name."""
    return tuple(sorted((name, str(value)) for name, value in values.items()))


def with_labels(labels: Labels, **values: str | int) -> Labels:
    """The labels and more of them, still sorted; a name that was there gets the new value."""
    return tuple(sorted({**dict(labels), **{name: str(value) for name, value in values.items()}}.items()))


class MissingReason(StrEnum):
    """Why there is no value."""

    NOT_SUPPORTED = "not_supported"  # this device, driver or library has no such thing
    NO_PERMISSION = "no_permission"  # it is there, for somebody else
    TAKEN = "taken"  # another process has what only one can have: an address
    NOT_INSTALLED = "not_installed"  # no library, no driver, no kernel module
    VERSION_MISMATCH = "version_mismatch"  # library and driver do not fit: reboot, or reload the module
    GONE = "gone"  # it was there: a GPU off its bus, a process that ended
    TIMED_OUT = "timed_out"  # no answer within the deadline
    UNREACHABLE = "unreachable"  # a server that cannot be connected to, or answers with an error
    UNREADABLE = "unreadable"  # an answer that makes no sense: a sentinel, not a number, out of range
    NOT_YET = "not_yet"  # it takes two samples, or a first answer that is still to come
    FAILED = "failed"  # another error; its text is in `detail`


@dataclass(frozen=True, slots=True, init=False)
class Reading:
    """One value. An agent makes a thousand a second: hence the `__init__`, half as long as a frozen dataclass's own.

    Attributes:
        metric: a name of the catalogues (`core.gpu_metrics`), which tell its unit.
        value: finite, in the base unit of its metric.
        labels: who or what it is of.
        time_ns: when it was read, ns since the epoch.

    Raises:
        ValueError: the value is not finite: unknown must be a `Missing`.
    """

    metric: str
    value: float
    labels: Labels
    time_ns: int

    def __init__(self, metric: str, value: float, labels: Labels, time_ns: int) -> None:
        if not isfinite(value):
            raise ValueError(f"{metric} is {value}: what is not known must be a Missing")
        _set_metric(self, metric)
        _set_value(self, value)
        _set_labels(self, labels)
        _set_time_ns(self, time_ns)


_set_metric, _set_value, _set_labels, _set_time_ns = (getattr(Reading, field.name).__set__ for field in fields(Reading))


@dataclass(frozen=True, slots=True)
class Missing:
    """A metric that was asked for and has no value.

    Attributes:
        metric: a name of the catalogues; empty when all that the collector reads of this thing is missing.
        labels: who or what it is of.
        reason: why.
        detail: one line for people: the driver's own words, what to do. Empty where the reason says it all.
    """

    metric: str
    labels: Labels
    reason: MissingReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a collector noticed and a single value does not tell: a contradiction, an XID, a value clamped.

    Attributes:
        code: what kind: "xid", "clamped".
        message: one line for people.
        labels: who or what it is of, and what programs need of it ("xid": "79").
        time_ns: when, ns since the epoch.
    """

    code: str
    message: str
    labels: Labels
    time_ns: int


@dataclass(frozen=True, slots=True)
class Collection:
    """All that one call of a collector saw, and what it could not see."""

    readings: tuple[Reading, ...] = ()
    missing: tuple[Missing, ...] = ()
    findings: tuple[Finding, ...] = ()

    @classmethod
    def joined(cls, parts: Iterable[Collection]) -> Collection:
        """Several collections as one, in their order."""
        told = [part for part in parts if part.readings or part.missing or part.findings]
        if len(told) == 1:
            return told[0]
        return cls(
            tuple([reading for part in told for reading in part.readings]),
            tuple([missing for part in told for missing in part.missing]),
            tuple([finding for part in told for finding in part.findings]),
        )


class Collector(Protocol):
    """One source of readings."""

    def collect(self) -> Collection:
        """Read everything once. What cannot be read is in `missing`: expected trouble raises nothing."""
        ...


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
